// SPDX-License-Identifier: Apache-2.0
// LeafPool: the leaves of all page tables, for tables.h.
//
// A segment's leaves are free or used (a bit each), and its memory is charged by *blocks* (the
// leaves in one page of DRAM). Leaves of charged blocks are given out first, in the order of
// addresses. A leaf that was taken out of its directory waits in a queue until the scopes of that
// time have ended. Threading: any thread; all state is under the lock.
#pragma once
#include <cstdint>

#include "pager/page/page_table.h"
#include "sys/mem.h"
#include "sys/thread.h"

namespace lunar {

struct PagerState;
struct Region;

constexpr uint32_t kWords = kSegmentLeaves / 64;

inline uint32_t block_leaves() { return static_cast<uint32_t>(sys::page_bytes() / sizeof(Leaf)); }

// A bit for each leaf of a segment.
struct Bits {
  uint64_t words[kWords] = {};
  bool get(uint32_t i) const { return (words[i / 64] >> i % 64 & 1) != 0; }
  void set(uint32_t i, bool to) {
    const uint64_t bit = uint64_t{1} << i % 64;
    words[i / 64] = to ? words[i / 64] | bit : words[i / 64] & ~bit;
  }
  void set_block(uint32_t first, bool to) {
    for (uint32_t i = first; i < first + block_leaves(); ++i) set(i, to);
  }
  bool block_is_clear(uint32_t first) const {
    uint64_t any = 0;
    if (block_leaves() >= 64)
      for (uint32_t i = first; i < first + block_leaves(); i += 64) any |= words[i / 64];
    else
      any = words[first / 64] >> first % 64 & ((uint64_t{1} << block_leaves()) - 1);
    return any == 0;
  }
};

struct SegmentBits {
  Bits used, charged, loose;
};

class LeafPool {
 public:
  int add(PagerState& state, Region& region, uint64_t group, int64_t keep_free);
  void retire(PagerState& state, Region& region, uint64_t group, bool must);
  bool trim(PagerState& state);
  void end_region(PagerState& state, Region& region);
  void enter_child(PagerState& state);
  void go_live(PagerState& state);
  int64_t pages() const { return charged_blocks_ + charged_spans_; }
  int64_t loose_units() const { return loose_units_; }

 private:
  struct Place {
    uint32_t number = 0;  // 0: none
    bool fresh = false;   // its block is not charged
  };
  struct Loose {  // was not committed (table_promise.h)
    bool leaf = false, span = false;
  };
  Place find(bool fresh);
  bool grow();
  int charge(PagerState& state, const Region& region, uint64_t page, bool fresh, int64_t keep_free,
             Loose* loose);
  void mark_used(Place place, bool loose);
  int take(PagerState& state, Region& region, uint64_t group, int64_t keep_free, bool* must_grow);
  void use_again();
  void free_leaf(uint32_t number);
  int64_t trim_blocks();
  int64_t trim_spans(PagerState& state);
  void change_loose(PagerState& state, int64_t units);
  SegmentBits& bits_of(uint32_t number) { return *bits_[number / kSegmentLeaves]; }
  static Leaf& leaf_at(uint32_t number) {
    return g_leaf_segments[number / kSegmentLeaves].load(
        std::memory_order_relaxed)[number % kSegmentLeaves];
  }

  sys::SpinLock lock_;
  SegmentBits* bits_[kSegmentsMax] = {};
  uint32_t segments_ = 0;
  // words of bits below which no leaf is free in a charged block, or in one that is not
  uint32_t low_charged_ = 0, low_fresh_ = 0;
  int64_t free_charged_ = 0;  // free leaves in charged blocks
  int64_t charged_blocks_ = 0, charged_spans_ = 0;
  uint32_t empty_blocks_ = 0, empty_spans_ = 0;  // of these
  // retired leaves: numbers + 1, linked through their hashes
  uint32_t queue_first_ = 0, queue_last_ = 0, pending_ = 0;
  int64_t loose_units_ = 0;
  bool live_ = false;
};

}  // namespace lunar
