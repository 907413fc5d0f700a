// SPDX-License-Identifier: Apache-2.0
// Range operations: touch, prefetch, discard, advise, pin, evict. Run on the caller's thread, which must not be a
// service thread; they wait for the device but never take a page fault on tiered memory themselves.
#include <errno.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#include "base/error.h"
#include "base/format.h"
#include "base/host_guard.h"
#include "pager/activation/activation.h"
#include "pager/evict/evictor.h"
#include "pager/evict/pins.h"
#include "pager/fault/handler.h"
#include "pager/fault/resolver.h"
#include "pager/fork/wipe.h"
#include "pager/pager.h"
#include "pager/seize.h"
#include "pager/state/descriptors.h"
#include "pager/state/install.h"
#include "pager/state/state.h"
#include "pager/table/table_promise.h"
#include "sys/arena.h"
#include "sys/fatal.h"
#include "sys/file.h"
#include "sys/kernel_call.h"
#include "sys/log.h"
#include "sys/memory_constants.h"
#include "sys/memory_copy.h"
#include "sys/proc.h"

namespace lunar {
namespace {

thread_local Resolver* t_resolver __attribute__((tls_model("initial-exec"))) = nullptr;
thread_local uint32_t t_generation __attribute__((tls_model("initial-exec"))) = 0;

constexpr unsigned kSpareMax = 256;
struct ResolverPool {
  sys::SpinLock lock;
  Resolver* spare[kSpareMax] = {};
  unsigned count = 0;
  Resolver* made_last = nullptr;  // all of them, for a forked child
};
constinit ResolverPool g_pool;

// Those of program threads. A resolver in a thread's hand, neither spare nor t_resolver, would be spare in a child that
// a signal handler forks, and the thread's too: signals stay blocked from taking to giving.
Resolver* take_spare(PagerState& state) {
  {
    sys::Locked<sys::SpinLock> lock(g_pool.lock);
    if (g_pool.count != 0) return g_pool.spare[--g_pool.count];
  }
  auto* r = arena_new<Resolver>(state);
  if (r == nullptr) return nullptr;
  sys::Locked<sys::SpinLock> lock(g_pool.lock);
  r->made_before = g_pool.made_last;
  g_pool.made_last = r;
  return r;
}

void give_spare(Resolver* r) {
  sys::Locked<sys::SpinLock> lock(g_pool.lock);
  if (g_pool.count < kSpareMax) g_pool.spare[g_pool.count++] = r;
}

void resolver_end_of_thread(void* resolver) {
  const sys::ScopedSignalBlock signals;
  auto* r = static_cast<Resolver*>(resolver);
  t_resolver = nullptr;
  HostGuard guard;
  r->close();
  give_spare(r);
}

// The calling program thread's resolver (made at first use; closed when the thread ends). Pre: signals are blocked, and
// stay so while it is used: a handler may fork, and the child needs another one. nullptr with *error; -EAGAIN: there is
// no DRAM for its window just now; -ENOMEM: the kernel gives it no memory.
Resolver* thread_resolver(PagerState& state, int* error) {
  if (t_resolver != nullptr && t_generation == state.generation) return t_resolver;
  HostGuard guard;
  {
    sys::Locked<sys::SpinLock> lock(g_pool.lock);
    if (!state.resolver_key_made)
      state.resolver_key_made = pthread_key_create(&state.resolver_key, resolver_end_of_thread) == 0;
  }
  Resolver* r = take_spare(state);
  *error = -ENOMEM;
  if (r == nullptr) return nullptr;
  *error = r->open({kReadRunMax, false});
  if (*error < 0) {
    give_spare(r);
    return nullptr;
  }
  t_resolver = r;
  t_generation = state.generation;
  pthread_setspecific(state.resolver_key, r);
  return r;
}

}  // namespace

int pages_of(const PagerState& state, const void* address, size_t bytes, bool inward, PageRange* out) {
  Region* region = state.regions.find(address);
  if (region == nullptr) return -EINVAL;
  uint64_t start = static_cast<uint64_t>(static_cast<const char*>(address) - region->base), end = start + bytes;
  if (end > region->pages << state.page_shift) return -EINVAL;
  if (state.foreign.overlaps(address, bytes)) return -EFAULT;
  if (forked_past_us(state) != 0) {  // what it would change is the parent's
    pager_say_limited(bytes);
    return -ENOMEM;
  }
  uint64_t mask = state.page_size - 1;
  *out = {region, (inward ? start + mask : start) >> state.page_shift, (inward ? end : end + mask) >> state.page_shift};
  if (out->end < out->first) out->end = out->first;
  return 0;
}

namespace {

enum class Want { kRead, kTouch };

// Waits for what others do, and looks the less often the longer that takes: a quarter of the time that it has lasted so
// far lies between two looks.
class Patience {
 public:
  void wait() {
    const uint64_t now = sys::now_ns();
    if (since_ == 0) since_ = now;
    const uint64_t pause = (now - since_) / 4;
    sys::sleep_ns(pause < kLeastNs ? kLeastNs : pause > kMostNs ? kMostNs : pause);
  }
  uint64_t lasted_ns() const { return since_ == 0 ? 0 : sys::now_ns() - since_; }
  void renew() { since_ = 0; }

