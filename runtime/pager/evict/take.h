// SPDX-License-Identifier: Apache-2.0
// Takes the pages of a batch out of the program's memory, into frames (README.md, "Take").
// Afterwards they are not mapped any more, and their content is final. Threading: the evictor's
// thread. No allocation after open().
#pragma once
#include "base/units.h"
#include "pager/evict/batch.h"
#include "pager/page/frames.h"
#include "sys/fatal.h"
#include "sys/mem.h"

namespace lunar {

// From this run length on, one UFFDIO_MOVE is cheaper than gathering, even counting its TLB
// interrupts (DECISIONS.md).
constexpr size_t kRunBytes = 64 * kKiB;

class Taker {
 public:
  Taker(PagerState& state, FramePool& frames) : state_(state), frames_(frames) {}
  [[nodiscard]] int open(uint32_t frame_count);  // 0 or -errno
  [[nodiscard]] int start();                     // before the thread starts. 0 or -errno
  void attach();                                 // by the thread
  void add_descriptors(int* out, unsigned* count) const {
    out[(*count)++] = pipe_[0];
    out[(*count)++] = pipe_[1];
  }
  void close_descriptors() const;  // the pipe's, in the program's table
  void forget_descriptors() { pipe_[0] = pipe_[1] = -1; }
  unsigned limit() const { return limit_; }  // most pages of a batch

  void forbid_merging();  // before each batch
  // Sets the outcome of each victim; some leave the batch. Returns how many are dropped. pre: there
  // is a free frame for each.
  unsigned take(Batch& batch);

 private:
  struct Picks {  // some of the batch
    unsigned at[kBatchPages];
    unsigned count = 0;
    void add(unsigned i) {
      LUNAR_DCHECK(count < kBatchPages);
      at[count++] = i;
    }
  };

  void split_huge_pages(Batch& batch);
  void make_exclusive(Batch& batch, bool by_move);
  Picks to_make_exclusive(Batch& batch, bool by_move) const;
  bool look(const Batch& batch, const Picks& picks, sys::PageFacts* facts) const;
  Picks move_runs(Batch& batch, bool by_move);
  unsigned run_from(const Batch& batch, unsigned at) const;
  int64_t move(Batch& batch, unsigned at, unsigned run, unsigned staged);
  void take_immovable(Batch& batch, const Picks& left);
  void gather(Batch& batch, const Picks& picks);
  void put_in_pipe(const Batch& batch, const Picks& picks, Picks* spliced, Picks* unreadable);
  void copy_unreadable(Batch& batch, const Picks& unreadable, Picks* going);
  void capture(const Batch& batch, const Picks& spliced);
  bool protect(const Victim& victim, bool on) const;

  PagerState& state_;
  FramePool& frames_;
  int pipe_[2] = {-1, -1};
  int pagemap_ = -1, memory_ = -1;  // /proc/self, in the service threads' table
  unsigned limit_ = kBatchPages;
  size_t run_least_ = 1;  // least neighbours that are moved
  char* staging_ = nullptr;
  bool splice_refused_ = false;  // vmsplice is not allowed
  bool merging_seen_ = false;
};

}  // namespace lunar
