// SPDX-License-Identifier: Apache-2.0
// Probes of this host for `lunar run` (which refuses early) and `lunar doctor` (which explains).
// They change nothing on the host.
// Threading: free functions; call from one thread.
#pragma once
#include <cstdint>
#include <string>

namespace lunar::tools {

struct UffdState {
  // 0: full mode (also for kernel-mode faults) is permitted; else errno. EOPNOTSUPP: the kernel is
  // too old.
  int error = 0;
  bool device_there = false;  // /dev/userfaultfd exists
  int sysctl = -1;            // vm.unprivileged_userfaultfd; -1: there is none
};
UffdState probe_userfaultfd();
// The reason why the pager cannot use userfaultfd, and the command that fixes it; "" if it can.
std::string userfaultfd_lack(const UffdState& state);
std::string userfaultfd_remedy(const UffdState& state);

// The container of this process, recognised by the marks of the engine and by restrictions.
// Remedies in a container are flags of the engine's `run`.
struct ContainerState {
  std::string engine;     // "docker", "podman", "kubernetes", ... or "container"; "" outside
  bool filtered = false;  // a system call filter (seccomp) is on, as also for systemd units
  bool inside() const { return !engine.empty(); }
};
ContainerState probe_container();
std::string memlock_remedy();  // for RLIMIT_MEMLOCK

int probe_io_uring();  // 0 or -errno
// process_madvise(DONTNEED) on this process (6.14+): 0 or -errno (-EPERM: a filter).
int probe_discard_vector();

struct FileSystem {
  std::string kind;        // "ext4", "tmpfs", ... or its magic in hex
  bool in_memory = false;  // tmpfs, ramfs, hugetlbfs
  bool no_data = false;    // proc, sysfs, ...: cannot hold data
  bool read_only = false;
  uint64_t free_bytes = 0;  // for this user
};
// 0 or -errno.
int probe_file_system(const std::string& path, FileSystem* out);
// Makes an unnamed O_DIRECT file in `directory`, and closes it. 0 or -errno.
int probe_scratch_file(const std::string& directory);

// The directory of the running program; "" if /proc cannot be read.
std::string own_directory();
// The absolute path of liblunar-preload.so, which is found relative to the running program (build
// tree or installed); "" with *tried if it is not there.
std::string find_preload_library(std::string* tried);
// The same for any library of Lunar: `in_build` is its path in a build tree, `installed` its path
// in a library directory.
std::string find_own_library(const std::string& in_build, const std::string& installed,
                             std::string* tried);

std::string user_name();  // for commands that name the user
// The first line of a small file; "" if it cannot be read.
std::string read_line(const std::string& path);

}  // namespace lunar::tools
