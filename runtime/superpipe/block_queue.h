// SPDX-License-Identifier: Apache-2.0
// Reads attributes of a block device's request queue from sysfs, by device number (for a partition:
// those of its disk). Threading: no state; any thread. Blocking file reads: for open and probes,
// not for the fault path.
#pragma once
#include <cstdint>

#include "superpipe/device.h"

namespace lunar {

// The number in queue/ATTRIBUTE ("write_zeroes_max_bytes", "io_poll"); -ENOENT if there is none (a
// file system over several devices, an older kernel).
[[nodiscard]] int64_t block_queue_value(uint64_t rdev, const char* attribute);

// What Command::fua costs on the device, according to its cache (queue/write_cache) and whether
// writes can bypass it (queue/fua). kFlush if that is not known.
Fua block_fua(uint64_t rdev);

// Whether the device cannot be written at all (write-protected, or set read-only by blockdev
// --setro or losetup -r).
bool block_read_only(uint64_t rdev);

}  // namespace lunar
