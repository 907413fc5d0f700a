// SPDX-License-Identifier: Apache-2.0
// The evictor's thread and its gather: choose, make exclusive, gather, drop, capture. evict_write.cpp handles the
// captured pages.
// Threading: everything private runs on the evictor's thread. No allocation after open().
#include "pager/evict/evictor.h"

#include <errno.h>
#include <sys/mman.h>

#include <initializer_list>

#include "base/format.h"
#include "base/test_switches.h"
#include "pager/activation/activation.h"
#include "pager/evict/pins.h"
#include "pager/fault/resolver.h"
#include "pager/state/install.h"
#include "pager/state/state.h"
#include "sys/arena.h"
#include "sys/fatal.h"
#include "sys/file.h"
#include "sys/kernel.h"
#include "sys/log.h"
#include "sys/memory_constants.h"

namespace lunar {
namespace {

constexpr uint64_t kOthersMayEvictNs = 20000000;
// while pages are shared: only when all have released one, it is free
constexpr uint64_t kRelativesMayEvictNs = 2000000;
constexpr uint64_t kSweepEveryNs = 50000000;                          // while DRAM is short
constexpr int64_t kNothingFirstNs = 50000, kNothingMostNs = 3200000;  // between looks while nothing can be evicted

}  // namespace

int Evictor::open(uint32_t frame_count) {
  state_.housekeeping_word.store(kHousekeepingRuns);
  state_.room_wanted.store(false);
  unmap_private(ops_, kWriteOps * sizeof(WriteOp));  // its parent's
  for (uint32_t* ids : {failed_, retrying_}) unmap_private(ids, frames_.count() * sizeof(uint32_t));
  int rc = frames_.open(frame_count, state_.page_size, -1);
  if (rc < 0) return rc;
  size_t pipe_bytes = kBatchPages * state_.page_size;
  if (pipe_bytes > 1024 * 1024) pipe_bytes = 1024 * 1024;
  rc = sys::make_pipe(pipe_, pipe_bytes);
  if (rc < 0) return rc;
  // A pipe of an unprivileged user may be smaller than asked (pipe-user-pages-soft).
  batch_limit_ = static_cast<unsigned>(static_cast<size_t>(rc) / state_.page_size);
  if (batch_limit_ > kBatchPages) batch_limit_ = kBatchPages;
  if (batch_limit_ > frame_count / 2) batch_limit_ = frame_count / 2;
  if (batch_limit_ == 0) return -ENOSPC;
  ops_ = static_cast<WriteOp*>(map_private(kWriteOps * sizeof(WriteOp), ForkPolicy::kInherit));
  staging_ = static_cast<char*>(map_private(kBatchPages * state_.page_size, ForkPolicy::kDontFork));
  failed_ = static_cast<uint32_t*>(map_private(frame_count * sizeof(uint32_t), ForkPolicy::kInherit));
  retrying_ = static_cast<uint32_t*>(map_private(frame_count * sizeof(uint32_t), ForkPolicy::kInherit));
  if (ops_ == nullptr || staging_ == nullptr || failed_ == nullptr || retrying_ == nullptr) return -ENOMEM;
  (void)sys::advise(staging_, kBatchPages * state_.page_size, MADV_NOHUGEPAGE);
  free_op_count_ = 0;
  for (unsigned i = 0; i < kWriteOps; ++i) free_ops_[free_op_count_++] = i;
  int64_t cap = state_.account.cap_pages();
  // Read-ahead and first touches come in runs of 64 pages and more: room for a few of them, in a small budget too.
  int64_t low = cap / 32 < 8 * kBatchPages ? cap / 32 : 8 * kBatchPages;
  if (low < cap / 128) low = cap / 128;
  low_water_ = static_cast<uint32_t>(low < 48 ? 48 : low > 1024 ? 1024 : low) + kKeepFreePages;
  high_water_ = low_water_ + kBatchPages * 2;
  pause_requests_.store(0);
  resting_.store(0);
  asleep_.store(false);
  pagemap_ = memory_ = -1;
  range_lock_.reset_in_child();
  range_region_.store(nullptr);
  behind_lock_.unlock();  // in a forked child: the parent may have held it
  for (Behind& one : behind_) one = {};
  has_behind_.store(false);
  failed_count_ = dirty_count_ = victim_count_ = 0;
  context_ = nullptr;
  return 0;
}

void Evictor::forget_parents() {
  Device* device = state_.devices[state_.parent_lun];
  if (context_ != nullptr && device != nullptr) device->detach(context_);
  context_ = nullptr;
}

int Evictor::start() {
  int rc = sys::uffd_register(state_.uffd, staging_, kBatchPages * state_.page_size);
  if (rc < 0) return rc;
  pthread_t thread;
  return sys::thread_start({"lunar-evict", run_thread, this, false, false, &state_.housekeeping_word}, &thread);
}

void Evictor::close_descriptors() const {
  sys::close_file(pipe_[0]);
  sys::close_file(pipe_[1]);
}

void Evictor::run_thread(void* self) { static_cast<Evictor*>(self)->run(); }

// A member above its share evicts. When that does not help for a while (its pages may be pinned), all members do.
bool Evictor::should_evict() {
  Account& account = state_.account;
  if (account.free_pages() >= static_cast<int64_t>(low_water_)) {
    short_since_ = 0;
    return false;
  }
  uint64_t now = sys::now_ns();
  if (now - swept_ns_ > kSweepEveryNs) {  // members may have died
    swept_ns_ = now;
    housekeeping_wake(state_, kHousekeepingSweep);
  }
  if (account.above_share()) return true;
  if (short_since_ == 0) {
    short_since_ = now;
    account.raise_pressure();  // of those above their share one may sleep
  }
  return now - short_since_ > (account.shared_pages() != 0 ? kRelativesMayEvictNs : kOthersMayEvictNs);
}

// With run(), all sequentially consistent: what was taken, then whether it sleeps; that it sleeps, then what is taken.
void Evictor::wake() {
  if (asleep_.load(std::memory_order_seq_cst)) state_.account.raise_pressure();
}

void Evictor::wake_if_low() {
  if (state_.account.free_pages() < static_cast<int64_t>(low_water_)) wake();
}

void Evictor::run() {
  state_.evictor_tid.store(sys::thread_id());
  pagemap_ = sys::open_own_file(sys::OwnFile::kPagemap);
  // only of use with pages held still
  memory_ = state_.write_protect ? sys::open_unreadable_memory() : -EOPNOTSUPP;
  bool going = false;
  for (;;) {
    if (pause_requests_.load(std::memory_order_seq_cst) != 0) {
      drain(true);
      resting_.store(1, std::memory_order_seq_cst);
      while (pause_requests_.load(std::memory_order_acquire) != 0) sys::sleep_ns(20000);
      resting_.store(0, std::memory_order_seq_cst);
      continue;  // another pause may have begun and seen us resting: look again
    }
    const uint32_t seen = state_.account.pressure();
    hand_over_room(state_, false);
    (void)reap(false);
    if (failed_count_ != 0) rewrite_failed();
    if (range_region_.load(std::memory_order_acquire) != nullptr) {
      if (choose_range(batch_limit_) != 0) {
        range_result_ += evict_chosen();
      } else {
        drain(false);
        range_region_.store(nullptr, std::memory_order_relaxed);
        range_done_.fetch_add(1, std::memory_order_release);
        sys::futex_wake(&range_done_, INT32_MAX, false);
      }
      continue;
    }
    int64_t free = state_.account.free_pages();
    going = (going && free < static_cast<int64_t>(high_water_) && state_.account.above_share()) || should_evict();
    if (going) {
      if (choose(batch_limit_) != 0 && evict_chosen() != 0) {
        nothing_ns_ = kNothingFirstNs;
      } else if (pause_requests_.load() ==
                 0) {  // nothing can be evicted just now: until something is given back, or time has passed
        state_.account.wait_pressure(seen, nothing_ns_);
        if (nothing_ns_ < kNothingMostNs) nothing_ns_ *= 2;
      }
      continue;
    }
    asleep_.store(true, std::memory_order_seq_cst);
    if (!should_evict() && range_region_.load() == nullptr && pause_requests_.load() == 0) {
      bool busy = context_ != nullptr && context_->in_flight() != 0;
      if (busy) {
        asleep_.store(false);
        (void)reap(true);
      } else {
        state_.account.wait_pressure(seen, short_since_ != 0 || failed_count_ != 0 ? 2000000 : -1);
      }
    }
    asleep_.store(false, std::memory_order_release);
  }
}

void Evictor::pause() {
  pause_requests_.fetch_add(1, std::memory_order_seq_cst);
  state_.account.raise_pressure();
  while (resting_.load(std::memory_order_seq_cst) == 0) sys::sleep_ns(10000);
}

void Evictor::resume() { pause_requests_.fetch_sub(1, std::memory_order_acq_rel); }

int64_t Evictor::evict_range(Region* region, PageIndex first, PageIndex end) {
  sys::Locked<sys::Mutex> lock(range_lock_);
  range_first_ = first.value;
  range_end_ = end.value;
  range_result_ = 0;
  uint32_t seen = range_done_.load(std::memory_order_acquire);
  range_region_.store(region, std::memory_order_release);
  state_.account.raise_pressure();
  while (range_done_.load(std::memory_order_acquire) == seen)
    (void)sys::futex_wait(&range_done_, seen, 100000000, false);
  return range_result_;
}

// ---- 1 choose -------------------------------------------------------------------------------------------------------

bool Evictor::try_victim(Region* region, PageIndex page, bool ignore_heat) {
  AtomicPageWord* word = region->table.find(page.value);
  if (word == nullptr) return false;
  PageWord seen = word->load(std::memory_order_relaxed);
  if (seen.state() != PageState::kResident || seen.pinned()) return false;
  if (seen.heat() != 0 && !ignore_heat) {
    word->compare_exchange_strong(seen, seen.with_heat(seen.heat() - 1), std::memory_order_relaxed);
    return false;
  }
  if (!page_lock(*word, seen)) return false;
  victims_[victim_count_++] = {region, page, seen, UINT32_MAX, false, false, false, false, false, false};
  return true;
}

void Evictor::leave_behind(const Region& region, PageIndex page) {
  // pages: still in use, left since the fault before, one reader's
  constexpr uint64_t kLag = 8, kReach = kReadRunMax + kLag, kJoin = 256;
  if (page.value <= kLag || region.access_of(PageIndex(page.value - kLag)) != Access::kSequential) return;
  const uint64_t first = page.value > kReach ? page.value - kReach : 0, join = kJoin << state_.page_shift;
  char *begin = region.address_of(PageIndex(first)), *end = region.address_of(PageIndex(page.value - kLag));
  sys::Locked<sys::SpinLock> lock(behind_lock_);
  has_behind_.store(true, std::memory_order_relaxed);
  for (Behind& one : behind_) {
    if (one.begin == one.end || begin < one.begin || begin > one.end + join) continue;
    if (end > one.end) one.end = end;
    return;
  }
  behind_[behind_next_++ % kBehindMax] = {begin, end};
}

void Evictor::choose_behind(unsigned want) {
  if (!has_behind_.load(std::memory_order_relaxed)) return;
  while (victim_count_ < want) {
    char* at = nullptr;
    {
      sys::Locked<sys::SpinLock> lock(behind_lock_);
      for (unsigned i = 0; i < kBehindMax && at == nullptr; ++i) {
        Behind& one = behind_[(behind_next_ + i) % kBehindMax];
        if (one.begin == one.end) continue;
        at = one.begin;
        one.begin += state_.page_size;
      }
      if (at == nullptr) has_behind_.store(false, std::memory_order_relaxed);
    }
    if (at == nullptr) return;
    Region* region = state_.regions.find(at);
    if (region != nullptr && region->access_of(region->page_of(at)) == Access::kSequential)
      (void)try_victim(region, region->page_of(at), true);
  }
}

unsigned Evictor::choose(unsigned want) {
  const TableScope scope;
  victim_count_ = 0;
  choose_behind(want);
  return victim_count_ != 0 ? victim_count_ : choose_clock(want);
}

unsigned Evictor::choose_clock(unsigned want) {
  auto& table = state_.regions;
  victim_count_ = 0;
  if (table.count.load(std::memory_order_acquire) == 0) return 0;
  // Eight rounds cool the hottest page; one more takes it. Bounded by chunks looked at, so that an all-pinned heap
  // ends.
  uint32_t laps = 0;
  while (victim_count_ < want && laps < 10) {
    uint32_t count = table.count.load(std::memory_order_acquire);
    if (hand_region_ >= count) {
      hand_region_ = 0;
      hand_page_ = 0;
      ++laps;
    }
    Region* region = table.sorted[hand_region_].load(std::memory_order_acquire);
    uint64_t end = region != nullptr ? region->table_pages.load(std::memory_order_acquire) : 0;
    while (hand_page_ < end && victim_count_ < want) {
      if (hand_page_ % kChunkPages == 0 &&
          region->chunk_resident[hand_page_ / kChunkPages].load(std::memory_order_relaxed) <= 0) {
        hand_page_ += kChunkPages;
        continue;
      }
      (void)try_victim(region, PageIndex(hand_page_), false);
      ++hand_page_;
    }
    if (hand_page_ >= end) {
      ++hand_region_;
      hand_page_ = 0;
    }
  }
  return victim_count_;
}

unsigned Evictor::choose_range(unsigned want) {
  const TableScope scope;
  Region* region = range_region_.load(std::memory_order_relaxed);
  victim_count_ = 0;
  while (victim_count_ < want && range_first_ < range_end_) (void)try_victim(region, PageIndex(range_first_++), true);
  return victim_count_;
}

// ---- 2 exclusive ----------------------------------------------------------------------------------------------------

// Equal pages that the kernel merges (KSM) become copy-on-write behind our back, between any two of our calls: so
// tiered ranges are excluded from merging. New ones are from the start (region_create, whatever the process has
// inherited); prctl(PR_SET_MEMORY_MERGE) includes all memory again, so each batch checks it first. Excluding a range
// also makes its merged pages exclusive again.
void Evictor::forbid_merging() {
  const bool seen = sys::memory_merging();
  for (uint32_t i = 0; seen && !merging_seen_ && i < state_.regions.count.load(std::memory_order_acquire); ++i) {
    Region* region = state_.regions.sorted[i].load(std::memory_order_acquire);
    if (region != nullptr) (void)sys::advise(region->base, region->pages << state_.page_shift, MADV_UNMERGEABLE);
  }
  merging_seen_ = seen;
}

bool Evictor::look_at_stale(const unsigned* victims, unsigned count, sys::PageFacts* facts) const {
  const void* pages[kBatchPages];
  for (unsigned i = 0; i < count; ++i) pages[i] = victims_[victims[i]].region->address_of(victims_[victims[i]].page);
  return pagemap_ >= 0 && sys::page_facts(pagemap_, pages, count, facts) == 0;
}

// Pages behind the copy-on-write gate stay as they are: nothing can write them before the drop, as lifting the
// protection needs the page's word. (UFFDIO_MOVE takes none that is shared: then they are copied first. A batch comes
// and goes at once.)
void Evictor::make_exclusive(bool by_move) {
  uint16_t epoch = static_cast<uint16_t>(state_.fork_epoch.load(std::memory_order_acquire));
  if (test_switches.no_cow_remedy) return;
  iovec stale[kBatchPages];
  unsigned index_of[kBatchPages];
  unsigned n = 0;
  for (unsigned i = 0; i < victim_count_; ++i)
    if (!still_exclusive(victims_[i].word.epoch(), epoch)) index_of[n++] = i;
  if (n == 0) return;
  sys::PageFacts facts[kBatchPages];
  if (state_.gate_used.load(std::memory_order_acquire) && look_at_stale(index_of, n, facts)) {
    unsigned left = 0;
    for (unsigned i = 0; i < n; ++i) {
      if (facts[i].write_protected && !by_move)
        victims_[index_of[i]].maybe_shared = !facts[i].exclusive;
      else
        index_of[left++] = index_of[i];
    }
    n = left;
  }
  for (unsigned i = 0; i < n; ++i)
    stale[i] = {victims_[index_of[i]].region->address_of(victims_[index_of[i]].page), state_.page_size};
  unsigned failed_at[kBatchPages];
  unsigned failed = 0;
  for (unsigned done = 0; done < n;) {
    int64_t rc = sys::advise_vector(stale + done, n - done, MADV_POPULATE_WRITE);
    if (rc > 0) {
      done += static_cast<unsigned>(static_cast<uint64_t>(rc) / state_.page_size);
      if (done >= n) break;
    }
    // The entry at `done` could not be populated. Not writable (EFAULT, EINVAL) just now: its mapping is taken.
    // Anything else: leave the page alone.
    int one = sys::advise(stale[done].iov_base, state_.page_size, MADV_POPULATE_WRITE);
    if (one == -EFAULT || one == -EINVAL)
      victims_[index_of[done]].unwritable = true;
    else if (one < 0)
      failed_at[failed++] = index_of[done];
    ++done;
  }
  counters().made_exclusive.add(n - failed);
  for (unsigned i = 0; i < failed; ++i) keep(victims_[failed_at[i]], kHeatHot);
  if (failed != 0) close_gaps();
}

// Closes the gaps that keep() has left in the batch.
void Evictor::close_gaps() {
  unsigned out = 0;
  for (unsigned i = 0; i < victim_count_; ++i) {
    if (victims_[i].region == nullptr) continue;
    if (out != i) victims_[out] = victims_[i];
    ++out;
  }
  victim_count_ = out;
}

// The page stays resident; wakes the threads that met it busy.
void Evictor::keep(Victim& victim, unsigned heat) {
  release_page(state_, *victim.region, victim.page, victim.word.with_heat(heat));
  victim.region = nullptr;
}

// ---- 3 gather, 4 drop, 5 capture ------------------------------------------------------------------------------------

// Fills victim.dropped; content of dropped victims is in their frames. Returns how many were dropped.
unsigned Evictor::gather() {
  iovec pages[kBatchPages], drops[kBatchPages];
  unsigned which[kBatchPages] = {}, unreadable[kBatchPages] = {};  // in the pipe, then held
  unsigned in_pipe = 0, unreadable_count = 0;
  for (unsigned i = 0; i < victim_count_; ++i)
    pages[i] = {victims_[i].region->address_of(victims_[i].page), state_.page_size};
  for (unsigned next = 0; next < victim_count_;) {
    unsigned stop = next;
    while (stop < victim_count_ && !victims_[stop].unwritable) ++stop;
    int64_t rc = stop == next ? -EFAULT : sys::splice_pages(pipe_[1], pages + next, stop - next);
    for (unsigned n = rc > 0 ? static_cast<unsigned>(static_cast<uint64_t>(rc) / state_.page_size) : 0; n > 0; --n)
      which[in_pipe++] = next++;
    if (rc == -EFAULT)
      unreadable[unreadable_count++] = next++;
    else if (is_refusal(rc))
      splice_refused_ = true;  // by UFFDIO_MOVE from now on
    if (rc <= 0 && rc != -EFAULT) break;
  }
  const unsigned count = in_pipe + protect_unreadable(unreadable, unreadable_count, which + in_pipe);
  for (unsigned i = 0; i < count; ++i) drops[i] = pages[which[i]];
  if (test_switches.evict_delay_us != 0) sys::sleep_ns(test_switches.evict_delay_us * 1000);
  bool gone[kBatchPages] = {};
  const unsigned dropped = sys::drop_pages(drops, count, gone);
  if (dropped == 0 && count != 0) fatal_if_refused(sys::advise(staging_, state_.page_size, MADV_DONTNEED), "madvise");
  capture(which, in_pipe);
  for (unsigned i = 0; i < count; ++i) {
    Victim& victim = victims_[which[i]];
    victim.dropped = gone[i];
    victim.stuck = !gone[i];
    if (i >= in_pipe && gone[i]) counters().evicted_unreadable.add(1);
    if (victim.protected_by_us && !gone[i]) protect(victim, false);
    if (victim.guard && !gone[i]) victim.guard = false;
  }
  return dropped;
}

// The content of every gathered page leaves the pipe, dropped or not.
void Evictor::capture(const unsigned* which, unsigned count) {
  const size_t page = state_.page_size;
  iovec into[kBatchPages];
  for (unsigned i = 0; i < count; ++i) into[i] = {frames_.memory(victims_[which[i]].frame), page};
  const auto all = static_cast<int64_t>(count * page);
  for (int64_t taken = 0; taken < all;) {
    unsigned first = static_cast<unsigned>(static_cast<uint64_t>(taken) / page);
    size_t inside = static_cast<uint64_t>(taken) % page;
    iovec saved = into[first];
    into[first] = {static_cast<char*>(saved.iov_base) + inside, saved.iov_len - inside};
    int64_t rc = sys::readv_some(pipe_[0], into + first, static_cast<int>(count - first));
    into[first] = saved;
    if (rc <= 0)
      fatal("evictor: the pipe gave %ld of %ld gathered bytes (%ld); evicted pages would be lost", taken, all, rc);
    taken += rc;
  }
}

// Protects the page against writes, or lifts that.
bool Evictor::protect(const Victim& victim, bool on) const {
  return protect_pages(state_, victim.region->address_of(victim.page), state_.page_size, on) == 0;
}

// Copies what may not be read, or not be made exclusive, to its frames. A thread that makes a page writable in between
// meets the protection, and waits until the page is dropped or kept. Returns how many may be dropped; `kept` names
// them.
unsigned Evictor::protect_unreadable(const unsigned* which, unsigned count, unsigned* kept) {
  const void* pages[kBatchPages];
  sys::PageFacts before[kBatchPages], after[kBatchPages];
  const auto look = [&](sys::PageFacts* facts) {
    return pagemap_ >= 0 && sys::page_facts(pagemap_, pages, count, facts) == 0;
  };
  for (unsigned i = 0; i < count; ++i) {
    pages[i] = victims_[which[i]].region->address_of(victims_[which[i]].page);
    victims_[which[i]].stuck = true;
  }
  if (count == 0 || memory_ < 0 || !look(before)) return 0;  // they stay in DRAM
  bool read[kBatchPages];
  for (unsigned i = 0; i < count; ++i) {
    Victim& victim = victims_[which[i]];
    // it may be behind the copy-on-write gate
    victim.protected_by_us = !before[i].write_protected && protect(victim, true);
    read[i] = sys::read_memory(memory_, pages[i], frames_.memory(victim.frame), state_.page_size) == 0;
  }
  const bool seen = look(after);
  unsigned found = 0;
  for (unsigned i = 0; i < count; ++i) {
    Victim& victim = victims_[which[i]];
    if (seen && (!read[i] || after[i].write_protected)) {
      if (!read[i]) __builtin_memset(frames_.memory(victim.frame), 0, state_.page_size);
      // a guard marker that the program set by a raw call (MADV_GUARD_INSTALL); else it has dropped the page
      victim.guard = !read[i] && after[i].present;
      if (victim.guard) victim.region->has_guards.store(true, std::memory_order_release);
      kept[found++] = which[i];
    } else if (victim.protected_by_us) {
      protect(victim, false);
    }
  }
  return found;
}

unsigned Evictor::gather_by_move() {
  unsigned dropped = 0;
  for (unsigned i = 0; i < victim_count_; ++i) {
    char* at = staging_ + i * state_.page_size;
    const int64_t rc =
        sys::uffd_move(state_.uffd, at, victims_[i].region->address_of(victims_[i].page), state_.page_size);
    victims_[i].dropped = rc == static_cast<int64_t>(state_.page_size);
    victims_[i].stuck = !victims_[i].dropped;
    if (!victims_[i].dropped) {
      if (rc == -EBUSY) counters().kept_pinned.add();
      continue;
    }
    __builtin_memcpy(frames_.memory(victims_[i].frame), at, state_.page_size);
    ++dropped;
  }
  if (dropped != 0) fatal_if_refused(sys::advise(staging_, victim_count_ * state_.page_size, MADV_DONTNEED), "madvise");
  return dropped;
}

unsigned Evictor::evict_chosen() {
  counters().batches.add();
  forbid_merging();
  if (!make_room(victim_count_)) {  // before the batch, as others wait for its end
    for (unsigned i = 0; i < victim_count_; ++i) keep(victims_[i], 0);
    return 0;
  }
  state_.account.batch_begin();
  const unsigned dropped = take_chosen();
  state_.account.batch_end();
  if (victim_count_ != 0) settle();
  return dropped;
}

// Steps 2 to 5.
unsigned Evictor::take_chosen() {
  const bool elsewhere = state_.account.someone_writes_elsewhere();
  const bool by_move = pins_possible(state_) || splice_refused_ || elsewhere;
  for (unsigned i = 0; i < victim_count_; ++i) {
    Region& region = *victims_[i].region;
    const uint64_t chunk = victims_[i].page.value / kChunkPages;
    if (region.chunk_large[chunk].load(std::memory_order_relaxed) != 0) split_huge(state_, region, chunk);
  }
  make_exclusive(by_move);
  if (victim_count_ == 0) return 0;
  for (unsigned i = 0; i < victim_count_; ++i) LUNAR_CHECK(frames_.take_free(&victims_[i].frame), "frames");
  return by_move ? gather_by_move() : gather();
}

void Evictor::dump(int fd) const {
  char line[192];
  size_t n = format_to(line, sizeof line, "evictor: %s, frames free %u of %u, writes in flight %u, pause requests %u\n",
                       asleep_.load()    ? "asleep"
                       : resting_.load() ? "resting"
                                         : "at work",
                       frames_.free_count(), frames_.count(), context_ != nullptr ? context_->in_flight() : 0,
                       pause_requests_.load());
  (void)sys::write_to_program(fd, line, n);
}

}  // namespace lunar
