// SPDX-License-Identifier: Apache-2.0
// See answerer.h. Fault path: no allocation, no host lock, no tiered memory, no wait.
#include "pager/fault/answerer.h"

#include <errno.h>

#include "base/error.h"
#include "base/test_switches.h"
#include "pager/evict/evictor.h"
#include "pager/fault/cow_gate.h"
#include "pager/fault/fault_state.h"
#include "pager/fault/zero_fill.h"
#include "pager/space/deferred_slots.h"
#include "pager/state/install.h"
#include "sys/fatal.h"

namespace lunar {
namespace {

// a longer fork is probably blocked by a thread whose fault is parked: a write to a protected page,
// or one that waits for DRAM
constexpr uint64_t kForkMaxNs = 50'000'000, kForkStandsNs = 100'000'000;
// then faults that may exceed the budget per kPassNs
constexpr unsigned kPassMax = 16;
constexpr uint64_t kPassNs = 5'000'000;

bool is_service_thread(const PagerState& state, int tid) {
  if (tid == 0) return false;
  if (tid == state.services.housekeeping_tid.load(std::memory_order_relaxed)) return true;
  for (unsigned i = 0; i < state.services.handler_count; ++i)
    if (tid == state.services.handler_tids[i].load(std::memory_order_relaxed)) return true;
  return false;
}

}  // namespace

void Answerer::open() { pagemap_ = sys::open_own_file(sys::OwnFile::kPagemap); }

bool Answerer::answer(const sys::UffdMessage& message, bool again) {
  const TableScope scope;
  void* address = reinterpret_cast<void*>(message.address);
  if (message.thread_id != 0 &&
      message.thread_id == state_.services.evictor_tid.load(std::memory_order_relaxed)) {
    answer_evictor(message);
    return true;
  }
  if (!again) g_fault.watched.begins(message.thread_id, message.address);
  if (is_service_thread(state_, message.thread_id)) {
    counters().service_faults.add();
    LUNAR_DCHECK(!"a thread of the pager touched tiered memory");
  }
  Region* region = state_.regions.find(address);
  if (region == nullptr || state_.foreign.overlaps(address, 1)) {
    answer_outside(message);
    return true;
  }
  return message.write_protected
             ? answer_protected(*region, region->page_of(address), message.thread_id)
             : answer_missing(*region, region->page_of(address), message.thread_id);
}

// A message for a missing page.
bool Answerer::answer_missing(Region& region, PageIndex page, int thread_id) {
  Missing fault{region, page, thread_id};
  FillResult result;
  while (result.outcome == Outcome::kChanged) {
    const std::optional<FillResult> resolved = resolve(fault);
    if (!resolved.has_value()) return true;
    result = *resolved;
    if (result.outcome == Outcome::kNoRoom && fault.request.keep_free >= 0 &&
        may_pass_budget(thread_id)) {
      fault.request.run = 1;
      fault.request.keep_free = INT32_MIN;
      result = {};
    }
  }
  if (result.outcome == Outcome::kNoRoom) return false;
  after_answer(fault, result);
  return true;
}

// A row for each state of the page's word. Nothing: the message is answered, and nothing was
// brought in.
std::optional<FillResult> Answerer::resolve(Missing& fault) {
  Region& region = fault.region;
  const PageIndex page = fault.page;
  const PageWord seen = region.table.peek(page.value);
  switch (seen.state()) {
    case PageState::kEmpty:
      plan(fault, true);
      return zero_fill(state_, region, page, fault.request);
    case PageState::kInFrame:
      plan(fault, false);
      return resolver_.from_frame(region, page, seen, fault.request);
    case PageState::kEvicted:
      plan(fault, false);
      return resolver_.start_read(region, page, seen, fault.request);
    case PageState::kBusy:
      plan(fault, false);
      return FillResult{set_waiter(region, page, seen) ? Outcome::kBusy : Outcome::kChanged};
    case PageState::kResident:
      check_resident(region, page);
      return std::nullopt;
    case PageState::kGuard:
      if (region.table.lock(page.value, seen) && check_guard(region, page, seen))
        return std::nullopt;
      break;
    case PageState::kPoisoned:
      mark_lost(region, page, seen);
      return std::nullopt;
  }
  return FillResult{};
}

// Plans the read-ahead, once a fault: to a stream, the same page again is its end.
void Answerer::plan(Missing& fault, bool first_touch) {
  if (fault.planned) return;
  fault.planned = true;
  fault.first_touch = first_touch;
  fault.ahead = ahead_of(fault.region, fault.page, fault.thread_id, first_touch);
  if (fault.ahead.stride == 1) fault.request.run = fault.ahead.window;
}

// The page is resident, being read, or busy.
void Answerer::after_answer(const Missing& fault, const FillResult& result) {
  if (result.outcome == Outcome::kBusy) g_fault.watched.leave_to_another_thread();
  if (result.outcome == Outcome::kResident)
    g_fault.watched.ends(
        g_fault.watched.take(fault.region.address_of(fault.page), state_.page_size), false);
  state_.evictor->wake_if_low();
  if (!fault.first_touch && result.outcome != Outcome::kBusy)
    read_ahead(fault.region, fault.page, fault.ahead, result.pages);
}

// Plans what to bring in with a page: as advised for its range, else by the thread's stream.
ReadAhead Answerer::ahead_of(const Region& region, PageIndex page, int thread_id,
                             bool first_touch) {
  switch (region.access_of(page)) {
    case Access::kNormal:
      return streams_.on_fault(thread_id, &region, page.value, first_touch);
    case Access::kRandom:
      break;
    case Access::kSequential:
      state_.evictor->leave_behind(region, page);
      return {1, kReadRunMax};
  }
  return {1, 1};
}

// Starts to read the rest of a window, of which `taken` pages have been begun: further runs of a
// sequence, or the next steps of a stride.
void Answerer::read_ahead(Region& region, PageIndex page, const ReadAhead& ahead, unsigned taken) {
  const int64_t step = ahead.stride == 1 ? 0 : ahead.stride;
  for (unsigned covered = taken; covered < ahead.window;) {
    const uint64_t next =
        step == 0 ? page.value + covered : page.value + static_cast<uint64_t>(step) * covered;
    if (next >= region.pages) break;
    const PageWord there = region.table.peek(next);
    if (there.state() == PageState::kEmpty) break;
    FillResult result;
    if (there.state() == PageState::kEvicted)
      result = resolver_.start_read(region, PageIndex(next), there,
                                    {step == 0 ? ahead.window - covered : 1, kHeatReadAhead});
    if (result.outcome == Outcome::kNoRoom) break;
    covered += result.pages != 0 ? result.pages : 1;
  }
}

// A message for a page that is marked resident. Either it is late, because another message was
// answered. Or the program dropped the page by a raw call, and it must read as zeros, as
// without Lunar. A copy of zeros is right in both cases, as it fails on a page that is present.
void Answerer::check_resident(Region& region, PageIndex page) {
  counters().duplicates.add();
  void* address = region.address_of(page);
  const PageWord seen = region.table.peek(page.value);
  if (seen.state() == PageState::kResident && region.table.lock(page.value, seen)) {
    const bool dropped = install(state_, address, zero_run(), 1).outcome == InstallOutcome::kDone;
    if (dropped) sys::test_delay(test_switches.installed_delay_us);
    // It stays charged and resident. Its slot does not hold the zeros.
    const Slot slot = dropped ? kNoSlot : seen.slot();
    // It is not known to be exclusive, as the epoch was not read before the copy.
    release_page(state_, region, page, seen.with_slot(slot).with_epoch(kEpochUnknown));
    if (dropped) slot_release(state_, seen.lun(), seen.slot());
  }
  (void)sys::uffd_wake(state_.uffd, address, state_.page_size);
}

// A message for a guard page. Either it became one after the thread had faulted: the thread is
// woken and meets the kernel's marker, over which nothing may be copied. Or a raw call has removed
// the marker, and the page is empty. pre: the page is locked. True: the marker is there.
bool Answerer::check_guard(Region& region, PageIndex page, PageWord was) {
  const void* address = region.address_of(page);
  sys::PageFacts facts{};
  const bool known = pagemap_ >= 0 && sys::page_facts(pagemap_, &address, 1, &facts) == 0;
  const bool marked = known && facts.present;
  release_page(state_, region, page, marked ? was : was.with_state(PageState::kEmpty),
               marked ? Wake::kAll : Wake::kWaiters);
  return marked;
}

// A message for a lost page that has no mark of UFFDIO_POISON yet: it was moved, or the call failed
// before.
void Answerer::mark_lost(Region& region, PageIndex page, PageWord seen) {
  void* address = region.address_of(page);
  if (region.table.lock(page.value, seen)) {
    const int rc = sys::uffd_poison(state_.uffd, address, state_.page_size);
    // -EEXIST: it is marked, and this message is late. -ENOENT: another map is there.
    if (rc < 0 && rc != -EEXIST && rc != -EAGAIN && rc != -ENOENT)
      fatal("page %p was lost to a read error and cannot be poisoned (%s)", address,
            errno_name(rc));
    release_page(state_, region, page, seen);
  }
  (void)sys::uffd_wake(state_.uffd, address, state_.page_size);
}

// Nothing is evicted during a fork, and the fork may wait for a lock of a faulting thread, in a
// fork handler that runs after ours. The forking thread itself touches only a few pages. Other
// threads may exceed the budget by a few faults at a time, so that the thread with the lock goes
// on.
bool Answerer::may_pass_budget(int thread_id) {
  if (!state_.fork.forking.load(std::memory_order_seq_cst)) return false;
  if (is_forking(thread_id)) return true;
  const uint64_t now = sys::now_ns();
  if (now - state_.fork.since_ns.load() < kForkStandsNs) return false;
  if (now - passed_since_ >= kPassNs) {
    passed_since_ = now;
    passed_ = 0;
  }
  return passed_++ < kPassMax;
}

bool Answerer::is_forking(int thread_id) const {
  return thread_id != 0 && thread_id == state_.fork.thread_id.load(std::memory_order_relaxed);
}

// A write to a page that a fork has left shared. During a fork only two kinds of writes proceed,
// because the pages would be shared without protection: those of the forking thread and, after 50
// ms, those of any thread, which may hold a lock that the fork needs.
bool Answerer::answer_protected(Region& region, PageIndex page, int thread_id) {
  const bool forking = state_.fork.forking.load(std::memory_order_seq_cst),
             passes = forking && (is_forking(thread_id) ||
                                  sys::now_ns() - state_.fork.since_ns.load() > kForkMaxNs);
  if (forking && !passes) return false;
  switch (gate_lift(state_, region, page, pagemap_, passes)) {
    case Lift::kLifted:
      state_.evictor->wake_if_low();
      return true;
    case Lift::kBusy:
      return true;
    case Lift::kNoRoom:
      return false;
    case Lift::kNotThere:
      (void)sys::uffd_wake(state_.uffd, region.address_of(page), state_.page_size);
      return true;
  }
  return true;
}

// A message for an address outside of regions. Either it is late: the region has ended, or the
// place is foreign now. Or a raw mremap has grown a region's map in place, for which there is no
// event: the added pages are zeros.
void Answerer::answer_outside(const sys::UffdMessage& message) {
  void* address = reinterpret_cast<void*>(message.address);
  const bool answered =
      message.write_protected
          ? protect_pages(state_, address, state_.page_size, false) == 0
          : install(state_, address, zero_run(), 1).outcome == InstallOutcome::kDone;
  if (!answered) (void)sys::uffd_wake(state_.uffd, address, state_.page_size);
}

// The evictor itself met a missing page, which the program discarded by a raw call: it gets
// zeros, whatever the word says.
void Answerer::answer_evictor(const sys::UffdMessage& message) {
  if (message.write_protected) state_.account.unshare_always(1);  // it is making the page exclusive
  answer_outside(message);
}

}  // namespace lunar
