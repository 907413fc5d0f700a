// SPDX-License-Identifier: Apache-2.0
// What this host offers: the probes that `lunar run` (refusing early) and `lunar doctor`
// (explaining) share. Each probe only looks: nothing on the host is changed, and what it opens it
// closes.
// Threading: free functions; call from one thread. May not be used by runtime/ (it allocates).
#pragma once
#include <cstdint>
#include <string>

namespace lunar::tools {

struct UffdState {
  int error = 0;  // 0: full mode (kernel-mode faults too) is permitted, else errno; EOPNOTSUPP: the
                  // kernel is too old
  bool device_there = false;  // /dev/userfaultfd exists
  int sysctl = -1;            // vm.unprivileged_userfaultfd; -1: not there
};
UffdState probe_userfaultfd();
// Why the pager cannot use it, and the exact command that fixes it ("" when it can).
std::string userfaultfd_lack(const UffdState& state);
std::string userfaultfd_remedy(const UffdState& state);

// Whether this process is in a container, by the marks that engines leave and what they take away.
// Their remedies are flags of the engine's `run`.
struct ContainerState {
  std::string engine;     // "docker", "podman", "kubernetes", ... or "container"; "" outside
  bool filtered = false;  // a system call filter (seccomp) is on; also of systemd's units
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
  bool no_data = false;    // proc, sysfs, ...: holds no files of ours
  bool read_only = false;
  uint64_t free_bytes = 0;  // for this user
};
// 0 or -errno.
int probe_file_system(const std::string& path, FileSystem* out);
// Whether an unlinked O_DIRECT file can be made in `directory`; 0 or -errno. Nothing becomes
// visible there.
int probe_scratch_file(const std::string& directory);

// Where the running program lies; "" when /proc cannot tell.
std::string own_directory();
// liblunar-preload.so, next to the running binary (build tree or installed), absolute; "" and
// *tried otherwise.
std::string find_preload_library(std::string* tried);
// The same for any of our libraries: `in_build` is its path in a build tree, `installed` that in a
// library directory.
std::string find_own_library(const std::string& in_build, const std::string& installed,
                             std::string* tried);

std::string user_name();  // for commands that name the user
// One line of a small file, "" when it cannot be read.
std::string read_line(const std::string& path);

}  // namespace lunar::tools
