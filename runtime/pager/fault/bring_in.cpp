// SPDX-License-Identifier: Apache-2.0
#include "pager/fault/bring_in.h"

#include <errno.h>
#include <pthread.h>
#include <sys/mman.h>

#include <algorithm>

#include "base/host_guard.h"
#include "pager/evict/evictor.h"
#include "pager/fault/resolver.h"
#include "pager/fault/zero_fill.h"
#include "pager/state/descriptors.h"
#include "pager/state/requests.h"
#include "sys/arena.h"
#include "sys/memory_constants.h"
#include "sys/memory_copy.h"

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
  pthread_key_t key{};
  bool key_made = false;
};
constinit ResolverPool g_pool;

// Takes a resolver for a program thread. Signals stay blocked from take to give. Otherwise a signal
// handler could fork while the resolver is in neither list, and the child would use it twice.
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

// The calling program thread's resolver, made at first use and closed when the thread ends. Pre:
// signals are blocked, and stay so while it is used: a signal handler may fork, and the child needs
// another one. nullptr with *error: -EAGAIN: there is no DRAM for its window now; -ENOMEM: no
// memory, or no room beside promised page tables.
Resolver* thread_resolver(PagerState& state, int* error) {
  if (t_resolver != nullptr && t_generation == state.fork.generation) return t_resolver;
  HostGuard guard;
  {
    sys::Locked<sys::SpinLock> lock(g_pool.lock);
    if (!g_pool.key_made)
      g_pool.key_made = pthread_key_create(&g_pool.key, resolver_end_of_thread) == 0;
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
  t_generation = state.fork.generation;
  pthread_setspecific(g_pool.key, r);
  return r;
}

}  // namespace

int pages_of(const PagerState& state, const void* address, size_t bytes, bool inward,
             PageRange* out) {
  Region* region = state.regions.find(address);
  if (region == nullptr) return -EINVAL;
  uint64_t start = static_cast<uint64_t>(static_cast<const char*>(address) - region->base),
           end = start + bytes;
  if (end > region->pages << state.page_shift) return -EINVAL;
  if (state.foreign.overlaps(address, bytes)) return -EFAULT;
  if (forked_past_us(state) != 0) {  // the pages are the parent's
    say_limited(state, bytes);
    return -ENOMEM;
  }
  uint64_t mask = state.page_size - 1;
  *out = {region, (inward ? start + mask : start) >> state.page_shift,
          (inward ? end : end + mask) >> state.page_shift};
  out->end = std::max(out->end, out->first);
  return 0;
}

namespace {

// Backs off: each pause is a quarter of the time waited so far.
class Backoff {
 public:
  void wait() {
    const uint64_t now = sys::now_ns();
    if (since_ == 0) since_ = now;
    sys::sleep_ns(std::clamp((now - since_) / 4, kLeastNs, kMostNs));
  }
  uint64_t lasted_ns() const { return since_ == 0 ? 0 : sys::now_ns() - since_; }
  void renew() { since_ = 0; }

