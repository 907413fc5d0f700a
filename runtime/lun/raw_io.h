// SPDX-License-Identifier: Apache-2.0
// Blocking I/O on whole ranges of a device, split into commands that it accepts: for metadata and
// headers, not for the data path.
// Threading: any thread, blocking. Must not be used on the fault path.
#pragma once
#include "superpipe/device.h"

namespace lunar {

// Reads or writes all of [offset, offset + bytes) of a raw device. 0 or -errno (-EIO: a short
// count).
[[nodiscard]] int raw_io(Device* raw, Op op, uint64_t offset, void* buffer, uint64_t bytes);
// Writes the range, and returns when it is durable. Does not make earlier writes durable. Uses the
// cheapest way that the device has (Capabilities::fua).
[[nodiscard]] int raw_write_durable(Device* raw, uint64_t offset, const void* buffer,
                                    uint64_t bytes);
[[nodiscard]] int raw_flush(Device* raw);
// Zeroes the range: by a discard if that yields zeros, otherwise by writing.
[[nodiscard]] int raw_zero(Device* raw, uint64_t offset, uint64_t bytes);

}  // namespace lunar
