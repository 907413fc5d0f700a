// SPDX-License-Identifier: Apache-2.0
// See scratch_directory.h.
// Threading: one thread. May not be used by runtime/ (it allocates).
#include "tools/dev/scratch_directory.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <stdexcept>

#include "sys/file.h"
#include "tools/support/cgroup.h"
#include "tools/support/host.h"
#include "tools/support/text_file.h"

namespace lunar::tools {

namespace {
constexpr const char* kPrefix = "lunar-demo-";
constexpr const char* kLockName = "/owner.lock";  // its text: the memory cgroup, if there is one
}  // namespace

ScratchDirectory::ScratchDirectory(const std::string& parent) {
  FileSystem system;
  if (probe_file_system(parent, &system) == 0 && system.in_memory) {
    throw std::runtime_error(
        fmt::format("{} is a memory file system: give a directory on a disk by --dir", parent));
  }
  std::string pattern = parent + "/" + kPrefix + "XXXXXX";
  if (mkdtemp(pattern.data()) == nullptr) {
    throw std::runtime_error(fmt::format(
        "no directory can be made in {}: {} (choose another by --dir)", parent, strerror(errno)));
  }
  path_ = pattern;
  lock_ = open((path_ + kLockName).c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (lock_ < 0 || sys::lock_range(lock_, sys::RangeLock::kExclusive, 0, 0) != 0) {
    throw std::runtime_error(
        fmt::format("{}{} cannot be locked: {}", path_, kLockName, strerror(errno)));
  }
}

ScratchDirectory::~ScratchDirectory() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
  if (lock_ >= 0) close(lock_);
}

void ScratchDirectory::note_cgroup(const std::string& directory) {
  if (pwrite(lock_, directory.data(), directory.size(), 0) < 0 ||
      ftruncate(lock_, static_cast<off_t>(directory.size())) != 0) {
    throw std::runtime_error(fmt::format("{}{}: {}", path_, kLockName, strerror(errno)));
  }
}

std::vector<std::string> ScratchDirectory::sweep(const std::string& parent) {
  std::vector<std::string> swept;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(parent, ignored)) {
    const std::string path = entry.path().string();
    if (entry.path().filename().string().compare(0, strlen(kPrefix), kPrefix) != 0) continue;
    struct stat info{};
    if (lstat(path.c_str(), &info) != 0 || !S_ISDIR(info.st_mode) || info.st_uid != geteuid())
      continue;
    const int lock = open((path + kLockName).c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    if (lock < 0) continue;  // being made just now, or not ours
    if (sys::lock_range(lock, sys::RangeLock::kExclusive, 0, 0) == 0) {
      const std::string cgroup = trimmed(read_text(path + kLockName).value_or(""));
      if (cgroup.find(std::string("/") + kPrefix) != std::string::npos)
        (void)MemoryCgroup::remove(cgroup);
      std::filesystem::remove_all(path, ignored);
      swept.push_back(path);
    }
    close(lock);
  }
  return swept;
}

}  // namespace lunar::tools
