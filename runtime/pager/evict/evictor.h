// SPDX-License-Identifier: Apache-2.0
// Evictor: the thread that keeps DRAM free. It is never a fault handler (its own system calls may fault).
//
// Gather-evict, a batch of up to 64 victims:
//   1 choose    the clock hand walks the page tables; a resident page with heat loses one, one without is taken (busy)
//   2 exclusive pages that may be copy-on-write since a fork are made exclusive (one vectored MADV_POPULATE_WRITE)
//   3 gather    vmsplice: the pipe holds references to the physical pages. Those that may not be read (PROT_NONE, a
//               protection key), and those of 2 that may not be written, are write-protected by userfaultfd and copied
//               (/proc/self/mem)
//   4 drop      one vectored MADV_DONTNEED: nothing maps them any more, their content is final
//   5 capture   read the pipe into frames
//   6 decide    all zero: no slot. Same hash as its slot: no write. Else a slot each, written in runs
// If pages may be pinned for device I/O (pins.h), 3-5 are UFFDIO_MOVE into a staging area; EBUSY keeps the page.
//
// Policy: GCLOCK in address order, so that neighbours are evicted, written and later read together. The only sign of
// use is the next fault; so heat depends on how soon it came, in DRAMs-full evicted meanwhile (refault distance, as in
// Linux' mm/workingset.c): within 1/4: 6, 1/2: 3, 1: 1, later: 0. From the frame: 4. First touch 1, read-ahead 0,
// LUNAR_HOT 7. Pages that a reader of a LUNAR_SEQUENTIAL range has left behind come before the clock.
#pragma once
#include <atomic>
#include <cstdint>

#include "pager/account/slot_allocator.h"
#include "pager/page/frames.h"
#include "pager/page/region.h"
#include "superpipe/device.h"
#include "sys/mem.h"

namespace lunar {

struct PagerState;

constexpr unsigned kBatchPages = 64;
constexpr int64_t kTicksPerBudget = 16;  // of PagerState::eviction_time

// Heat of a page that comes back from the LUN. asked: by an explicit call, which means that the page is needed soon.
inline unsigned refault_heat(PageWord evicted, uint16_t now, bool asked) {
  uint16_t age = static_cast<uint16_t>(now - evicted.epoch());
  if (age < kTicksPerBudget / 4) return 6;
  if (age < kTicksPerBudget / 2) return 3;
  return age < kTicksPerBudget || asked ? 1 : 0;
}

class Evictor {
 public:
  // state, frames: those of the process; the frames are empty, and open() makes them. Both outlive the evictor.
  Evictor(PagerState& state, FramePool& frames) : state_(state), frames_(frames) {}
  // Frames and pipe, charged to the account. 0 or -errno.
  [[nodiscard]] int open(uint32_t frame_count);
  [[nodiscard]] int start();  // its thread
  void forget_parents();      // in a forked child, before open(): gives back the memory of its parent's context
  void add_descriptors(int* out, unsigned* count) const {
    out[(*count)++] = pipe_[0];
    out[(*count)++] = pipe_[1];
  }
  void close_descriptors() const;  // of the pipe, in the program's table
  void wake();                     // DRAM is short: wake up. Cheap when awake
  void wake_if_low();              // below low water
  bool asleep() const { return asleep_.load(std::memory_order_relaxed); }
  uint32_t low_water() const { return low_water_; }

  // A sequential reader has reached `page` (LUNAR_SEQUENTIAL): when DRAM is short, the pages behind it are evicted
  // first. Any thread; short.
  void leave_behind(const Region& region, PageIndex page);

  // Fork: between pause() and resume() no eviction runs and no write is in flight. pause() waits for the evictor to
  // come to rest.
  void pause();
  void resume();

  // Evicts the resident pages of [first, end) of the region now. Waits. Returns the number of pages evicted, or -errno.
  [[nodiscard]] int64_t evict_range(Region* region, PageIndex first, PageIndex end);

  void dump(int fd) const;

