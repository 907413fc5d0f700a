// SPDX-License-Identifier: Apache-2.0
#include "pager/evict/evictor.h"

#include <algorithm>

#include "base/format.h"
#include "pager/space/deferred_slots.h"
#include "pager/space/lun_space.h"
#include "pager/state/install.h"
#include "pager/state/requests.h"
#include "pager/table/tables.h"

namespace lunar {
namespace {

constexpr uint64_t kOthersMayEvictNs = 20'000'000;
// while pages are shared: such a page is free only when all members have released it
constexpr uint64_t kRelativesMayEvictNs = 2'000'000;
constexpr uint64_t kSweepEveryNs = 50'000'000;  // while DRAM is short

}  // namespace

int Evictor::open(uint32_t frame_count) {
  state_.services.housekeeping_word.store(kHousekeepingRuns);
  state_.services.room_wanted.store(false);
  writer_.free_buffers();  // in a forked child, its parent's
  int rc = frames_.open(frame_count, state_.page_size, -1);
  if (rc == 0) rc = taker_.open(frame_count);
  if (rc == 0) rc = writer_.open(frame_count);
  if (rc < 0) return rc;
  int64_t cap = state_.account.cap_pages();
  // Read-ahead and first touches come in runs of 64 pages and more: a small budget has room for a
  // few of them as well.
  const int64_t low = std::max(std::min<int64_t>(cap / 32, 8 * kBatchPages), cap / 128);
  low_water_ = static_cast<uint32_t>(std::clamp<int64_t>(low, 48, 1024)) + kKeepFreePages;
  high_water_ = low_water_ + kBatchPages * 2;
  pause_requests_.store(0);
  resting_.store(0);
  state_.services.evictor_asleep.store(false);
  range_lock_.reset_in_child();
  range_region_.store(nullptr);
  chooser_.reset();
  batch_.count = 0;
  going_ = false;
  return 0;
}

int Evictor::start() {
  if (int rc = taker_.start(); rc < 0) return rc;
  const auto run = [](void* self) { static_cast<Evictor*>(self)->run(); };
  pthread_t thread;
  return sys::thread_start_beside_exec(
      {"lunar-evict", run, this, false, false, &state_.services.housekeeping_word}, &thread);
}

// A member above its share evicts. When that does not help for a while (its pages may be pinned),
// all members do.
bool Evictor::should_evict() {
  Account& account = state_.account;
  if (account.free_pages() >= static_cast<int64_t>(low_water_)) {
    short_since_ = 0;
    return false;
  }
  uint64_t now = sys::now_ns();
  if (now - swept_ns_ > kSweepEveryNs) {  // dead members still count
    swept_ns_ = now;
    housekeeping_wake(state_, kHousekeepingSweep);
  }
  if (account.above_share()) return true;
  if (short_since_ == 0) {
    short_since_ = now;
    account.raise_pressure();  // a member above its share may sleep
  }
  return now - short_since_ >
         (account.shared_pages() != 0 ? kRelativesMayEvictNs : kOthersMayEvictNs);
}

void Evictor::wake_if_low() {
  if (state_.account.free_pages() < static_cast<int64_t>(low_water_)) evictor_wake(state_);
}

void Evictor::run() {
  state_.services.evictor_tid.store(sys::thread_id());
  taker_.attach();
  for (;;) {
    uint32_t pressure_seen = 0;
    switch (next_action(&pressure_seen)) {
      case Action::kRest:
        rest_until_resumed();
        break;
      case Action::kEvictRange:
        evict_of_range();
        break;
      case Action::kEvict:
        evict_or_wait(pressure_seen);
        break;
      case Action::kSleep:
        sleep_or_reap(pressure_seen);
        break;
    }
  }
}

// Decides what to do next. Handles finished writes unless it rests. A pause that has ended is
// looked at again, because another one may have begun, and have seen this thread rest.
Evictor::Action Evictor::next_action(uint32_t* pressure_seen) {
  if (pause_requests_.load(std::memory_order_seq_cst) != 0) return Action::kRest;
  *pressure_seen = state_.account.pressure();
  hand_over_room(state_, false);
  (void)writer_.reap(false);
  if (writer_.has_failed()) writer_.rewrite_failed();
  if (range_region_.load(std::memory_order_acquire) != nullptr) return Action::kEvictRange;
  const int64_t free = state_.account.free_pages();
  going_ = (going_ && free < static_cast<int64_t>(high_water_) && state_.account.above_share()) ||
           should_evict();
  return going_ ? Action::kEvict : Action::kSleep;
}

// Evicts a batch. If nothing can be evicted now, waits until DRAM is given back, or for some time.
void Evictor::evict_or_wait(uint32_t pressure_seen) {
  if (chooser_.choose(batch_, taker_.limit()) && evict() != 0) {
    nothing_ns_ = kNothingFirstNs;
    return;
  }
  if (pause_requests_.load() != 0) return;
  state_.account.wait_pressure(pressure_seen, nothing_ns_);
  if (nothing_ns_ < kNothingMostNs) nothing_ns_ *= 2;
}

void Evictor::rest_until_resumed() {
  writer_.drain(true);
  resting_.store(1, std::memory_order_seq_cst);
  while (pause_requests_.load(std::memory_order_acquire) != 0) sys::sleep_ns(20'000);
  resting_.store(0, std::memory_order_seq_cst);
}

// Evicts the next batch of evict_range(), or ends the request.
void Evictor::evict_of_range() {
  Region* region = range_region_.load(std::memory_order_relaxed);
  if (chooser_.choose_range(batch_, taker_.limit(), region, &range_first_, range_end_)) {
    range_result_ += evict();
    return;
  }
  writer_.drain(false);
  range_region_.store(nullptr, std::memory_order_relaxed);
  range_done_.fetch_add(1, std::memory_order_release);
  sys::futex_wake(&range_done_, INT32_MAX, false);
}

// There is room. Waits for writes that are in flight, else until the pressure is raised.
void Evictor::sleep_or_reap(uint32_t pressure_seen) {
  state_.services.evictor_asleep.store(true, std::memory_order_seq_cst);
  if (!should_evict() && range_region_.load() == nullptr && pause_requests_.load() == 0) {
    if (writer_.in_flight() != 0) {
      state_.services.evictor_asleep.store(false);
      (void)writer_.reap(true);
    } else {
      state_.account.wait_pressure(pressure_seen,
                                   short_since_ != 0 || writer_.has_failed() ? 2'000'000 : -1);
    }
  }
  state_.services.evictor_asleep.store(false, std::memory_order_release);
}

void Evictor::pause() {
  pause_requests_.fetch_add(1, std::memory_order_seq_cst);
  state_.account.raise_pressure();
  while (resting_.load(std::memory_order_seq_cst) == 0) sys::sleep_ns(10'000);
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
    (void)sys::futex_wait(&range_done_, seen, 100'000'000, false);
  return range_result_;
}

// Evicts the batch. Returns how many pages have left the program's memory.
unsigned Evictor::evict() {
  counters().batches.add();
  taker_.forbid_merging();
  if (!writer_.make_room(batch_.count)) {  // before batch_begin, as other threads wait for the end
    for (Victim& victim : batch_) keep(state_, victim, 0);
    return 0;
  }
  state_.account.batch_begin();
  const unsigned dropped = taker_.take(batch_);
  state_.account.batch_end();
  if (batch_.count != 0) settle();
  writer_.flush();
  return dropped;
}

// Settles each victim of the batch: resident again if it was not dropped, else empty, clean or to
// be written.
void Evictor::settle() {
  int64_t dropped = 0, may_be_shared = 0, in_frames = 0;
  for (Victim& victim : batch_) {
    switch (victim.outcome) {
      case Victim::Outcome::kDropped:
      case Victim::Outcome::kGuard:
        victim.region->note_resident(victim.page, -1);
        ++dropped;
        may_be_shared += victim.may_be_shared;
        break;
      case Victim::Outcome::kStays:
      case Victim::Outcome::kStaysHot:
        frames_.put_free(victim.frame);
        keep(state_, victim, victim.outcome == Victim::Outcome::kStaysHot ? kHeatHot : 0);
        break;
    }
  }
  batch_.close_gaps();
  // Once for the whole batch: handlers write to these two counters at each fault.
  counters().resident.fetch_sub(dropped, std::memory_order_relaxed);
  count_evicted(dropped);
  counters().evictions.add(static_cast<uint64_t>(dropped));
  advance_time(dropped);
  state_.account.give_maybe_shared(may_be_shared);
  state_.account.give(dropped - may_be_shared);
  hand_over_room(state_, false);
  for (Victim& victim : batch_) in_frames += decide(victim);
  for (const Victim& victim : batch_)  // pages of zeros are empty now
    if (victim.frame == UINT32_MAX)
      table_retire(state_, *victim.region, victim.page.value, victim.page.value + 1);
  if (in_frames != dropped) count_evicted(in_frames - dropped);
}

void Evictor::advance_time(int64_t evicted) {
  const int64_t tick = std::max<int64_t>(state_.account.own_pages() / kTicksPerBudget, 1);
  for (since_tick_ += evicted; since_tick_ >= tick; since_tick_ -= tick)
    state_.eviction_time.fetch_add(1, std::memory_order_relaxed);
}

// Decides the state of a dropped page. Returns whether its content is now only in its frame.
bool Evictor::decide(Victim& victim) {
  AtomicPageWord& word = victim.region->table.at(victim.page.value);
  if (victim.outcome != Victim::Outcome::kGuard && word.load(std::memory_order_acquire).waiter() &&
      install_for_waiter(victim))
    return false;
  if (page_is_zero(frames_.memory(victim.frame))) {
    leave_empty(victim);
    return false;
  }
  const PageWord was = victim.word;
  const uint64_t hash = page_hash(frames_.memory(victim.frame));
  const bool clean = was.has_slot() && victim.region->table.hash(victim.page.value) == hash;
  if (!clean && was.has_slot()) slot_release(state_, was.lun(), was.slot());
  victim.region->table.hash(victim.page.value) = hash;
  Frame& frame = frames_.at(victim.frame);
  frame.word.store(&word, std::memory_order_release);
  frame.address.store(victim.address(), std::memory_order_release);
  frame.slots_tried = 0;
  frame.slot_failed = false;
  frame.slot = clean ? was.slot() : kNoSlot;
  frame.lun = static_cast<uint8_t>(clean ? was.lun() : state_.luns.own);
  frame.state.store(clean ? FrameState::kClean : FrameState::kWriting, std::memory_order_release);
  if (clean) {
    frames_.queue_clean(victim.frame);
    counters().evicted_clean.add();
  } else {
    writer_.add(victim.frame);
  }
  release_page(state_, *victim.region, victim.page,
               was.with_state(PageState::kInFrame)
                   .with_index(victim.frame)
                   .with_eviction_time(state_.eviction_time.load(std::memory_order_relaxed)));
  return true;
}

// The page is all zeros, or a guard page.
void Evictor::leave_empty(Victim& victim) {
  const PageWord was = victim.word;
  if (was.has_slot()) slot_release(state_, was.lun(), was.slot());
  uncharge_touched(state_, *victim.region, was);
  frames_.put_free(victim.frame);
  victim.frame = UINT32_MAX;
  counters().evicted_zero.add();
  release_page(state_, *victim.region, victim.page,
               was.emptied(victim.outcome == Victim::Outcome::kGuard ? PageState::kGuard
                                                                     : PageState::kEmpty));
}

// A thread faulted on the page while it was being taken: installs it again at once.
bool Evictor::install_for_waiter(Victim& victim) {
  if (!state_.account.take(1, 0)) return false;
  const uint16_t epoch = exclusive_epoch(state_);
  if (install(state_, victim.address(), frames_.memory(victim.frame), 1).outcome !=
      InstallOutcome::kDone) {
    state_.account.give(1);
    return false;
  }
  count_resident(state_, *victim.region, victim.page, 1);
  counters().second_chances.add();
  frames_.put_free(victim.frame);
  const PageWord was = victim.word;
  release_page(state_, *victim.region, victim.page,
               resident_word(was, was.slot(), was.lun(), kHeatSecondChance, epoch));
  return true;
}

void Evictor::dump(int fd) const {
  char line[192];
  size_t n =
      format_to(line, sizeof line,
                "evictor: %s, frames free %u of %u, writes in flight %u, pause requests %u\n",
                state_.services.evictor_asleep.load() ? "asleep"
                : resting_.load()                     ? "resting"
                                                      : "at work",
                frames_.free_count(), frames_.count(), writer_.in_flight(), pause_requests_.load());
  (void)sys::write_to_program(fd, line, n);
}

}  // namespace lunar
