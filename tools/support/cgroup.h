// SPDX-License-Identifier: Apache-2.0
// A memory cgroup of one's own, version 1 or 2: made with a limit, entered by children, asked for
// its peak, removed.
//
//   v1: MOUNT/NAME/memory.limit_in_bytes, memory.memsw.limit_in_bytes (memory + swap),
//   memory.max_usage_in_bytes v2: MOUNT/NAME/memory.max, memory.swap.max, memory.peak (5.19+)
//
// Threading: one thread an object; the counters may be read from any. May not be used by runtime/
// (it allocates).
#pragma once
#include <sys/types.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace lunar::tools {

// Where this machine keeps its memory controller.
struct CgroupPlace {
  int version = 0;      // 1, 2, or 0: none
  std::string mount;    // directory under which groups are made
  std::string why_not;  // one line when version is 0
};
CgroupPlace find_cgroup_place();
// Values of "name value" lines (memory.events, memory.oom_control); 0 when missing.
uint64_t parse_counter(std::string_view text, std::string_view name);

class MemoryCgroup {
 public:
  // Makes MOUNT/name. swap false: pages may not leave for swap. Throws std::runtime_error: what,
  // where, how to fix.
  MemoryCgroup(const CgroupPlace& place, const std::string& name, uint64_t limit_bytes, bool swap);
  ~MemoryCgroup();  // kills what is left in it, and removes it
  MemoryCgroup(const MemoryCgroup&) = delete;
  MemoryCgroup& operator=(const MemoryCgroup&) = delete;

  const std::string& directory() const { return directory_; }
  // A child writes "0" to this path before its exec.
  std::string procs_path() const { return directory_ + "/cgroup.procs"; }
  uint64_t usage_bytes() const;
  uint64_t peak_bytes()
      const;  // sampled by the caller's calls of usage_bytes() where the kernel has no peak
  uint64_t oom_kills() const;

  // Kills every process in the group, waits for it to be empty, removes it. 0 or -errno; -ENOENT is
  // success.
  static int remove(const std::string& directory);

 private:
  CgroupPlace place_;
  std::string directory_;
  mutable uint64_t sampled_peak_ = 0;
};

}  // namespace lunar::tools
