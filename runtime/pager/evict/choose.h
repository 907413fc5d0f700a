// SPDX-License-Identifier: Apache-2.0
// Chooses what to evict, and locks it: GCLOCK in address order, so that neighbours are evicted,
// written and later read together. The hand takes a heat from a resident page that has one, and the
// page itself if it has none.
//
// The only sign of use is the next fault; so heat depends on how soon it came, in DRAMs-full
// evicted meanwhile (refault distance, as in Linux' mm/workingset.c): within 1/4: 6, 1/2: 3, 1: 1,
// later: 0. From the frame: 4. First touch 1, read-ahead 0, LUNAR_HOT 7. Pages that a reader of a
// LUNAR_SEQUENTIAL range has left behind come before the clock.
#pragma once
#include <atomic>
#include <cstdint>

#include "pager/evict/batch.h"
#include "sys/thread.h"

namespace lunar {

constexpr int64_t kTicksPerBudget = 16;  // of PagerState::eviction_time

// Heat of a page that comes back from the LUN. asked: by an explicit call, which means that the
// page is needed soon.
inline unsigned refault_heat(PageWord evicted, uint16_t now, bool asked) {
  uint16_t age = static_cast<uint16_t>(now - evicted.epoch());
  if (age < kTicksPerBudget / 4) return 6;
  if (age < kTicksPerBudget / 2) return 3;
  return age < kTicksPerBudget || asked ? 1 : 0;
}

class Chooser {
 public:
  explicit Chooser(PagerState& state) : state_(state) {}
  void reset();  // in a forked child

  // A new batch, of at most `want` pages. False: it is empty.
  bool choose(Batch& batch, unsigned want);
  // The same of [*first, end) of a region, whatever the heat. *first is advanced.
  bool choose_range(Batch& batch, unsigned want, Region* region, uint64_t* first, uint64_t end);
  // A sequential reader has reached `page`. Any thread; short.
  void leave_behind(const Region& region, PageIndex page);

 private:
  struct Behind {
    char* begin;  // not evicted yet, up to end
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
  unsigned behind_next_ = 0;  // the oldest: taken first, and replaced
  std::atomic<bool> has_behind_{false};
};

}  // namespace lunar
