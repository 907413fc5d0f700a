// SPDX-License-Identifier: Apache-2.0
// ExtentMap: the places of a virtual LUN's bytes on its base device, and the readers that use them
// now.
//
// Readers (the data path) enter a *phase* (sys/phases.h), check the limit, translate, do their I/O
// and leave. Growing appends to the map and raises the limit. Shrinking lowers the limit, then
// drains the phases; only then may the extents go to another LUN.
//
// Threading: limit and run: any thread, lock-free; phases(): see sys/phases.h. The rest: one thread
// at a time.
#pragma once
#include <algorithm>
#include <atomic>
#include <cstdint>

#include "sys/phases.h"

namespace lunar {

class ExtentMap {
 public:
  static constexpr unsigned kSharedCounts = 8;

  void init(std::atomic<uint32_t>* map, uint64_t data_offset, uint64_t extent_bytes) {
    map_ = map;
    data_offset_ = data_offset;
    extent_bytes_ = extent_bytes;
    shift_ = static_cast<unsigned>(__builtin_ctzll(extent_bytes));
  }
  // Has one count per context, and kSharedCounts for callers of transfer().
  sys::Phases& phases() { return phases_; }
  uint64_t limit() const { return limit_.load(std::memory_order_seq_cst); }
  void set_limit(uint64_t bytes) { limit_.store(bytes, std::memory_order_seq_cst); }

  // Returns the base offset of `offset`; *length: how many bytes (up to `want`) are contiguous
  // there.
  // pre: offset + want <= limit()
  uint64_t run(uint64_t offset, uint64_t want, uint64_t* length) const {
    uint64_t position = offset >> shift_;
    const uint64_t within = offset & (extent_bytes_ - 1);
    uint32_t extent = map_[position].load(std::memory_order_relaxed);
    const uint64_t base = data_offset_ + (uint64_t{extent} << shift_) + within;
    uint64_t have = extent_bytes_ - within;
    while (have < want) {
      const uint32_t next = map_[++position].load(std::memory_order_relaxed);
      if (next != extent + 1) break;
      extent = next;
      have += extent_bytes_;
    }
    *length = std::min(have, want);
    return base;
  }
  std::atomic<uint32_t>* places() const { return map_; }

 private:
  std::atomic<uint32_t>* map_ = nullptr;
  uint64_t data_offset_ = 0, extent_bytes_ = 1;
  unsigned shift_ = 0;
  std::atomic<uint64_t> limit_{0};
  sys::Phases phases_;
};

}  // namespace lunar
