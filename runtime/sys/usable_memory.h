// SPDX-License-Identifier: Apache-2.0
// How much memory this process may still use. The rule: the least of
//   - MemAvailable of the machine, and
//   - for the process' memory cgroup, and each cgroup above it with a limit: the limit, minus the
//     usage, plus the page cache in that usage (active_file and inactive_file of memory.stat),
//     which the kernel can reclaim.
// Swap and memory.high do not count. The memory controller is in a version 1 hierarchy if a mounted
// one has it, otherwise in the version 2 hierarchy.
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
// `process`: the directory in /proc to read; a test passes its own.
MemoryHierarchy memory_hierarchy(const char* process = "/proc/thread-self");

struct UsableMemory {
  uint64_t bytes = 0;  // 0: nothing is left, or /proc does not tell
  int cgroup_version = 0;
  // The least limit of the cgroups (UINT64_MAX: none has one), its file, and that group's usage
  // without page cache.
  uint64_t limit_bytes = UINT64_MAX, used_bytes = 0;
  char limit_file[800] = "";
};
UsableMemory usable_memory(const char* process = "/proc/thread-self");

}  // namespace lunar::sys
