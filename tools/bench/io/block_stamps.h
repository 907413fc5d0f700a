// SPDX-License-Identifier: Apache-2.0
// The stamps in a block, which check Lunar's reads, and claims of blocks.
//
//   word 0, the middle one and the last    tag(unit, word) in the upper half | version in the lower
//                                          half
//   all others                             noise from the writer's buffer
//
// An operation claims a unit at its start and releases it at its end, so that no other operation
// reads or writes the unit meanwhile: a read must find exactly the last version written, in all
// three places. An operation that finds a unit claimed takes another one.
// Threading: any thread; a unit's claim is one atomic word.
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>

#include "tools/bench/random.h"

namespace lunar::tools {

constexpr size_t kBlockBytes = 4096;

class BlockStamps {
 public:
  BlockStamps(uint64_t seed, uint64_t units)
      : seed_(mix64(seed)), units_(units), states_(new std::atomic<uint32_t>[units] {}) {}

  // A random unclaimed unit. pre: fewer claims than units.
  uint64_t claim(Random& random) {
    for (;;) {
      const uint64_t unit = random.below(units_);
      uint32_t state = states_[unit].load(std::memory_order_relaxed);
      if (!(state & kBusy) &&
          states_[unit].compare_exchange_strong(state, state | kBusy, std::memory_order_acquire)) {
        return unit;
      }
    }
  }
  void release(uint64_t unit) { states_[unit].fetch_and(~kBusy, std::memory_order_release); }

  // Puts a new version into `buffer`, which the caller then writes. pre: the unit is claimed.
  void stamp(uint64_t unit, void* buffer) {
    const uint32_t state = states_[unit].load(std::memory_order_relaxed);
    const uint32_t next = (state & kBusy) | ((state + 1) & ~kBusy);
    states_[unit].store(next, std::memory_order_relaxed);
    auto* words = static_cast<uint64_t*>(buffer);
    for (const size_t at : kPlaces) words[at] = word(unit, at, next & ~kBusy);
  }
  // True if `buffer` has the stamps of the last write to the unit.
  bool check(uint64_t unit, const void* buffer) const {
    const uint32_t version = states_[unit].load(std::memory_order_relaxed) & ~kBusy;
    const auto* words = static_cast<const uint64_t*>(buffer);
    for (const size_t at : kPlaces) {
      if (words[at] != word(unit, at, version)) return false;
    }
    return true;
  }

 private:
  static constexpr uint32_t kBusy = 1u << 31;
  static constexpr size_t kPlaces[] = {0, kBlockBytes / 16, kBlockBytes / 8 - 1};
  uint64_t word(uint64_t unit, size_t at, uint32_t version) const {
    return (mix64(seed_ ^ (unit * 65536 + at)) & ~uint64_t{UINT32_MAX}) | version;
  }

  uint64_t seed_, units_;
  std::unique_ptr<std::atomic<uint32_t>[]> states_;
};

}  // namespace lunar::tools
