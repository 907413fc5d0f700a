// SPDX-License-Identifier: Apache-2.0
// Reads a block device's request queue from sysfs, by device number (a partition answers for its disk).
// Threading: no state; any thread. Blocking file reads: for open and probes, not for the fault path.
#pragma once
#include <cstdint>

#include "superpipe/device.h"

namespace lunar {

// Number in queue/ATTRIBUTE ("write_zeroes_max_bytes", "io_poll"); -ENOENT where there is none (a file system over
// several devices, an older kernel).
[[nodiscard]] int64_t block_queue_value(uint64_t rdev, const char* attribute);

// What Command::fua costs on it, by its cache (queue/write_cache) and whether writes can pass that (queue/fua). kFlush
// where that is not known.
Fua block_fua(uint64_t rdev);

// Whether the device may not be written at all (write-protected, or made so by blockdev --setro, losetup -r).
bool block_read_only(uint64_t rdev);

}  // namespace lunar
