// SPDX-License-Identifier: Apache-2.0
// The file behind a loop device, as the kernel reports it, also after the file was unlinked.
// Threading: no state; any thread. Does not allocate.
#pragma once
#include <cstdint>

namespace lunar::sys {

struct LoopStatus {
  uint64_t device = 0, inode = 0;  // of the file, as stat reports them
  uint64_t rdev = 0;               // if a block device serves as the file: its number; else 0
  uint64_t offset = 0, limit = 0;  // the bytes of it that are used; limit 0: all from the offset on
};
// fd: the loop device, opened to read. 0; -ENXIO: nothing is attached; -ENOTTY: not a loop device;
// other -errno.
[[nodiscard]] int loop_status(int fd, LoopStatus* out);

}  // namespace lunar::sys
