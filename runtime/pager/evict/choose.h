// SPDX-License-Identifier: Apache-2.0
// Chooses pages to evict and locks them: GCLOCK in address order, so that neighbours are evicted,
// written and later read together. The clock hand lowers the heat of a resident page that has some,
// and takes a page that has none.
//
// The only sign of use is the next fault. So the heat of a page that comes back depends on how much
// of this process' DRAM was evicted meanwhile (refault distance, as in Linux' mm/workingset.c):
//
//   less than 1/4 | 1/2 | all of it | more | from its frame | first touch | read-ahead | LUNAR_HOT
//               6 |   3 |         1 |    0 |              4 |           1 |          0 |         7
//
// Pages that a reader of a LUNAR_SEQUENTIAL range has left behind are taken before the clock's.
#pragma once
#include <atomic>
#include <cstdint>

#include "pager/evict/batch.h"
#include "sys/thread.h"

namespace lunar {

constexpr int64_t kTicksPerBudget = 16;  // of PagerState::eviction_time

// Heat of a page that comes back from the LUN. asked: an explicit call brings it in, so it is
// needed soon.
inline unsigned refault_heat(PageWord evicted, uint16_t now, bool asked) {
  uint16_t age = static_cast<uint16_t>(now - evicted.eviction_time());
  if (age < kTicksPerBudget / 4) return 6;
  if (age < kTicksPerBudget / 2) return 3;
  return age < kTicksPerBudget || asked ? 1 : 0;
}

class Chooser {
 public:
  explicit Chooser(PagerState& state) : state_(state) {}
  void reset();  // in a forked child

  // Fills a new batch with at most `want` pages. False: it is empty.
  bool choose(Batch& batch, unsigned want);
  // The same from [*first, end) of a region, whatever the heat. Advances *first.
  bool choose_range(Batch& batch, unsigned want, Region* region, uint64_t* first, uint64_t end);
  // A sequential reader has reached `page`. Any thread; short.
  void leave_behind(const Region& region, PageIndex page);

 private:
  struct Behind {
    char* begin;  // [begin, end) is not evicted yet
    char* end;
  };
  static constexpr unsigned kBehindMax = 16;

  void choose_behind(Batch& batch, unsigned want);
  void choose_clock(Batch& batch, unsigned want);
  uint64_t sweep(Batch& batch, unsigned want, Region* region);
  char* next_behind();

  PagerState& state_;
  unsigned hand_region_ = 0;
  uint64_t hand_page_ = 0;
  sys::SpinLock behind_lock_;
  Behind behind_[kBehindMax] = {};
  // the oldest entry: its pages are taken first, and it is replaced first
  unsigned behind_next_ = 0;
  std::atomic<bool> has_behind_{false};
};

}  // namespace lunar
