// SPDX-License-Identifier: Apache-2.0
// Commits memory in blocks. jemalloc takes fresh memory in slabs, of which small ones are a page
// each, and has each slab committed. That costs half a microsecond and two system calls a page. A
// CommitAhead commits whole blocks, so that most slabs need no call.
//
// jemalloc cuts the extent that the alloc hook handed out last from its low end. A cursor divides
// the extent: no memory above it has been asked for. The first pages above the cursor, less than a
// block, are committed in advance.
//   request at the cursor        takes these pages, and commits a further block if it needs more
//   request that begins above    (a larger alignment left a gap, or another thread was faster)
//   or below it, and ends above  (freed memory joined the fresh) gives these pages back and moves
//                                the cursor
//   request below the cursor     is committed by itself
// So the pages that were committed in advance never contain freed memory, which can be made
// inaccessible.
//
// Threading: any thread; one word, no lock (a fork may happen at any moment). Two threads never ask
// for the same page, but one may take back what the other has just committed, and for a moment both
// have committed it: `commit` and `forget` count pages, and touch none.
#pragma once
#include <atomic>
#include <cstdint>

#include "base/units.h"

namespace lunar {

class CommitAhead {
 public:
  static constexpr uint64_t kBlockPages = 16;

  // Call when the alloc hook has handed out `pages` uncommitted pages from `first` on. Ends the
  // previous run. An extent of 0 pages, or one that does not consist of whole blocks, has no run.
  template <class Forget>
  void start(uint64_t first, uint64_t pages, Forget forget) {
    const bool whole = pages != 0 && (first | pages) % kBlockPages == 0;
    end_run(run_.exchange(whole ? pack(first, 0) : kNone, std::memory_order_acq_rel), forget);
  }

  // Commits [first, first + pages), and perhaps more. `commit(first, pages)` commits pages, and
  // returns false if it cannot; `forget(first, pages)` takes back pages that nobody has asked for.
  template <class Commit, class Forget>
  bool commit(uint64_t first, uint64_t pages, Commit commit, Forget forget) {
    const uint64_t end = first + pages;
    uint64_t run = run_.load(std::memory_order_acquire);
    while (run != kNone && end > cursor(run)) {
      const bool next = first == cursor(run);
      const uint64_t from = next ? first + ahead(run) : first;
      if (end <= from) {
        if (run_.compare_exchange_weak(run, pack(end, from - end), std::memory_order_acq_rel))
          return true;
        continue;
      }
      uint64_t to = round_up(end, kBlockPages);
      if (!commit(from, to - from)) {
        to = end;  // little space is left: commits only the needed pages
        if (!commit(from, to - from)) return false;
      }
      if (run_.compare_exchange_strong(run, pack(end, to - end), std::memory_order_acq_rel)) {
        if (!next) end_run(run, forget);
        return true;
      }
      forget(from, to - from);  // another thread was faster
    }
    return commit(first, pages);
  }

  // Pages that are committed and were not asked for.
  uint64_t pages_ahead() const {
    const uint64_t run = run_.load(std::memory_order_relaxed);
    return run == kNone ? 0 : ahead(run);
  }

 private:
  static constexpr uint64_t kNone = ~uint64_t{0};
  static constexpr uint64_t pack(uint64_t cursor, uint64_t ahead) {
    return cursor * kBlockPages + ahead;
  }
  static constexpr uint64_t cursor(uint64_t run) { return run / kBlockPages; }
  static constexpr uint64_t ahead(uint64_t run) { return run % kBlockPages; }
  template <class Forget>
  static void end_run(uint64_t run, Forget forget) {
    if (run != kNone && ahead(run) != 0) forget(cursor(run), ahead(run));
  }

  std::atomic<uint64_t> run_{kNone};
};

}  // namespace lunar
