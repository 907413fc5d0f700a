// SPDX-License-Identifier: Apache-2.0
// How much memory this process may still use. The rule: the least of
//   - MemAvailable of the machine, and
//   - for the process's memory cgroup, and each above it that has a limit: the limit, less the
//     usage, plus the page cache in that usage (active_file and inactive_file of memory.stat),
//     which the kernel can take back.
// Swap and memory.high do not count. The memory controller is in the version 1 hierarchy, where one
// is mounted that has it, else in version 2's.
// Threading: any thread. Reads files of /proc and /sys, which blocks: not on the fault path.
// Allocates nothing.
#pragma once
#include <cstddef>
#include <cstdint>

namespace lunar::sys {

struct MemoryHierarchy {
  int version = 0;       // 0: no mounted hierarchy has the memory controller
  char mount[256] = "";  // where it is mounted
  char root[256] = "";   // the cgroup that is seen there: "/" but in some containers
};
// `process`: the directory in /proc that is asked; a test has one of its own.
MemoryHierarchy memory_hierarchy(const char* process = "/proc/thread-self");

struct UsableMemory {
  uint64_t bytes = 0;  // 0: nothing is left, or /proc does not tell
  int cgroup_version = 0;
  // The least limit on the way up (UINT64_MAX: there is none), the file that has it, and the usage
  // of that group without page cache.
  uint64_t limit_bytes = UINT64_MAX, used_bytes = 0;
  char limit_file[800] = "";
};
UsableMemory usable_memory(const char* process = "/proc/thread-self");

}  // namespace lunar::sys
