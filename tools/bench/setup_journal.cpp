// SPDX-License-Identifier: Apache-2.0
// See setup_journal.h. Only objects with names that a bench gives are removed.
#include "tools/bench/setup_journal.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/swap.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <sstream>
#include <stdexcept>
#include <utility>

#include "sys/file.h"
#include "tools/bench/swap_file.h"
#include "tools/support/text_file.h"

namespace lunar::tools {

namespace {
std::string lock_path() {
  const char* directory = access("/run/lock", W_OK) == 0 ? "/run/lock" : "/tmp";
  return std::string(directory) + "/lunar-bench.lock";
}

// Settings of the whole machine. A boot resets them.
struct Setting {
  const char *kind, *path, *name;
};
constexpr Setting kSettings[] = {{"page-cluster", "/proc/sys/vm/page-cluster", "vm.page-cluster"},
                                 {"zswap", kZswapPath, "zswap"},
                                 {"thp", kThpPath, "transparent huge pages"}};

// True if the last part of the path is a name that a bench gives.
bool is_ours(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash != std::string::npos && path.compare(slash + 1, 12, "lunar-bench-") == 0;
}
}  // namespace

BenchLock::BenchLock() {
  const std::string path = lock_path();
  // Without O_CREAT first: sticky directories refuse to open another user's file with it.
  fd_ = open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW);
  if (fd_ < 0 && errno == ENOENT) {
    fd_ = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (fd_ >= 0) (void)fchmod(fd_, 0666);
  }
  if (fd_ < 0)
    throw std::runtime_error(
        fmt::format("the bench lock {} cannot be opened: {}", path, strerror(errno)));
  if (sys::lock_range(fd_, sys::RangeLock::kExclusive, 0, 0) != 0) {
    const std::string holder = trimmed(read_text(path).value_or(""));
    close(fd_);
    throw std::runtime_error(fmt::format(
        "another bench runs on this machine (process {}); wait for it, or both results are wrong",
        holder.empty() ? "unknown" : holder));
  }
  const std::string pid = fmt::format("{}\n", getpid());
  // The PID is only a hint for people.
  if (ftruncate(fd_, 0) != 0 || pwrite(fd_, pid.data(), pid.size(), 0) < 0) {}
}

BenchLock::~BenchLock() { close(fd_); }

std::string SetupJournal::boot_id() {
  return trimmed(read_text("/proc/sys/kernel/random/boot_id").value_or(""));
}

SetupJournal::SetupJournal() {
  if (geteuid() == 0) {
    if (mkdir("/var/lib/lunar", 0755) != 0 && errno != EEXIST) {
      throw std::runtime_error(fmt::format("/var/lib/lunar cannot be made: {}", strerror(errno)));
    }
    path_ = "/var/lib/lunar/bench.state";
  } else {
    path_ = fmt::format("/var/tmp/lunar-bench-{}.state", geteuid());
  }
  struct stat info{};
  if (lstat(path_.c_str(), &info) != 0) return;
  if (!S_ISREG(info.st_mode) || info.st_uid != geteuid()) {
    throw std::runtime_error(fmt::format("{} is not ours: remove it", path_));
  }
  std::istringstream lines(read_text(path_).value_or(""));
  for (std::string line; std::getline(lines, line);) {
    if (!line.empty()) lines_.push_back(line);
  }
}

bool SetupJournal::undo(const std::string& line, std::string* said) {
  const size_t space = line.find(' ');
  const std::string kind = line.substr(0, space),
                    what = space == std::string::npos ? "" : line.substr(space + 1);
  std::istringstream words(what);
  std::string value, boot;
  words >> value >> boot;
  for (const Setting& one : kSettings) {
    if (kind != one.kind) continue;
    if (boot != boot_id()) return true;  // it ended with that boot
    *said = fmt::format("{} set back to {}", one.name, value);
    return write_text(one.path, value) == 0;
  }
  if (kind == "zram") {
    if (boot != boot_id()) return true;
    *said = fmt::format("/dev/zram{} removed", value);
    return remove_zram(value);
  }
  if (!is_ours(what)) return true;  // no bench made this: only forget it
  *said = fmt::format("{} {} removed", kind, what);
  if (kind == "cgroup") return MemoryCgroup::remove(what) == 0;
  if (kind == "swapfile") {
    if (swapoff(what.c_str()) != 0 && errno != EINVAL && errno != ENOENT) return false;
    return unlink(what.c_str()) == 0 || errno == ENOENT;
  }
  if (kind == "directory") {
    std::error_code error;
    std::filesystem::remove_all(what, error);  // follows no link
    return !error;
  }
  if (kind == "file") return unlink(what.c_str()) == 0 || errno == ENOENT;
  return true;
}