 private:
  static constexpr uint64_t kLeastNs = 20'000, kMostNs = 2'000'000;
  uint64_t since_ = 0;
};

// The position of a pass over ranges.
struct Pass {
  size_t range = 0;   // the next range
  uint64_t page = 0;  // the next page in it, a number of its region
  unsigned begun = 0;
  bool busy = false;  // another thread had locked some page, or the kernel had no memory for it
  // stopped: there is no DRAM, and no read in flight whose end would free some
  bool no_room = false;
  // stopped: no command ring can be made (no descriptor or address space left)
  bool no_ring = false;
};

// Begins to bring in a page: a row for each state of its word. 0 or the page's error; *result is
// unchanged where nothing is begun.
int begin_page(PagerState& state, Resolver& r, Region& region, PageIndex page, Want want,
               const FillRequest& request, FillResult* result) {
  const TableScope scope;
  const PageWord seen = region.table.peek(page.value);
  switch (seen.state()) {
    case PageState::kEmpty:
      if (want == Want::kTouch) *result = zero_fill(state, region, page, request);
      return 0;
    case PageState::kInFrame:
      *result = r.from_frame(region, page, seen, request);
      return 0;
    case PageState::kEvicted:
      *result = r.start_read(region, page, seen, request);
      return 0;
    case PageState::kBusy:
      *result = {set_waiter(region, page, seen) ? Outcome::kBusy : Outcome::kChanged};
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

// A thread with reads in flight has locked their pages, and only it can finish them. No signal
// handler may run meanwhile, because it could touch such a page, or wait for a thread that does.
int bring_in(PagerState& state, Resolver& r, const PageRange& range, Want want, Pass* pass) {
  int rc = 0;
  for (uint64_t page = pass->page > range.first ? pass->page : range.first; page < range.end;) {
    if (want == Want::kRead) page = range.region->table.next_used(page, range.end);
    if (page == range.end) break;
    const uint64_t left = range.end - page;
    const FillRequest request{static_cast<unsigned>(std::min<uint64_t>(left, kReadRunMax)),
                              kHeatFault};
    FillResult result{Outcome::kResident, 0};
    if (const int error =
            begin_page(state, r, *range.region, PageIndex(page), want, request, &result);
        error < 0)
      rc = error;
    switch (result.outcome) {
      case Outcome::kResident:
      case Outcome::kStarted:
        page += result.pages != 0 ? result.pages : 1;
        if (result.pages != 0 && ++pass->begun % 16 == 0) (void)r.progress(false, 0);
        break;
      case Outcome::kChanged:
        break;
      case Outcome::kBusy:
        pass->busy = true;
        ++page;
        break;
      case Outcome::kNoRoom:
        evictor_wake(state);
        if (r.in_flight() == 0) {
          pass->page = page;
          pass->no_ring = r.no_ring();
          pass->no_room = true;
          return rc;
        }
        (void)r.progress(true, 1'000'000);
        break;
    }
  }
  return rc;
}

// Goes on with a pass, to its end or until there is no room, for pages or for the resolver's
// window. 0 or the first error.
int bring_in_some(PagerState& state, const lunar_range* ranges, size_t count, Want want,
                  Pass* pass) {
  const sys::ScopedSignalBlock signals;
  int rc = 0;
  Resolver* r = thread_resolver(state, &rc);
  pass->no_room = r == nullptr && rc == -EAGAIN;
  if (pass->no_room) evictor_wake(state);
  pass->no_ring = r == nullptr && !pass->no_room;
  if (r == nullptr) return 0;
  while (pass->range < count && !pass->no_room) {
    PageRange range;
    int one =
        pages_of(state, ranges[pass->range].address, ranges[pass->range].bytes, false, &range);
    if (one == 0) one = bring_in(state, *r, range, want, pass);
    if (one < 0 && rc == 0) rc = one;
    if (pass->no_room) break;
    ++pass->range;
    pass->page = 0;
  }
  while (r->in_flight() != 0) (void)r->progress(true, 10'000'000);
  state.evictor->wake_if_low();
  pass->busy |= r->take_refused();
  if (r->failed()) {
    r->clear_failed();
    rc = -EIO;
  }
  return rc;
}

// The program has closed our descriptors (a daemon closes all), or may open no more: the handlers,
// which have their own table, do the work.
int bring_in_by_faults(PagerState& state, const lunar_range* ranges, size_t count, Want want) {
  if (want == Want::kRead) return 0;  // a hint
  for (size_t i = 0; i < count; ++i) {
    PageRange range;
    int rc = pages_of(state, ranges[i].address, ranges[i].bytes, false, &range);
    if (rc == 0)
      rc = sys::advise(range.region->address_of(PageIndex(range.first)),
                       (range.end - range.first) << state.page_shift, MADV_POPULATE_READ);
    if (rc < 0) return rc;
  }
  return 0;
}

}  // namespace

int bring_in_ranges(PagerState& state, const lunar_range* ranges, size_t count, Want want) {
  constexpr unsigned kYields = 64;
  constexpr uint64_t kHintNs = 200'000'000;  // a prefetch waits so long for room
  // A child of vfork makes no ring: the descriptor would be in its own table, and the resolver in
  // the parent's memory.
  if (!descriptors_in_place(state) || sys::memory_is_parents())
    return bring_in_by_faults(state, ranges, count, want);
  int rc = 0;
  Pass pass;
  Backoff backoff;
  for (unsigned busy_rounds = 0;;) {
    const int one = bring_in_some(state, ranges, count, want, &pass);
    if (one < 0 && rc == 0) rc = one;
    if (pass.begun != 0) backoff.renew();
    pass.begun = 0;
    if (pass.no_ring || ((pass.no_room || rc < 0) && !descriptors_in_place(state)))
      return bring_in_by_faults(state, ranges, count, want);
    if (pass.no_room) {
      if (want == Want::kRead && backoff.lasted_ns() > kHintNs) return rc;
      backoff.wait();
      continue;
    }
    if (!pass.busy || want == Want::kRead || rc < 0) return rc;
    pass = {};
    ++busy_rounds < kYields ? sys::yield_cpu() : backoff.wait();
  }
}

void thread_resolver_forget() {
  if (t_resolver != nullptr) pthread_setspecific(g_pool.key, nullptr);
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

}  // namespace lunar
