// SPDX-License-Identifier: Apache-2.0
// The DRAM that a resolver reads into, until the pages are installed.
// Threading: the resolver's thread.
#pragma once
#include <algorithm>
#include <cstdint>

#include "sys/arena.h"
#include "sys/mem.h"
#include "sys/numa.h"

namespace lunar {

class ReadWindow {
 public:
  static constexpr unsigned kPagesMax = 512;

  // node: the NUMA node of its memory; -1: any. False: no memory.
  [[nodiscard]] bool map(unsigned pages, int node) {
    pages_ = pages;
    memory_ = static_cast<char*>(map_private(pages * sys::page_bytes(), ForkPolicy::kDontFork));
    if (memory_ == nullptr) return false;
    if (node >= 0) sys::bind_to_node(memory_, pages * sys::page_bytes(), node);
    for (uint64_t& word : used_) word = ~uint64_t{0};
    for (unsigned i = 0; i < pages; ++i) used_[i / 64] &= ~(uint64_t{1} << (i % 64));
    return true;
  }
  void unmap() { unmap_private(memory_, pages_ * sys::page_bytes()); }
  unsigned pages() const { return pages_; }
  char* at(unsigned page) const { return memory_ + page * sys::page_bytes(); }

  // Takes `pages` adjacent free pages, at most 64. Returns the first one's number, or -1.
  int take(unsigned pages) {
    for (unsigned w = 0; w < (pages_ + 63) / 64; ++w) {
      uint64_t free = ~used_[w];
      uint64_t starts = free;
      for (unsigned have = 1; have < pages && starts != 0;) {
        const unsigned step = std::min(have, pages - have);
        starts &= starts >> step;
        have += step;
      }
      if (starts == 0) continue;
      unsigned bit = static_cast<unsigned>(__builtin_ctzll(starts));
      uint64_t mask = (pages == 64 ? ~uint64_t{0} : (uint64_t{1} << pages) - 1) << bit;
      used_[w] |= mask;
      return static_cast<int>(w * 64 + bit);
    }
    return -1;
  }
  void give(unsigned first, unsigned pages) {
    uint64_t mask = (pages == 64 ? ~uint64_t{0} : (uint64_t{1} << pages) - 1) << (first % 64);
    used_[first / 64] &= ~mask;
  }

 private:
  char* memory_ = nullptr;
  unsigned pages_ = 0;
  uint64_t used_[kPagesMax / 64] = {};  // a bit for each page
};

}  // namespace lunar
