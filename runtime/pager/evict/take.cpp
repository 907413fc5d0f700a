// SPDX-License-Identifier: Apache-2.0
#include "pager/evict/take.h"

#include <errno.h>
#include <sys/mman.h>

#include <algorithm>

#include "base/test_switches.h"
#include "pager/evict/pins.h"
#include "pager/state/install.h"
#include "pager/state/state.h"
#include "sys/arena.h"
#include "sys/fatal.h"
#include "sys/kernel.h"
#include "sys/memory_constants.h"

namespace lunar {

using Outcome = Victim::Outcome;
using Protection = Victim::Protection;

// Splits the chunk's huge page, so that its pages can be freed one by one. May fault, on pages that
// are discarded meanwhile.
static void split_huge(PagerState& state, Region& region, uint64_t chunk) {
  const uint64_t first = chunk * kChunkPages, end = first + region.chunk_size(chunk);
  // A huge page that a relative shares, or the kernel's huge zero page, cannot be split: its pages
  // are first copied to small pages of our own. Behind the copy-on-write gate there is no room for
  // copies: pages count as shared when they are dropped, and a later batch tries to split again.
  const bool gated = state.fork.gate_used.load(std::memory_order_acquire);
  if (!gated) region.chunk_large[chunk].store(0, std::memory_order_relaxed);
  // The pages are locked meanwhile: if the program discarded a page between the check and the call,
  // the call would populate it without the page table knowing.
  const TableScope scope;
  for (uint64_t p = first; !gated && p < end;) {
    PageWord was[kChunkPages];
    uint64_t from = p;
    for (; p < end; ++p) {
      was[p - from] = region.table.peek(p);
      if (was[p - from].state() != PageState::kResident || !region.table.lock(p, was[p - from]))
        break;
    }
    if (p == from) {
      ++p;
      continue;
    }
    (void)sys::advise(region.address_of(PageIndex(from)), (p - from) << state.page_shift,
                      MADV_POPULATE_WRITE);
    for (uint64_t done = from; done < p; ++done)
      release_page(state, region, PageIndex(done), was[done - from]);
  }
  // Advice for a part of a huge page splits it: here all but its last page.
  (void)sys::advise(region.address_of(PageIndex(first)), (end - first - 1) << state.page_shift,
                    MADV_COLD);
}

int Taker::open(uint32_t frame_count) {
  const int rc = sys::make_pipe(pipe_, std::min(kBatchPages * state_.page_size, size_t{kMiB}));
  if (rc < 0) return rc;
  // A pipe of an unprivileged user may be smaller than asked (pipe-user-pages-soft).
  limit_ = std::min({static_cast<unsigned>(static_cast<size_t>(rc) / state_.page_size), kBatchPages,
                     frame_count / 2});
  if (limit_ == 0) return -ENOSPC;
  run_least_ = std::max<size_t>(kRunBytes / state_.page_size, 1);
  if (!sys::moves_flush_once()) run_least_ = kBatchPages + 1;
  staging_ = static_cast<char*>(map_private(kBatchPages * state_.page_size, ForkPolicy::kDontFork));
  if (staging_ == nullptr) return -ENOMEM;
  (void)sys::advise(staging_, kBatchPages * state_.page_size, MADV_NOHUGEPAGE);
  pagemap_ = memory_ = -1;
  return 0;
}

int Taker::start() {
  return sys::uffd_register(state_.uffd, staging_, kBatchPages * state_.page_size);
}

void Taker::attach() {
  pagemap_ = sys::open_own_file(sys::OwnFile::kPagemap);
  // useful only if pages can be write-protected while they are copied
  memory_ = state_.write_protect ? sys::open_unreadable_memory() : -EOPNOTSUPP;
}

void Taker::close_descriptors() const {
  sys::close_file(pipe_[0]);
  sys::close_file(pipe_[1]);
}

unsigned Taker::take(Batch& batch) {
  LUNAR_DCHECK(batch.count > 0 && batch.count <= limit_ && frames_.free_count() >= batch.count);
  const bool by_move =
      pins_possible() || splice_refused_ || state_.account.someone_writes_elsewhere();
  split_huge_pages(batch);
  make_exclusive(batch, by_move);
  for (Victim& victim : batch) LUNAR_CHECK(frames_.take_free(&victim.frame), "frames");
  const Picks left = move_runs(batch, by_move);
  by_move ? take_immovable(batch, left) : gather(batch, left);
  unsigned dropped = 0;
  for (const Victim& victim : batch) dropped += victim.is_dropped() ? 1 : 0;
  return dropped;
}

void Taker::split_huge_pages(Batch& batch) {
  for (const Victim& victim : batch) {
    const uint64_t chunk = victim.page.value / kChunkPages;
    if (victim.region->chunk_large[chunk].load(std::memory_order_relaxed) != 0)
      split_huge(state_, *victim.region, chunk);
  }
}

bool Taker::look(const Batch& batch, const Picks& picks, sys::PageFacts* facts) const {
  const void* pages[kBatchPages];
  for (unsigned i = 0; i < picks.count; ++i) pages[i] = batch.victims[picks.at[i]].address();
  return pagemap_ >= 0 && sys::page_facts(pagemap_, pages, picks.count, facts) == 0;
}

// ---- exclusive ----------------------------------------------------------------------------------

// Pages that the kernel merges (KSM) become copy-on-write between any two of our calls, so tiered
// ranges are excluded from merging, new ones from the start (region_create).
// prctl(PR_SET_MEMORY_MERGE) includes all memory again, so each batch checks that first. Excluding
// a range also makes its merged pages exclusive again.
void Taker::forbid_merging() {
  const bool seen = sys::memory_merging();
  if (seen && !merging_seen_)
    for (const Region& region : state_.regions)
      (void)sys::advise(region.base, region.pages << state_.page_shift, MADV_UNMERGEABLE);
  merging_seen_ = seen;
}

// Returns the pages that must be made exclusive: those not known to be. Pages behind the
// copy-on-write gate stay as they are if they are gathered: nothing can write to them before the
// drop, because lifting the protection needs the page's lock. UFFDIO_MOVE refuses shared pages, so
// then these are copied as well.
Taker::Picks Taker::to_make_exclusive(Batch& batch, bool by_move) const {
  const auto epoch = static_cast<uint16_t>(state_.fork.epoch.load(std::memory_order_acquire));
  Picks stale, left;
  for (unsigned i = 0; i < batch.count; ++i)
    if (!still_exclusive(batch.victims[i].word.epoch(), epoch)) stale.add(i);
  sys::PageFacts facts[kBatchPages];
  if (stale.count == 0 || by_move || !state_.fork.gate_used.load(std::memory_order_acquire) ||
      !look(batch, stale, facts))
    return stale;
  for (unsigned i = 0; i < stale.count; ++i) {
    if (facts[i].write_protected)
      batch.victims[stale.at[i]].may_be_shared = !facts[i].exclusive;
    else
      left.add(stale.at[i]);
  }
  return left;
}

void Taker::make_exclusive(Batch& batch, bool by_move) {
  if (test_switches.no_cow_remedy) return;
  const Picks stale = to_make_exclusive(batch, by_move);
  iovec pages[kBatchPages];
  for (unsigned i = 0; i < stale.count; ++i)
    pages[i] = {batch.victims[stale.at[i]].address(), state_.page_size};
  unsigned failed = 0;
  for (unsigned done = 0; done < stale.count; ++done) {
    const int64_t rc = sys::advise_vector(pages + done, stale.count - done, MADV_POPULATE_WRITE);
    if (rc > 0) done += static_cast<unsigned>(static_cast<uint64_t>(rc) / state_.page_size);
    if (done >= stale.count) break;
    // This page could not be populated. EFAULT, EINVAL: it is not writable now. Any other error: it
    // stays.
    const int one = sys::advise(pages[done].iov_base, state_.page_size, MADV_POPULATE_WRITE);
    if (one == -EFAULT || one == -EINVAL) {
      batch.victims[stale.at[done]].protection = Protection::kProgram;
    } else if (one < 0) {
      keep(state_, batch.victims[stale.at[done]], kHeatHot);
      ++failed;
    }
  }
  counters().made_exclusive.add(stale.count - failed);
  if (failed != 0) batch.close_gaps();
}

// ---- runs of neighbours, by UFFDIO_MOVE ---------------------------------------------------------

// Returns how many neighbours, without a gap, begin at a victim.
unsigned Taker::run_from(const Batch& batch, unsigned at) const {
  unsigned end = at + 1;
  for (; end < batch.count; ++end) {
    const Victim &one = batch.victims[end], &before = batch.victims[end - 1];
    if (one.address() != before.address() + state_.page_size || one.may_be_shared ||
        one.protection != Protection::kNone)
      break;
  }
  return end - at;
}

// Moves each run by one call into the staging area, and copies it to its frames from there: TLBs
// are flushed once a run, and no write can be lost. A call across a border of the program's
// mappings moves nothing, so if pages cannot be gathered (by_move), they are moved one by one.
// Returns the pages that were not moved.
Taker::Picks Taker::move_runs(Batch& batch, bool by_move) {
  Picks left;
  unsigned moved = 0;
  for (unsigned at = 0; at < batch.count;) {
    const unsigned run = by_move ? 1 : run_from(batch, at);
    const int64_t rc = by_move || run >= run_least_ ? move(batch, at, run, moved) : 0;
    if (rc > 0) {
      at += static_cast<unsigned>(rc);
      moved += static_cast<unsigned>(rc);
      continue;
    }
    if (by_move && rc == -ENOENT) {  // a raw call has dropped it: zeros
      Victim& victim = batch.victims[at++];
      __builtin_memset(frames_.memory(victim.frame), 0, state_.page_size);
      victim.outcome = Outcome::kDropped;
      continue;
    }
    if (by_move && rc == -EBUSY) counters().kept_pinned.add();
    if (by_move && rc == -EINVAL) batch.victims[at].protection = Protection::kProgram;
    for (const unsigned end = at + run; at < end;) left.add(at++);
  }
  const iovec staged{staging_, moved * state_.page_size};
  const int64_t rc = moved != 0 ? sys::advise_vector(&staged, 1, MADV_DONTNEED) : 0;
  fatal_if_refused(static_cast<int>(rc < 0 ? rc : 0), "madvise");
  return left;
}

// Returns how many pages of a run were moved, from the first one on, or -errno.
int64_t Taker::move(Batch& batch, unsigned at, unsigned run, unsigned staged) {
  LUNAR_DCHECK(at + run <= batch.count && staged + run <= kBatchPages);
  const size_t page = state_.page_size;
  const char* content = staging_ + staged * page;
  const int64_t rc = sys::uffd_move(state_.uffd, staging_ + staged * page,
                                    batch.victims[at].address(), run * page);
  if (rc < 0) return rc;
  const auto moved = static_cast<int64_t>(static_cast<uint64_t>(rc) / page);
  for (int64_t i = 0; i < moved; ++i, content += page) {
    Victim& victim = batch.victims[at + static_cast<uint64_t>(i)];
    __builtin_memcpy(frames_.memory(victim.frame), content, page);
    victim.outcome = Outcome::kDropped;
  }
  return moved;
}

// Pages that are not writable cannot be moved. No new device write can start on a read-only page.
// The page is therefore copied, unless VmPin shows an older pin.
void Taker::take_immovable(Batch& batch, const Picks& left) {
  Picks immovable;
  for (unsigned i = 0; i < left.count; ++i) {
    Victim& victim = batch.victims[left.at[i]];
    victim.outcome = Outcome::kStaysHot;
    if (victim.protection == Protection::kProgram) immovable.add(left.at[i]);
  }
  if (immovable.count != 0 && !pins_registered() && !state_.account.someone_writes_elsewhere())
    gather(batch, immovable);
}

// ---- gather, drop, capture ----------------------------------------------------------------------

void Taker::gather(Batch& batch, const Picks& picks) {
  Picks spliced, unreadable;
  put_in_pipe(batch, picks, &spliced, &unreadable);
  Picks going = spliced;
  copy_unreadable(batch, unreadable, &going);
  iovec pages[kBatchPages];
  bool gone[kBatchPages] = {};
  for (unsigned i = 0; i < going.count; ++i)
    pages[i] = {batch.victims[going.at[i]].address(), state_.page_size};
  sys::test_delay(test_switches.evict_delay_us);
  const unsigned dropped = sys::drop_pages(pages, going.count, gone);
  if (dropped == 0 && going.count != 0)
    fatal_if_refused(sys::advise(staging_, state_.page_size, MADV_DONTNEED), "madvise");
  capture(batch, spliced);
  for (unsigned i = 0; i < going.count; ++i) {
    Victim& victim = batch.victims[going.at[i]];
    if (!gone[i]) {
      victim.outcome = Outcome::kStaysHot;
      if (victim.protection == Protection::kEvictor) protect(victim, false);
      continue;
    }
    if (victim.outcome != Outcome::kGuard) victim.outcome = Outcome::kDropped;
  }
}

// Puts references to the pages into the pipe. Pages that are in neither list afterwards stay.
void Taker::put_in_pipe(const Batch& batch, const Picks& picks, Picks* spliced, Picks* unreadable) {
  iovec pages[kBatchPages];
  for (unsigned i = 0; i < picks.count; ++i)
    pages[i] = {batch.victims[picks.at[i]].address(), state_.page_size};
  for (unsigned next = 0; next < picks.count;) {
    unsigned stop = next;
    while (stop < picks.count && batch.victims[picks.at[stop]].protection == Protection::kNone)
      ++stop;
    const int64_t rc =
        stop == next ? -EFAULT : sys::splice_pages(pipe_[1], pages + next, stop - next);
    const uint64_t bytes = rc > 0 ? static_cast<uint64_t>(rc) : 0;
    for (uint64_t n = bytes / state_.page_size; n > 0; --n) spliced->add(picks.at[next++]);
    if (rc == -EFAULT)
      unreadable->add(picks.at[next++]);
    else if (is_refusal(static_cast<int>(rc)))
      splice_refused_ = true;  // pages are moved from now on
    if (rc <= 0 && rc != -EFAULT) break;
  }
}

// Reads the content of every gathered page, dropped or not, from the pipe into its frame.
void Taker::capture(const Batch& batch, const Picks& spliced) {
  const size_t page = state_.page_size;
  iovec into[kBatchPages];
  for (unsigned i = 0; i < spliced.count; ++i)
    into[i] = {frames_.memory(batch.victims[spliced.at[i]].frame), page};
  const auto all = static_cast<int64_t>(spliced.count * page);
  for (int64_t taken = 0; taken < all;) {
    unsigned first = static_cast<unsigned>(static_cast<uint64_t>(taken) / page);
    size_t inside = static_cast<uint64_t>(taken) % page;
    iovec saved = into[first];
    into[first] = {static_cast<char*>(saved.iov_base) + inside, saved.iov_len - inside};
    int64_t rc = sys::readv_some(pipe_[0], into + first, static_cast<int>(spliced.count - first));
    into[first] = saved;
    if (rc <= 0)
      fatal("evictor: the pipe gave %ld of %ld gathered bytes (%ld); evicted pages would be lost",
            taken, all, rc);
    taken += rc;
  }
}

// Write-protects the page, or lifts the protection.
bool Taker::protect(const Victim& victim, bool on) const {
  return protect_pages(state_, victim.address(), state_.page_size, on) == 0;
}

// Copies pages that cannot be read, or cannot be made exclusive, to their frames. If a thread makes
// such a page writable meanwhile, its write meets the protection, and waits until the page is
// dropped or kept. Adds the pages that may be dropped to `going`.
void Taker::copy_unreadable(Batch& batch, const Picks& unreadable, Picks* going) {
  sys::PageFacts before[kBatchPages], after[kBatchPages];
  for (unsigned i = 0; i < unreadable.count; ++i)
    batch.victims[unreadable.at[i]].outcome = Outcome::kStaysHot;
  if (unreadable.count == 0 || memory_ < 0 || !look(batch, unreadable, before))
    return;  // the pages stay in DRAM
  bool read[kBatchPages];
  for (unsigned i = 0; i < unreadable.count; ++i) {
    Victim& victim = batch.victims[unreadable.at[i]];
    // not if it is protected by the copy-on-write gate
    if (!before[i].write_protected && protect(victim, true))
      victim.protection = Protection::kEvictor;
    read[i] = sys::read_memory(memory_, victim.address(), frames_.memory(victim.frame),
                               state_.page_size) == 0;
  }
  const bool seen = look(batch, unreadable, after);
  for (unsigned i = 0; i < unreadable.count; ++i) {
    Victim& victim = batch.victims[unreadable.at[i]];
    if (seen && (!read[i] || after[i].write_protected)) {
      if (!read[i]) __builtin_memset(frames_.memory(victim.frame), 0, state_.page_size);
      // present but unreadable: a guard marker that the program set by a raw call
      // (MADV_GUARD_INSTALL). Not present: the program has dropped the page
      if (!read[i] && after[i].present) {
        victim.outcome = Outcome::kGuard;
        victim.region->has_guards.store(true, std::memory_order_release);
      }
      going->add(unreadable.at[i]);
    } else if (victim.protection == Protection::kEvictor) {
      protect(victim, false);
    }
  }
}

}  // namespace lunar
