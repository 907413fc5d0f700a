// SPDX-License-Identifier: Apache-2.0
// The file behind a loop device, as the kernel reports it: also where the file has no name any more.
// Threading: no state; any thread. Does not allocate.
#pragma once
#include <cstdint>

namespace lunar::sys {

struct LoopStatus {
  uint64_t device = 0, inode = 0;  // of the file's status, as stat has them
  uint64_t rdev = 0;               // of a block device that serves as the file; else 0
  uint64_t offset = 0, limit = 0;  // the bytes of it that are used; limit 0: all behind the offset
};
// fd: the loop device, opened to read. 0; -ENXIO: nothing is attached; -errno (-ENOTTY: no loop device).
[[nodiscard]] int loop_status(int fd, LoopStatus* out);

}  // namespace lunar::sys
