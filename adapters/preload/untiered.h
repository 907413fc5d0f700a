// SPDX-License-Identifier: Apache-2.0
// Counts anonymous memory that Lunar does not tier: raw mmap, brk, small maps, stacks, written
// pages of private file mappings. See untiered.cpp.
#pragma once
#include <cstddef>
#include <cstdint>

namespace lunar::preload {

struct UntieredMemory {  // bytes in DRAM now
  uint64_t tiered_bytes = 0;
  uint64_t brk_bytes = 0, map_bytes = 0, file_bytes = 0;
  uint64_t outside_bytes() const { return brk_bytes + map_bytes + file_bytes; }
};

// 0, or -errno without /proc. Allocates nothing.
[[nodiscard]] int untiered_memory(UntieredMemory* out);
// One line, for --stats and the log.
void untiered_describe(const UntieredMemory& memory, char* out, size_t size);

}  // namespace lunar::preload
