// SPDX-License-Identifier: Apache-2.0
// A private memory cgroup, version 1 or 2: made with a limit, entered by children, asked for its
// peak, removed.
//
//   v1: MOUNT/NAME/memory.limit_in_bytes, memory.memsw.limit_in_bytes (memory + swap),
//       memory.max_usage_in_bytes
//   v2: MOUNT/NAME/memory.max, memory.swap.max, memory.peak (5.19+)
//
// Threading: one thread per object; the counters may be read from any thread.
#pragma once
#include <sys/types.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace lunar::tools {

// The memory controller of this machine.
struct CgroupPlace {
  int version = 0;      // 1, 2, or 0: none
  std::string mount;    // the directory for groups
  std::string why_not;  // one line if version is 0
};
CgroupPlace find_cgroup_place();
// The value in a line "name value" (memory.events, memory.oom_control); 0 if there is none.
uint64_t parse_counter(std::string_view text, std::string_view name);

class MemoryCgroup {
 public:
  // Makes MOUNT/name. swap: its pages may be swapped out. Throws std::runtime_error: what, where,
  // how to fix.
  MemoryCgroup(const CgroupPlace& place, const std::string& name, uint64_t limit_bytes, bool swap);
  ~MemoryCgroup();  // kills the processes in it, and removes it
  MemoryCgroup(const MemoryCgroup&) = delete;
  MemoryCgroup& operator=(const MemoryCgroup&) = delete;

  const std::string& directory() const { return directory_; }
  // A child writes "0" to this path before its exec.
  std::string procs_path() const { return directory_ + "/cgroup.procs"; }
  uint64_t usage_bytes() const;
  // If the kernel has no peak: the highest result of usage_bytes() so far.
  uint64_t peak_bytes() const;
  uint64_t oom_kills() const;

  // Kills every process in the group, waits until it is empty, and removes it. 0 (also if there is
  // no such group) or -errno.
  static int remove(const std::string& directory);

 private:
  CgroupPlace place_;
  std::string directory_;
  mutable uint64_t sampled_peak_ = 0;
};

}  // namespace lunar::tools