 private:
  static constexpr uint64_t kLeastNs = 20000, kMostNs = 2000000;
  uint64_t since_ = 0;
};

// How far a pass over ranges has come.
struct Pass {
  size_t range = 0;   // the one that is next,
  uint64_t page = 0;  //   and from where on in it: a page of its region
  unsigned begun = 0;
  bool busy = false;     // a page was in another thread's hand
  bool no_room = false;  // and so it has stopped: there is no DRAM, with no read in flight that would end
  bool no_ring = false;  // likewise, as no command ring can be made (no descriptor, no address space left)
};

// A row for each state of the page's word. 0 or the page's error; *begun stays as it is where nothing is to be begun.
int begin_page(Resolver& r, Region& region, PageIndex page, Want want, const Demand& demand, Begun* begun) {
  const TableScope scope;
  const PageWord seen = region.table.peek(page.value);
  switch (seen.state()) {
    case PageState::kEmpty:
      if (want == Want::kTouch) *begun = r.zero_fill(region, page, demand);
      return 0;
    case PageState::kInFrame:
      *begun = r.from_frame(region, page, seen, demand);
      return 0;
    case PageState::kEvicted:
      *begun = r.start_read(region, page, seen, demand);
      return 0;
    case PageState::kBusy:
      *begun = {set_waiter(region, page, seen) ? Outcome::kBusy : Outcome::kChanged};
      return 0;
    case PageState::kResident:
      return 0;
    case PageState::kGuard:
      return want == Want::kTouch ? -EFAULT : 0;
    case PageState::kPoisoned:
      return -EIO;
  }
  return 0;
}

// A thread with reads in flight has their pages busy, and only it can finish them: no signal handler may run meanwhile,
// as it could touch such a page, or wait for a thread that does.
int bring_in(PagerState& state, Resolver& r, const PageRange& range, Want want, Pass* pass) {
  int rc = 0;
  for (uint64_t page = pass->page > range.first ? pass->page : range.first; page < range.end;) {
    const uint64_t left = range.end - page;
    const Demand demand{left > kReadRunMax ? kReadRunMax : static_cast<unsigned>(left), kHeatFault};
    Begun begun{Outcome::kResident, 0};
    if (const int error = begin_page(r, *range.region, PageIndex(page), want, demand, &begun); error < 0) rc = error;
    switch (begun.outcome) {
      case Outcome::kResident:
      case Outcome::kStarted:
        page += begun.pages != 0 ? begun.pages : 1;
        if (begun.pages != 0 && ++pass->begun % 16 == 0) (void)r.progress(false, 0);
        break;
      case Outcome::kChanged:
        break;
      case Outcome::kBusy:
        pass->busy = true;
        ++page;
        break;
      case Outcome::kNoRoom:
        state.evictor->wake();
        if (r.in_flight() == 0) {
          pass->page = page;
          pass->no_ring = r.no_ring();
          pass->no_room = true;
          return rc;
        }
        (void)r.progress(true, 1000000);
        break;
    }
  }
  return rc;
}

// Goes on with a pass, to its end or until there is no room (the resolver's window is DRAM, too). 0 or the first error.
int bring_in_some(PagerState& state, const lunar_range* ranges, size_t count, Want want, Pass* pass) {
  const sys::ScopedSignalBlock signals;
  int rc = 0;
  Resolver* r = thread_resolver(state, &rc);
  pass->no_room = r == nullptr && rc == -EAGAIN;
  if (pass->no_room) state.evictor->wake();
  pass->no_ring = r == nullptr && !pass->no_room;
  if (r == nullptr) return 0;
  while (pass->range < count && !pass->no_room) {
    PageRange range;
    int one = pages_of(state, ranges[pass->range].address, ranges[pass->range].bytes, false, &range);
    if (one == 0) one = bring_in(state, *r, range, want, pass);
    if (one < 0 && rc == 0) rc = one;
    if (pass->no_room) break;
    ++pass->range;
    pass->page = 0;
  }
  while (r->in_flight() != 0) (void)r->progress(true, 10000000);
  state.evictor->wake_if_low();
  if (r->failed()) {
    r->clear_failed();
    rc = -EIO;
  }
  return rc;
}

// The program has closed our descriptors (a daemon closes all), or leaves no room for one more: the handlers, which
// have their own table, do the work.
int bring_in_by_faults(PagerState& state, const lunar_range* ranges, size_t count, Want want) {
  if (want == Want::kRead) return 0;  // a hint
  for (size_t i = 0; i < count; ++i) {
    PageRange range;
    int rc = pages_of(state, ranges[i].address, ranges[i].bytes, false, &range);
    if (rc == 0)
      rc = sys::advise(range.region->address_of(PageIndex(range.first)), (range.end - range.first) << state.page_shift,
                       MADV_POPULATE_READ);
    if (rc < 0) return rc;
  }
  return 0;
}

int bring_in_ranges(PagerState& state, const lunar_range* ranges, size_t count, Want want) {
  constexpr unsigned kYields = 64;
  constexpr uint64_t kHintNs = 200000000;  // a prefetch leaves out what does not fit
  // A child of vfork: a ring that it made would be in its own descriptor table, and stay with the parent's thread.
  if (!descriptors_in_place(state) || sys::memory_is_parents()) return bring_in_by_faults(state, ranges, count, want);
  int rc = 0;
  Pass pass;
  Patience patience;
  for (unsigned busy_rounds = 0;;) {
    const int one = bring_in_some(state, ranges, count, want, &pass);
    if (one < 0 && rc == 0) rc = one;
    if (pass.begun != 0) patience.renew();
    pass.begun = 0;
    if (pass.no_ring || ((pass.no_room || rc < 0) && !descriptors_in_place(state)))
      return bring_in_by_faults(state, ranges, count, want);
    if (pass.no_room) {
      if (want == Want::kRead && patience.lasted_ns() > kHintNs) return rc;
      patience.wait();
      continue;
    }
    if (!pass.busy || want == Want::kRead || rc < 0) return rc;
    pass = {};
    ++busy_rounds < kYields ? sys::yield_cpu() : patience.wait();
  }
}

}  // namespace

PageWord wait_while_busy(const Region& region, uint64_t page) {
  for (unsigned spins = 0;; ++spins) {
    const PageWord seen = region.table.peek(page);
    if (seen.state() != PageState::kBusy) return seen;
    spins < 100 ? sys::cpu_relax() : spins < 200 ? sys::yield_cpu() : sys::sleep_ns(10000);
  }
}

PageWord seize(Region& region, uint64_t page) {
  for (;;) {
    PageWord seen = wait_while_busy(region, page);
    if (!seized(seen) || region.table.lock(page, seen)) return seen;
  }
}

void drop_content(PagerState& state, PageWord was) {
  if (was.state() == PageState::kInFrame || was.state() == PageState::kEvicted) count_evicted(-1);
  if (was.state() == PageState::kInFrame) {
    FramePool& frames = state.frames;
    Slot slot = kNoSlot;
    unsigned lun = 0;
    if (frames.release(was.index(), &slot, &lun)) slot_release(state, lun, slot);
  } else if (was.state() != PageState::kPoisoned || was.has_slot()) {
    slot_release(state, was.lun(), was.slot());
  }
}

namespace {

int drop_advice(Discard what) { return what == Discard::kContents ? MADV_DONTNEED : MADV_DONTNEED_LOCKED; }

// Drops the pages of [first, end) that `was` says are present: those and no other, as any thread may fill an empty one
// meanwhile. Marks in `stays` what cannot be dropped. 0, or the first error.
int drop_present(PagerState& state, Region& region, uint64_t first, uint64_t end, const PageWord* was, Discard what,
                 bool* stays) {
  constexpr unsigned kRunsMax = 32;
  iovec runs[kRunsMax];
  unsigned n = 0;
  int64_t bytes = 0;
  bool all = true;
  const auto drop = [&] {
    if (n != 0) all &= sys::advise_vector(runs, n, MADV_DONTNEED) == bytes;
    n = 0;
    bytes = 0;
  };
  for (uint64_t p = first; p < end;) {
    uint64_t from = p;
    while (p < end && is_present(was[p - first])) ++p;
    if (p == from) {
      ++p;
      continue;
    }
    runs[n] = {region.address_of(PageIndex(from)), (p - from) << state.page_shift};
    bytes += static_cast<int64_t>(runs[n].iov_len);
    if (++n == kRunsMax) drop();
  }
  drop();
  if (all) return 0;
  // A raw system call has locked some pages, or the range is sealed: page by page.
  int rc = 0;
  for (uint64_t p = first; p < end; ++p) {
    if (!is_present(was[p - first])) continue;
    void* address = region.address_of(PageIndex(p));
    int one = sys::advise(address, state.page_size, drop_advice(what));
    stays[p - first] = one < 0 && one != -ENOMEM;  // -ENOMEM: not mapped any more
    if (stays[p - first] && rc == 0) rc = one;
  }
  return rc;
}

// At once: threads with the smallest stacks (16 KiB) free memory, too.
constexpr uint64_t kDiscardPages = kChunkPages / 2;

int discard_piece(PagerState& state, Region& region, uint64_t first, uint64_t end, Discard what) {
  PageWord was[kDiscardPages];
  bool stays[kDiscardPages] = {};
  int rc = 0;
  for (uint64_t p = first; p < end; ++p) {
    PageWord w = was[p - first] = seize(region, p);
    if (what != Discard::kContents || !pinned_by_program(region, p)) continue;
    if (seized(w)) release_page(state, region, PageIndex(p), w);
    end = p;
    rc = -EINVAL;
  }
  if (int left = drop_present(state, region, first, end, was, what, stays); left < 0) rc = left;
  int64_t resident = 0, maybe_shared = 0;
  for (uint64_t p = first; p < end; ++p) {
    PageWord w = was[p - first];
    if (what == Discard::kMapping && w.pinned()) state.pinned_pages.fetch_sub(page_clear_pinned(region.table.at(p)));
    if (!seized(w)) continue;
    if (stays[p - first]) {
      release_page(state, region, PageIndex(p), w);
      continue;
    }
    if (w.state() == PageState::kResident) {
      count_resident(state, region, PageIndex(p), -1);
      ++(still_exclusive(w.epoch(), exclusive_epoch(state)) ? resident : maybe_shared);
    }
    drop_content(state, w);
    uncharge_touched(state, region, w);
    release_page(state, region, PageIndex(p),
                 w.with_state(PageState::kEmpty).with_slot(kNoSlot).with_heat(0).with_charged(false));
  }
  table_retire(state, region, first, end);
  state.account.give(resident);
  state.account.give_maybe_shared(maybe_shared);
  return rc;
}

}  // namespace

void thread_resolver_forget(const PagerState& state) {
  if (t_resolver != nullptr) pthread_setspecific(state.resolver_key, nullptr);
  t_resolver = nullptr;
  g_pool.lock.unlock();
  g_pool.count = 0;
  for (Resolver* r = g_pool.made_last; r != nullptr; r = r->made_before) {
    r->forget_parents();
    if (g_pool.count < kSpareMax) g_pool.spare[g_pool.count++] = r;
  }
}

void thread_resolvers_wait_for_release() {
  const Resolver* last;
  {
    sys::Locked<sys::SpinLock> lock(g_pool.lock);
    last = g_pool.made_last;
  }
  for (const Resolver* r = last; r != nullptr; r = r->made_before) r->wait_for_release();
}

int pager_touch(const void* address, size_t bytes) {
  if (!pager_active()) return region_find(address) != nullptr ? 0 : -EINVAL;
  lunar_range range{address, bytes};
  return bring_in_ranges(pager_state(), &range, 1, Want::kTouch);
}

int pager_prefetch(const lunar_range* ranges, size_t count) {
  return pager_active() ? bring_in_ranges(pager_state(), ranges, count, Want::kRead) : 0;
}

namespace {

// A piece of which less than half is covered keeps its pattern.
void set_pattern(const PageRange& range, Access access) {
  Region& region = *range.region;
  if (access != Access::kNormal) region.has_patterns.store(true, std::memory_order_relaxed);
  if (!region.has_patterns.load(std::memory_order_relaxed)) return;
  for (uint64_t p = range.first; p < range.end;) {
    uint64_t piece = p / kPatternPages, begin = piece * kPatternPages,
             limit = begin + kPatternPages < region.pages ? begin + kPatternPages : region.pages;
    uint64_t to = limit < range.end ? limit : range.end;
    if (2 * (to - p) >= limit - begin) region.patterns[piece].store(access, std::memory_order_relaxed);
    p = to;
  }
}

int guard_range(PagerState& state, const PageRange& range, bool install, bool wait) {
  for (uint64_t p = range.first; p < range.end;) {
    uint64_t next = (p / kChunkPages + 1) * kChunkPages;
    if (next > range.end) next = range.end;
    int rc = install ? table_reach_waiting(state, *range.region, p, next) : 0;
    if (rc < 0) return rc;
    bool before_activation = false;
    if (!pager_active()) {
      sys::Locked<sys::Mutex> lock(state.activation_lock);
      before_activation = !pager_active();
      if (before_activation) rc = guard_pages(state, *range.region, p, next, install);
    }
    if (!before_activation) {
      MutatorScope scope(state, wait);
      if (!scope.entered()) return -EAGAIN;
      rc = guard_pages(state, *range.region, p, next, install);
    }
    if (rc < 0) return rc;
    p = next;
  }
  return 0;
}

// The loop of the discards. `wait`: for a fork under way; else -EAGAIN, with everything before it discarded.
int discard(PagerState& state, void* address, size_t bytes, Discard what, bool wait) {
  PageRange range;
  int rc = pages_of(state, address, bytes, true, &range);
  if (rc == 0 && what == Discard::kMapping) set_pattern(range, Access::kNormal);
  if (rc == 0 && what == Discard::kMapping && wait && wipe_any()) rc = pager_wipe_on_fork(address, bytes, false);
  if (rc == 0 && what == Discard::kMapping && range.region->has_guards.load(std::memory_order_acquire))
    rc = guard_range(state, range, false, wait);
  if (rc < 0) return rc;
  if (!pager_active()) {
    CommitLock lock(state);
    if (!pager_active()) {
      char* from = range.region->address_of(PageIndex(range.first));
      uint64_t length = (range.end - range.first) << state.page_shift;
      return sys::advise(from, length, drop_advice(what));
    }
  }
  uint64_t limit = range.region->table_pages.load(std::memory_order_acquire);
  if (range.end > limit) range.end = limit;
  for (uint64_t p = range.first; p < range.end;) {
    p = range.region->table.next_used(p, range.end);
    if (p == range.end) break;
    uint64_t next = (p / kDiscardPages + 1) * kDiscardPages;
    if (next > range.end) next = range.end;
    MutatorScope scope(state, wait);
    if (!scope.entered()) return -EAGAIN;
    int one = discard_piece(state, *range.region, p, next, what);
    if (one < 0 && what == Discard::kContents) return one;
    if (one < 0 && rc == 0) rc = one;
    p = next;
  }
  return rc;
}

}  // namespace

int pager_guard(void* address, size_t bytes, bool install) {
  auto& state = pager_state();
  PageRange range;
  int rc = pages_of(state, address, bytes, true, &range);
  if (rc < 0 || range.first == range.end) return rc;
  // Of no bytes, it only says whether the kernel knows it. From the first guard page on, every discard removes them.
  if (rc = sys::advise(address, 0, install ? MADV_GUARD_INSTALL : MADV_GUARD_REMOVE); rc < 0) return rc;
  if (install) range.region->has_guards.store(true, std::memory_order_release);
  return install || range.region->has_guards.load(std::memory_order_acquire) ? guard_range(state, range, install, true)
                                                                             : 0;
}

int pager_wipe_on_fork(void* address, size_t bytes, bool wipe) {
  auto& state = pager_state();
  PageRange range;
  int rc = pages_of(state, address, bytes, false, &range);
  if (rc < 0 || (!wipe && !wipe_any())) return rc;
  return wipe_set(state, range.region->address_of(PageIndex(range.first)),
                  (range.end - range.first) << state.page_shift, wipe);
}

int pager_discard(void* address, size_t bytes, Discard what) {
  return discard(pager_state(), address, bytes, what, true);
}
int pager_try_discard(void* address, size_t bytes) {
  return discard(pager_state(), address, bytes, Discard::kMapping, false);
}

int pager_advise(const void* address, size_t bytes, lunar_advice advice) {
  PageRange range;
  int rc = pages_of(pager_state(), address, bytes, false, &range);
  if (rc < 0) return rc;
  if (advice < LUNAR_NORMAL || advice > LUNAR_RANDOM) return -EINVAL;
  if (advice == LUNAR_NORMAL) set_pattern(range, Access::kNormal);
  if (advice == LUNAR_SEQUENTIAL) set_pattern(range, Access::kSequential);
  if (advice == LUNAR_RANDOM) set_pattern(range, Access::kRandom);
  if (!pager_active() || advice == LUNAR_RANDOM) return 0;
  if (advice == LUNAR_COLD) {
    int64_t n = pager_evict(address, bytes);
    return n < 0 ? static_cast<int>(n) : 0;
  }
  unsigned heat = advice == LUNAR_HOT ? kHeatHot : advice == LUNAR_SEQUENTIAL ? kHeatReadAhead : kHeatFault;
  const sys::ScopedSignalBlock signals;
  const TableScope scope;
  range.region->table.for_words(range.first, range.end, [heat](uint64_t, AtomicPageWord& word) {
    PageWord seen = word.load(std::memory_order_relaxed);
    if (seen.state() == PageState::kResident)
      word.compare_exchange_strong(seen, seen.with_heat(heat), std::memory_order_relaxed);
  });
  return 0;
}

int pager_advise_huge(void* address, size_t bytes, int advice) {
  auto& state = pager_state();
  Region* region = state.regions.find(address);
  if (region == nullptr) return -EINVAL;
  const int refused = advice == MADV_COLLAPSE ? -EINVAL : 0;  // not a hint: success would mean a huge page
  if (pager_active()) return refused;
  sys::Locked<sys::Mutex> lock(state.activation_lock);
  if (pager_active() || (advice != MADV_NOHUGEPAGE && !plain_allow_huge(state, *region))) return refused;
  return sys::advise(address, bytes, advice);
}

int pager_pin(const void* address, size_t bytes) {
  auto& state = pager_state();
  PageRange range;
  int rc = pages_of(state, address, bytes, false, &range);
  if (rc < 0) return rc;
  if (!pager_active()) {
    ErrorText why;
    if (rc = pager_activate(&why); rc < 0) return rc;
  }
  // What is pinned already counts once.
  const int64_t pages = static_cast<int64_t>(range.end - range.first);
  int64_t more = 0;
  for (uint64_t p = range.first; p < range.end; ++p) more += !word_of(*range.region, PageIndex(p)).pinned();
  // Nor may the program's tables, which may come to take what they are promised, leave it without room.
  const int64_t cap = state.account.cap_pages(), beside = cap - state.account.fixed_total() - kTableRoom;
  if (const int64_t pinned = state.pinned_pages.fetch_add(more) + more; pinned > cap / 2 || pinned > beside) {
    state.pinned_pages.fetch_sub(more);
    return -ENOMEM;
  }
  // Mark first, then bring in: an evictor that does not have the page busy yet will not take it any more. Other threads
  // may have pinned and unpinned some meanwhile.
  const int64_t were_pinned = program_pins(state, *range.region, range.first, range.end, true);
  if (were_pinned < 0) {
    state.pinned_pages.fetch_sub(more);
    return -ENOMEM;
  }
  state.pinned_pages.fetch_add(pages - were_pinned - more);
  for (;;) {
    rc = pager_touch(address, bytes);
    if (rc < 0) {
      (void)pager_unpin(address, bytes);
      return rc;
    }
    bool all = true;
    for (uint64_t p = range.first; p < range.end && all; ++p)
      all = word_of(*range.region, PageIndex(p)).state() == PageState::kResident;
    if (all) return 0;
  }
}

bool pager_pinned(const void* address) {
  Region* region = region_find(address);
  return region != nullptr && pinned_by_program(*region, region->page_of(address).value);
}

int pager_unpin(const void* address, size_t bytes) {
  auto& state = pager_state();
  PageRange range;
  int rc = pages_of(state, address, bytes, false, &range);
  if (rc < 0) return rc;
  state.pinned_pages.fetch_sub(program_pins(state, *range.region, range.first, range.end, false));
  return 0;
}

int64_t pager_evict(const void* address, size_t bytes) {
  auto& state = pager_state();
  PageRange range;
  int rc = pages_of(state, address, bytes, false, &range);
  if (rc < 0) return rc;
  if (!pager_active()) return 0;
  Evictor& evictor = *state.evictor;
  const int64_t evicted = evictor.evict_range(range.region, PageIndex(range.first), PageIndex(range.end));
  // The evictor passes over a page in another thread's hands and one that a fork holds back, which may be resident
  // when they are released: once more, for those.
  bool left = false;
  for (uint64_t p = range.first; p < range.end; ++p) {
    const sys::ScopedSignalBlock signals;
    const TableScope scope;
    const PageWord word = wait_while_busy(*range.region, p);
    left |= word.state() == PageState::kResident && !word.pinned();
  }
  return left ? evicted + evictor.evict_range(range.region, PageIndex(range.first), PageIndex(range.end)) : evicted;
}

int pager_set_dram(uint64_t bytes) {
  auto& state = pager_state();
  ErrorText why;
  if (const int rc = check_dram(state, bytes, &why); rc < 0) return rc;
  const int64_t pages = static_cast<int64_t>(bytes >> state.page_shift);
  if (pager_active() && state.pinned_pages.load() > pages / 2) return -EBUSY;
  if (pager_active()) {
    const int64_t before = state.account.cap_pages();
    state.account.set_cap(pages);  // first: of this and a promise at once, one sees the other
    if (pages < before && pages - state.account.fixed_total() < kTableRoom + state.pinned_pages.load()) {
      state.account.set_cap(before);
      return -EBUSY;
    }
  }
  state.dram_bytes = bytes;
  if (!pager_active()) return 0;
  for (int i = 0; state.account.free_pages() < 0 && i < 600000; ++i) {
    state.evictor->wake();
    sys::sleep_ns(100000);
  }
  return state.account.free_pages() < 0 ? -EBUSY : 0;
}

void pager_note_pinning(const char* sign) {
  auto& state = pager_state();
  pins_note(state, sign);
  // in a child that was forked past us there is no evictor
  if (pager_active() && !pager_forked_past_us()) state.account.wait_for_own_batch();
}

long pager_write_elsewhere(const long (&arguments)[6]) {
  Account& account = pager_state().account;
  const sys::ScopedSignalBlock signals;  // a handler that leaves by longjmp would never end it
  if (!account.write_elsewhere_begin()) {
    LUNAR_LOG_LIMITED(log_warning, 4,
                      "process_vm_writev fails with EAGAIN: a process of this tree was stopped in the middle of an "
                      "eviction, which would lose what is written to its pages; let it go on");
    errno = EAGAIN;
    return -1;
  }
  const long result = sys::kernel_call_errno(SYS_process_vm_writev, arguments);
  account.write_elsewhere_end();
  return result;
}

int pager_page_state(const void* address) {
  Region* region = region_find(address);
  return region == nullptr ? -1 : static_cast<int>(word_of(*region, region->page_of(address)).state());
}

}  // namespace lunar
