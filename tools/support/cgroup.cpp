// SPDX-License-Identifier: Apache-2.0
// See cgroup.h.
#include "tools/support/cgroup.h"

#include <fmt/format.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <sstream>
#include <stdexcept>

#include "sys/usable_memory.h"
#include "tools/support/text_file.h"

namespace lunar::tools {

namespace {
bool has_word(std::string_view text, std::string_view word, char separator) {
  std::istringstream words{std::string(text)};
  for (std::string one; std::getline(words, one, separator);) {
    if (trimmed(one) == word) return true;
  }
  return false;
}

void must_write(const std::string& path, const std::string& text) {
  if (const int error = write_text(path, text); error != 0) {
    throw std::runtime_error(
        fmt::format("writing {} to {} failed: {}", text, path, strerror(-error)));
  }
}

std::vector<pid_t> members(const std::string& directory) {
  std::vector<pid_t> pids;
  std::istringstream words{read_text(directory + "/cgroup.procs").value_or("")};
  for (pid_t pid; words >> pid;) pids.push_back(pid);
  return pids;
}
}  // namespace

CgroupPlace find_cgroup_place() {
  const sys::MemoryHierarchy found = sys::memory_hierarchy();
  if (found.version != 0) return {found.version, found.mount, ""};
  return {0, "",
          "no mounted cgroup hierarchy has the memory controller (boot with cgroup_enable=memory, "
          "or mount -t cgroup2 none /sys/fs/cgroup)"};
}

uint64_t parse_counter(std::string_view text, std::string_view name) {
  std::istringstream words{std::string(text)};
  std::string key;
  for (uint64_t value; words >> key >> value;) {
    if (key == name) return value;
  }
  return 0;
}

MemoryCgroup::MemoryCgroup(const CgroupPlace& place, const std::string& name, uint64_t limit_bytes,
                           bool swap)
    : place_(place), directory_(place.mount + "/" + name) {
  if (place.version == 0) throw std::runtime_error(place.why_not);
  if (place.version == 2 &&
      !has_word(read_text(place.mount + "/cgroup.subtree_control").value_or(""), "memory", ' ')) {
    // It stays on, which is harmless: it lets children of the root have limits, as on systemd
    // hosts.
    must_write(place.mount + "/cgroup.subtree_control", "+memory");
  }
  if (mkdir(directory_.c_str(), 0755) != 0 && errno != EEXIST) {
    throw std::runtime_error(fmt::format(
        "making the memory cgroup {} failed: {} (run as root: sudo)", directory_, strerror(errno)));
  }
  try {
    const std::string limit = fmt::format("{}", limit_bytes);
    if (place.version == 1) {
      must_write(directory_ + "/memory.limit_in_bytes", limit);
      if (!swap) {
        // Without swap accounting (swapaccount=0) there is no memsw file, only swappiness.
        if (access((directory_ + "/memory.memsw.limit_in_bytes").c_str(), F_OK) == 0) {
          must_write(directory_ + "/memory.memsw.limit_in_bytes", limit);
        }
        must_write(directory_ + "/memory.swappiness", "0");
      }
    } else {
      must_write(directory_ + "/memory.max", limit);
      if (!swap && access((directory_ + "/memory.swap.max").c_str(), F_OK) == 0) {
        must_write(directory_ + "/memory.swap.max", "0");
      }
    }
  } catch (...) {
    rmdir(directory_.c_str());
    throw;
  }
}

MemoryCgroup::~MemoryCgroup() { (void)remove(directory_); }

uint64_t MemoryCgroup::usage_bytes() const {
  const auto text =
      read_text(directory_ + (place_.version == 1 ? "/memory.usage_in_bytes" : "/memory.current"));
  const uint64_t now = text ? strtoull(text->c_str(), nullptr, 10) : 0;
  if (now > sampled_peak_) sampled_peak_ = now;
  return now;
}

uint64_t MemoryCgroup::peak_bytes() const {
  const auto text =
      read_text(directory_ + (place_.version == 1 ? "/memory.max_usage_in_bytes" : "/memory.peak"));
  return text ? strtoull(text->c_str(), nullptr, 10) : sampled_peak_;
}

uint64_t MemoryCgroup::oom_kills() const {
  const auto text =
      read_text(directory_ + (place_.version == 1 ? "/memory.oom_control" : "/memory.events"));
  return text ? parse_counter(*text, "oom_kill") : 0;
}

int MemoryCgroup::remove(const std::string& directory) {
  for (int attempt = 0; attempt < 500; ++attempt) {
    if (rmdir(directory.c_str()) == 0 || errno == ENOENT) return 0;
    if (errno != EBUSY) return -errno;
    for (const pid_t pid : members(directory)) kill(pid, SIGKILL);
    usleep(10'000);
  }
  return -EBUSY;
}

}  // namespace lunar::tools
