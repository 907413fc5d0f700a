// SPDX-License-Identifier: Apache-2.0
// Evictor: the thread that keeps DRAM free (README.md). It cannot be a fault handler, because its
// own system calls may fault.
#pragma once
#include <atomic>
#include <cstdint>

#include "pager/evict/choose.h"
#include "pager/evict/take.h"
#include "pager/evict/write.h"

namespace lunar {

class Evictor {
 public:
  // state, frames: those of the process, which outlive the evictor. open() makes the frames.
  Evictor(PagerState& state, FramePool& frames)
      : state_(state),
        frames_(frames),
        chooser_(state),
        taker_(state, frames),
        writer_(state, frames) {}
  // Makes frames, pipe and staging area. pre: they are charged to the account. 0 or -errno.
  [[nodiscard]] int open(uint32_t frame_count);
  [[nodiscard]] int start();  // its thread
  // In a forked child, before open(): gives back the memory of its parent's context.
  void forget_parents() {
    writer_.forget_parents();
    taker_.forget_descriptors();
  }
  void add_descriptors(int* out, unsigned* count) const { taker_.add_descriptors(out, count); }
  void close_descriptors() const { taker_.close_descriptors(); }
  void give_up() {  // if start() will not be called
    taker_.close_descriptors();
    taker_.forget_descriptors();
  }
  void wake_if_low();  // wakes it if fewer pages are free than low water
  uint32_t low_water() const { return low_water_; }

  // A sequential reader has reached `page` (LUNAR_SEQUENTIAL): when DRAM is short, the pages before
  // it are evicted first. Any thread; short.
  void leave_behind(const Region& region, PageIndex page) { chooser_.leave_behind(region, page); }

  // Between pause() and resume() no eviction runs and no write is in flight (for a fork). pause()
  // waits until the evictor rests.
  void pause();
  void resume();

  // Evicts the resident pages of [first, end) of the region now. Waits. Returns the number of pages
  // evicted, or -errno.
  [[nodiscard]] int64_t evict_range(Region* region, PageIndex first, PageIndex end);

  void dump(int fd) const;

 private:
  enum class Action { kRest, kEvictRange, kEvict, kSleep };
  void run();
  Action next_action(uint32_t* pressure_seen);
  void evict_or_wait(uint32_t pressure_seen);
  void rest_until_resumed();
  void evict_of_range();
  void sleep_or_reap(uint32_t pressure_seen);
  bool should_evict();
  unsigned evict();
  void settle();
  void advance_time(int64_t evicted);
  bool decide(Victim& victim);
  void leave_empty(Victim& victim);
  bool install_for_waiter(Victim& victim);

  PagerState& state_;
  FramePool& frames_;
  // read at each fault, so on another cache line than the clock hand
  uint32_t low_water_ = 64, high_water_ = 128;
  alignas(64) Chooser chooser_;
  Taker taker_;
  Writer writer_;
  Batch batch_;
  bool going_ = false;  // DRAM was short, and is not at high water yet
  uint64_t swept_ns_ = 0;
  static constexpr int64_t kNothingFirstNs = 50'000, kNothingMostNs = 3'200'000;
  int64_t nothing_ns_ = kNothingFirstNs;  // pause between attempts while nothing can be evicted
  // since when DRAM has been short while this member was below its share; 0: it is not
  uint64_t short_since_ = 0;
  int64_t since_tick_ = 0;  // pages evicted since eviction_time last advanced

  std::atomic<uint32_t> pause_requests_{0};
  std::atomic<uint32_t> resting_{0};

  sys::Mutex range_lock_;  // one range request at a time
  std::atomic<Region*> range_region_{nullptr};
  uint64_t range_first_ = 0, range_end_ = 0;
  int64_t range_result_ = 0;
  std::atomic<uint32_t> range_done_{0};
};

}  // namespace lunar