std::vector<std::string> SetupJournal::sweep() {
  std::vector<std::string> report;
  // Newest first: processes in cgroups end before the swap that they use goes.
  for (size_t i = lines_.size(); i-- > 0;) {
    std::string said;
    if (undo(lines_[i], &said)) {
      lines_.erase(lines_.begin() + static_cast<ptrdiff_t>(i));
      if (!said.empty()) report.push_back(said + " (left by a killed run)");
    } else {
      report.push_back(fmt::format("{}: could not be removed: {}", lines_[i], strerror(errno)));
    }
  }
  save();
  return report;
}

void SetupJournal::record(const std::string& line) {
  lines_.push_back(line);
  save();
}

void SetupJournal::forget(const std::string& line) {
  const auto found = std::find(lines_.begin(), lines_.end(), line);
  if (found != lines_.end()) lines_.erase(found);
  save();
}

void SetupJournal::save() const {
  if (lines_.empty()) {
    unlink(path_.c_str());
    if (geteuid() == 0) rmdir("/var/lib/lunar");  // fails if it has other files
    return;
  }
  if (geteuid() == 0) mkdir("/var/lib/lunar", 0755);
  const std::string next = path_ + ".next";
  std::string text;
  for (const std::string& line : lines_) text += line + "\n";
  unlink(next.c_str());
  const int fd = open(next.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
  const bool put = fd >= 0 &&
                   write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size()) &&
                   fsync(fd) == 0;
  if (fd >= 0) close(fd);
  if (!put || rename(next.c_str(), path_.c_str()) != 0) {
    throw std::runtime_error(fmt::format("{} cannot be written: {}", path_, strerror(errno)));
  }
}

Recorded::Recorded(SetupJournal& journal, std::string line)
    : journal_(journal), line_(std::move(line)) {
  journal_.record(line_);
}

Recorded::~Recorded() {
  if (line_.empty()) return;
  try {
    journal_.forget(line_);
  } catch (const std::exception&) {  // the next run undoes it again
  }
}

WorkDirectory::WorkDirectory(SetupJournal& journal, const std::string& path)
    : path_(path), recorded_(journal, "directory " + path) {
  if (mkdir(path_.c_str(), 0700) != 0)
    throw std::runtime_error(fmt::format("{} cannot be made: {}", path_, strerror(errno)));
}

WorkDirectory::~WorkDirectory() {
  std::error_code error;
  std::filesystem::remove_all(path_, error);
  if (error) recorded_.keep();
}

RecordedFile::~RecordedFile() {
  if (unlink(path_.c_str()) != 0 && errno != ENOENT) recorded_.keep();
}

RecordedCgroup::RecordedCgroup(SetupJournal& journal, const CgroupPlace& place,
                               const std::string& last_part, uint64_t limit_bytes, bool swap)
    : name(fmt::format("lunar-bench-{}-{}", getpid(), last_part)),
      recorded(journal, fmt::format("cgroup {}/{}", place.mount, name)),
      group(place, name, limit_bytes, swap) {}

// A file that lists all values has the present one in brackets.
MachineSetting::MachineSetting(SetupJournal& journal, const std::string& kind) {
  const auto* found = std::find_if(std::begin(kSettings), std::end(kSettings),
                                   [&](const Setting& one) { return kind == one.kind; });
  path_ = found->path;
  before_ = trimmed(read_text(path_).value_or(""));
  if (before_.empty()) throw std::runtime_error(fmt::format("this kernel has no {}", found->name));
  if (const size_t open = before_.find('['); open != std::string::npos)
    before_ = before_.substr(open + 1, before_.find(']') - open - 1);
  now_ = before_;
  recorded_.emplace(journal, fmt::format("{} {} {}", kind, before_, SetupJournal::boot_id()));
}

MachineSetting::~MachineSetting() {
  if (now_ != before_) (void)write_text(path_, before_);
}

void MachineSetting::set(const std::string& value) {
  if (value == now_) return;
  if (const int error = write_text(path_, value); error != 0)
    throw std::runtime_error(
        fmt::format("{} cannot be set to {}: {}", path_, value, strerror(-error)));
  now_ = value;
}

}  // namespace lunar::tools
