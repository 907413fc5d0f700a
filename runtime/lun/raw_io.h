// SPDX-License-Identifier: Apache-2.0
// Blocking I/O of whole ranges on a device, cut into commands that it takes: for metadata and headers, not for the data
// path.
// Threading: any thread, blocking. May not be used on the fault path.
#pragma once
#include "superpipe/device.h"

namespace lunar {

// All of [offset, offset + bytes) of a raw device. 0 or -errno (-EIO: a short count).
[[nodiscard]] int raw_io(Device* raw, Op op, uint64_t offset, void* buffer, uint64_t bytes);
// Writes it and returns when it is durable; does not cover earlier writes. The cheapest way the device has
// (Capabilities::fua).
[[nodiscard]] int raw_write_durable(Device* raw, uint64_t offset, const void* buffer, uint64_t bytes);
[[nodiscard]] int raw_flush(Device* raw);
// discards where that gives zeros, else writes
[[nodiscard]] int raw_zero(Device* raw, uint64_t offset, uint64_t bytes);

}  // namespace lunar
