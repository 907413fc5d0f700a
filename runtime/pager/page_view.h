// SPDX-License-Identifier: Apache-2.0
// The view of pages for the rest of Lunar: whether a touch would wait, and noting that a page is in
// use. An answer may be stale. After the page is freed it may describe another page (page_table.h).
// Threading: any thread, even if the page's region ends meanwhile; nothing here waits or allocates.
#pragma once
#include <cstddef>
#include <cstdint>

#include "pager/page/page_word.h"
#include "pager/page/region.h"
#include "pager/pager.h"
#include "sys/mem.h"

namespace lunar {

class PageView {
 public:
  PageView() = default;
  explicit PageView(AtomicPageWord* word) : word_(word) {}
  explicit operator bool() const { return word_ != nullptr; }
  bool operator==(const PageView&) const = default;

  bool resident() const { return look().state() == PageState::kResident; }
  // A touch of the page would wait, at least for a copy: it is evicted, in a frame, or busy.
  bool cold() const {
    const PageState state = look().state();
    return state == PageState::kEvicted || state == PageState::kInFrame ||
           state == PageState::kBusy;
  }
  bool busy() const { return look().state() == PageState::kBusy; }  // some thread has locked it
  // For an evicted page a value that changes when the page is brought in, even if it is evicted
  // again. Otherwise 0.
  uint64_t evicted_mark() const {
    const PageWord seen = look();
    return seen.state() == PageState::kEvicted ? seen.raw : 0;
  }
  bool is_still(uint64_t evicted_mark) const { return look().raw == evicted_mark; }

  // Notes that the page is in use: the clock hand skips it at least once.
  void note_use() const { warm(kHeatFault); }
  // Makes the clock hand skip the page once more than it would now.
  void note_another_use() const {
    if (const unsigned heat = look().heat(); heat < PageWord::kHeatMax) warm(heat + 1);
  }

 private:
  PageWord look() const {
    const PageWord seen = word_->load(std::memory_order_relaxed);
    return seen.retired() ? PageWord{} : seen;
  }
  void warm(unsigned heat) const {
    PageWord seen = look();
    if (seen.heat() >= heat || seen.state() != PageState::kResident) return;
    (void)word_->compare_exchange_strong(seen, seen.with_heat(heat), std::memory_order_relaxed);
  }
  AtomicPageWord* word_ = nullptr;
};

// The pages that contain `bytes` bytes from `address` on, up to the end of the region; outside of
// regions there are none. bytes: not 0.
struct PageSpan {
  char* begin = nullptr;  // address of the first page
  uint64_t count = 0;
  const Region* region = nullptr;
  uint64_t first = 0;
  PageView at(uint64_t i) const {
    static constinit AtomicPageWord empty;  // for pages that have no word
    AtomicPageWord* word = region->table.find(first + i);
    return PageView(word != nullptr ? word : &empty);
  }

  static PageSpan of(const void* address, size_t bytes) {
    const Region* region = region_find(address);
    if (region == nullptr) return {};
    const uint64_t page = sys::page_bytes(),
                   start = static_cast<uint64_t>(static_cast<const char*>(address) - region->base);
    const uint64_t first = start / page, last = (start + bytes - 1) / page;
    return {region->base + first * page, (last < region->pages ? last + 1 : region->pages) - first,
            region, first};
  }
};

// The page of an address; false outside of regions.
inline PageView page_view(const void* address) {
  const PageSpan span = PageSpan::of(address, 1);
  return span.count == 0 ? PageView() : span.at(0);
}

}  // namespace lunar