 private:
  struct Victim {
    Region* region;
    PageIndex page;
    PageWord word;  // before busy
    uint32_t frame;
    bool dropped;
    bool maybe_shared;     // another process may share the page: dropping it frees nothing
    bool stuck;            // this page itself could not be taken (locked, pinned)
    bool unwritable;       // not known to be exclusive, and cannot be made so while it is not writable
    bool guard;            // a guard page that the program made by a raw call
    bool protected_by_us;  // write-protected by the evictor, and copied
  };
  struct WriteOp {
    Command command;
    iovec iov[kBatchPages];
    uint32_t frame[kBatchPages];
    Slot first{};
    uint32_t count = 0;
  };
  static constexpr unsigned kWriteOps = 128;

  static void run_thread(void* self);
  void run();
  bool should_evict();
  unsigned choose(unsigned want);
  void choose_behind(unsigned want);
  unsigned choose_clock(unsigned want);
  unsigned choose_range(unsigned want);
  bool try_victim(Region* region, PageIndex page, bool ignore_heat);
  unsigned evict_chosen();
  unsigned take_chosen();
  bool make_room(unsigned frames_needed);
  void forbid_merging();
  void make_exclusive(bool by_move);
  bool look_at_stale(const unsigned* victims, unsigned count, sys::PageFacts* facts) const;
  void close_gaps();
  unsigned gather();
  unsigned gather_by_move();
  void capture(const unsigned* which, unsigned count);
  unsigned protect_unreadable(const unsigned* which, unsigned count, unsigned* kept);
  bool protect(const Victim& victim, bool on) const;
  void keep(Victim& victim, unsigned heat);
  void settle();
  bool decide(Victim& victim);
  bool install_for_waiter(Victim& victim, PageWord word);
  void write_out();
  void submit_run(const uint32_t* frame_ids, unsigned count, SlotRun run);
  bool reap(bool wait);
  void finish_write(const Response& response);
  void finish_frame(uint32_t id, bool ok);
  void note_write_failure(Frame& frame);
  void drop_frame(uint32_t id);
  void rewrite_failed(bool must = false);
  bool attach_context();
  void drain(bool for_fork);

  PagerState& state_;
  FramePool& frames_;
  Context* context_ = nullptr;
  unsigned context_generation_ = 0;
  int pipe_[2] = {-1, -1};
  int pagemap_ = -1, memory_ = -1;  // /proc/self, in the service threads' table; made by the thread
  unsigned batch_limit_ = kBatchPages;
  char* staging_ = nullptr;
  bool splice_refused_ = false;  // vmsplice is not allowed (any more)
  uint32_t low_water_ = 64, high_water_ = 128;

  Victim victims_[kBatchPages];
  unsigned victim_count_ = 0;
  uint32_t dirty_[kBatchPages];
  unsigned dirty_count_ = 0;
  uint32_t* failed_ = nullptr;  // frames whose write failed; has room for all frames, because all may be in flight
  uint32_t* retrying_ = nullptr;
  unsigned failed_count_ = 0;
  uint32_t writes_done_ = 0;  // writes that succeeded
  WriteOp* ops_ = nullptr;
  uint32_t free_ops_[kWriteOps];
  unsigned free_op_count_ = 0;
  bool lun_full_said_ = false;
  bool merging_seen_ = false;
  uint64_t swept_ns_ = 0;
  int64_t nothing_ns_ = 50000;
  uint64_t short_since_ = 0;  // DRAM has been short since then while others were above their share

  int64_t since_tick_ = 0;  // pages evicted since eviction_time last advanced
  unsigned hand_region_ = 0;
  uint64_t hand_page_ = 0;

  struct Behind {
    char* begin;  // not evicted yet, up to end
    char* end;
  };
  static constexpr unsigned kBehindMax = 16;
  sys::SpinLock behind_lock_;
  Behind behind_[kBehindMax] = {};
  unsigned behind_next_ = 0;  // the oldest: taken first, and replaced
  std::atomic<bool> has_behind_{false};

  std::atomic<uint32_t> pause_requests_{0};
  std::atomic<uint32_t> resting_{0};
  std::atomic<bool> asleep_{false};

  sys::Mutex range_lock_;  // one range request at a time
  std::atomic<Region*> range_region_{nullptr};
  uint64_t range_first_ = 0, range_end_ = 0;
  int64_t range_result_ = 0;
  std::atomic<uint32_t> range_done_{0};
};

}  // namespace lunar
