// SPDX-License-Identifier: Apache-2.0
// The housekeeping thread does what must not burden faults or evictions: it reaps dead members of the account, frees
// slots that were held for children, and reserves LUN space ahead of charge-on-touch memory. It sleeps until a request
// (housekeeping_wake), the end of a child, or the end of a service thread, which is fatal. With the program's last
// thread it ends the process. Program threads wait for it (TableRequest): it writes to no file of the user's but the
// log. The live stats file has a thread of its own.
#include <errno.h>

#include "base/format.h"
#include "pager/evict/evictor.h"
#include "pager/fault/handler.h"
#include "pager/fork/fork.h"
#include "pager/pager.h"
#include "pager/state/program_end.h"
#include "pager/state/state.h"
#include "stats/export.h"
#include "sys/fatal.h"
#include "sys/file.h"
#include "sys/log.h"
#include "sys/proc.h"

namespace lunar {
namespace {

constexpr uint64_t kStatsPeriodNs = 1000000000, kStatsBusyPeriodNs = 100000000;  // of the stats file
constexpr int64_t kUnsureNs = 50000000;    // while there is a child whose end would not wake us
constexpr int64_t kUnsettledNs = 2000000;  // while a member ends, or leaves of page tables wait for the end of scopes
constexpr int64_t kSweepWaitNs = 200000000;
constexpr unsigned kThreadLooks = 200;  // the last thread is still on its way out when its descriptors are closed
constexpr int64_t kThreadLookNs = 5000000;

void grow_ahead(PagerState& state) {
  bool on_touch = false;
  for (uint32_t i = 0; i < state.regions.count.load(std::memory_order_acquire); ++i) {
    Region* region = state.regions.sorted[i].load(std::memory_order_acquire);
    if (region != nullptr && (region->flags & kRegionChargeOnTouch) != 0 && region->table_pages.load() != 0)
      on_touch = true;
  }
  if (!on_touch || !state.lun_ready.load()) return;
  // Reserving happens in charge(): take a step and give it back, so that charge_fast finds reserved space. The last of
  // it is less than a step.
  SlotAllocator& lun = state.luns[state.own_lun];
  uint64_t step = (64 * kMiB) >> state.page_shift;
  while (step != 0 && lun.charge(step) < 0) step /= 2;
  if (step != 0) lun.uncharge(step);
  state.growth_refused.store(step == 0);
}

// For program threads that could not do so themselves. Threads that wait for another page look again, and wait on.
void wake_all_waiters(PagerState& state) {
  for (uint32_t i = 0; i < state.regions.count.load(std::memory_order_acquire); ++i)
    if (const Region* region = state.regions.sorted[i].load(std::memory_order_acquire); region != nullptr)
      (void)sys::uffd_wake(state.uffd, region->base, region->pages << state.page_shift);
}

void release_reservations(PagerState& state) {
  for (auto& reservation : state.fork_reservations) {
    if (reservation.epoch == 0 || state.account.child_lives(reservation.epoch)) continue;
    state.luns[state.own_lun].uncharge(reservation.slots);
    reservation = {};
  }
}

enum class Swept { kNot, kUnsettled, kSettled };

// kNot: a fork is under way, which may itself wait for this thread (TableRequest); only the account is swept.
// kUnsettled: the memory of an ending member is being freed, or a member is stopped that holds the account's lock.
Swept sweep(PagerState& state) {
  // A fork's prepare holds this lock; what it set (oldest_child) must not be overwritten from an older sweep.
  if (state.forking.load(std::memory_order_acquire) || !state.fork_lock.try_lock()) {
    // The forking thread may wait for what a dead member is still charged: its own stack can be evicted.
    uint32_t ignored = 0;
    (void)state.account.sweep(&ignored);
    return Swept::kNot;
  }
  uint32_t oldest = state.oldest_child.load(std::memory_order_acquire);
  const bool settled = state.account.sweep(&oldest);
  state.oldest_child.store(oldest, std::memory_order_release);
  release_reservations(state);
  state.fork_lock.unlock();
  deferred_slots_release(state);
  if (settled) {
    state.sweeps.fetch_add(1, std::memory_order_release);
    sys::futex_wake(&state.sweeps, INT32_MAX, false);
  }
  state.evictor->wake_if_low();
  return settled ? Swept::kSettled : Swept::kUnsettled;
}

// Sleeps until there is work or a timeout (a child that cannot be waited for, a program that may be ending).
void wait_for_work(PagerState& state, Swept swept, bool trimming, bool ending) {
  sys::FutexWait words[sys::kFutexWaitMax];
  bool unsure = false;
  words[0] = {&state.housekeeping_word, kHousekeepingRuns};
  unsigned n = 1 + state.account.child_words(words + 1, sys::kFutexWaitMax - 1, &unsure);
  int64_t timeout = -1;
  int64_t again = kUnsureNs;  // where the children's words cannot be waited for
  if (unsure || swept == Swept::kNot) timeout = kUnsureNs;
  if (swept == Swept::kUnsettled) timeout = again = kUnsettledNs;
  if (trimming) timeout = again = kUnsettledNs;
  if (ending) timeout = again = kThreadLookNs;
  const int rc = sys::futex_wait_any(words, n, timeout);
  if (rc == -ENOSYS || rc == -EPERM) (void)sys::futex_wait_any(words, 1, again);
}

[[noreturn]] void say_who_ended(PagerState& state) {
  const char* name = "a service thread";
  char path[48];
  struct stat status;
  format_to(path, sizeof path, "/proc/self/task/%d", state.evictor_tid.load());
  if (sys::path_status(path, &status) == -ENOENT) name = "the evictor, a service thread,";
  fatal(
      "%s has ended; only the kernel can do that: a seccomp filter of the program kills threads for a system call that "
      "Lunar needs. "
      "Allow it there, or run the program without Lunar (service thread has ended)",
      name);
}

}  // namespace

void housekeeping_wake(PagerState& state, uint32_t what) {
  if ((state.housekeeping_word.fetch_or(what, std::memory_order_seq_cst) & what) != what)
    sys::futex_wake(&state.housekeeping_word, 1, true);
}

void wait_for_sweep(PagerState& state) {
  if (!pager_active() || sys::in_service_thread()) return;
  const uint32_t before = state.sweeps.load(std::memory_order_acquire);
  housekeeping_wake(state, kHousekeepingSweep);
  const uint64_t end = sys::now_ns() + static_cast<uint64_t>(kSweepWaitNs);
  while (state.sweeps.load(std::memory_order_acquire) == before && sys::now_ns() < end)
    (void)sys::futex_wait(&state.sweeps, before, kSweepWaitNs / 4, false);
}

void hand_over_room(PagerState& state, bool sure) {
  if (!state.room_wanted.load(std::memory_order_seq_cst)) return;
  if (!sure && state.account.free_pages() <= kKeepFreePages) return;
  state.room_wanted.store(false, std::memory_order_seq_cst);
  for (unsigned i = 0; i < state.handler_count; ++i) state.handlers[i]->room_came();
}

void stats_file_run(void*) {
  for (uint64_t before = 0;;) {
    lunar_stats stats{};
    pager_stats(&stats);
    stats_file_write(stats);
    const uint64_t changes = stats.faults + stats.evictions;
    sys::sleep_ns(changes == before ? kStatsPeriodNs : kStatsBusyPeriodNs);
    before = changes;
  }
}

void housekeeping_run(PagerState& state) {
  unsigned looks = 0;  // for threads of a program that may have ended
  bool trimming = false;
  for (;;) {
    const uint32_t asked = state.housekeeping_word.fetch_and(kHousekeepingRuns, std::memory_order_seq_cst);
    if ((asked & kHousekeepingRuns) == 0) say_who_ended(state);
    if ((asked & kHousekeepingProgram) != 0) looks = kThreadLooks;
    if (looks != 0 && !program_has_threads()) sys::end_as_first_thread();
    if (looks != 0) --looks;
    answer_table_request(state);
    if ((asked & kHousekeepingWake) != 0) wake_all_waiters(state);
    trimming = (trimming || (asked & kHousekeepingTables) != 0) && !table_trim(state);
    const Swept swept = sweep(state);
    if ((asked & kHousekeepingGrow) != 0) {
      grow_ahead(state);
      hand_over_room(state, true);
    }
    wait_for_work(state, swept, trimming, looks != 0);
  }
}

}  // namespace lunar
