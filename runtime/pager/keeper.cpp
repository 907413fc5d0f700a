// SPDX-License-Identifier: Apache-2.0
// The housekeeper: a thread for what must not burden faults or evictions: dead members of the account, slots held for children that are
// gone, LUN space ahead of charge-on-touch memory, ranges that were unmapped past us, the live stats file. It sleeps until it is asked
// for something (keeper_wake), a child ends, or a service thread does, which is fatal. Only a stats file makes it look at the clock.
#include <errno.h>

#include "base/error.h"
#include "base/format.h"
#include "base/log.h"
#include "pager/evictor.h"
#include "pager/fork.h"
#include "pager/handler.h"
#include "pager/pager.h"
#include "pager/state.h"
#include "pager/unmapped.h"
#include "stats/export.h"
#include "sys/file.h"

namespace lunar {
namespace {

constexpr int64_t kStatsPeriodNs = 1000000000;   // of the stats file
constexpr int64_t kUnsureNs = 50000000;          // while a child is there whose end would not wake us
constexpr int64_t kUnsettledNs = 2000000;        // while a member ends
constexpr int64_t kSweepWaitNs = 200000000;
constexpr int64_t kTellAgainNs = 200000;         // while the maps' owner is busy and has something to be told

void grow_ahead(PagerState& state) {
  bool on_touch = false;
  for (uint32_t i = 0; i < state.regions.count.load(std::memory_order_acquire); ++i) {
    Region* region = state.regions.sorted[i].load(std::memory_order_acquire);
    if (region != nullptr && (region->flags & kRegionChargeOnTouch) != 0 && region->table_pages.load() != 0) on_touch = true;
  }
  if (!on_touch || !state.lun_ready.load()) return;
  // Reserving happens in charge(): take a step and give it back, so that charge_fast finds reserved space. The last of it is less than a step.
  SlotAllocator& lun = state.luns[state.own_lun];
  uint64_t step = (64 * kMiB) >> state.page_shift;
  while (step != 0 && lun.charge(step) < 0) step /= 2;
  if (step != 0) lun.uncharge(step);
}

void release_holds(PagerState& state) {
  for (auto& hold : state.fork_holds) {
    if (hold.epoch == 0 || state.account.child_lives(hold.epoch)) continue;
    state.luns[state.own_lun].uncharge(hold.slots);
    hold = {};
  }
}

enum class Swept { kNot, kUnsettled, kSettled };

// kNot: a fork is in hand, which may itself wait for this thread (unmapped.h). kUnsettled: the memory of a member that ends is being freed.
Swept sweep(PagerState& state) {
  // A fork's prepare holds this lock; what it set (oldest_child) must not be overwritten from an older sweep.
  if (state.forking.load(std::memory_order_acquire) || !state.fork_lock.try_lock()) return Swept::kNot;
  uint32_t oldest = 0;
  const bool settled = state.account.sweep(&oldest);
  state.oldest_child.store(oldest, std::memory_order_release);
  release_holds(state);
  state.fork_lock.unlock();
  deferred_slots_release();
  if (settled) {
    state.sweeps.fetch_add(1, std::memory_order_release);
    sys::futex_wake(&state.sweeps, INT32_MAX, false);
  }
  if (state.account.free_pages() < static_cast<int64_t>(state.evictor->low_water())) state.evictor->kick();
  return settled ? Swept::kSettled : Swept::kUnsettled;
}

// Until there is something to do, or it is time (stats file, or a child that cannot be waited for).
void wait_for_work(PagerState& state, Swept swept, bool told) {
  sys::FutexWait words[sys::kFutexWaitMax];
  bool unsure = false;
  words[0] = {&state.keeper_word, kKeeperRuns};
  unsigned n = 1 + state.account.child_words(words + 1, sys::kFutexWaitMax - 1, &unsure);
  int64_t timeout = state.options.stats_file != nullptr && state.options.stats_file[0] != 0 ? kStatsPeriodNs : -1;
  int64_t again = kUnsureNs;   // where the children's words cannot be waited for
  if (unsure || swept == Swept::kNot) timeout = kUnsureNs;
  if (swept == Swept::kUnsettled) timeout = again = kUnsettledNs;
  if (!told) timeout = again = kTellAgainNs;
  const int rc = sys::futex_wait_any(words, n, timeout);
  if (rc == -ENOSYS || rc == -EPERM) (void)sys::futex_wait_any(words, 1, again);
}

[[noreturn]] void say_who_ended(PagerState& state) {
  const char* name = "a service thread";
  char path[48];
  struct stat status;
  format_to(path, sizeof path, "/proc/self/task/%d", state.evictor_tid.load());
  if (sys::path_status(path, &status) == -ENOENT) name = "the evictor, a service thread,";
  fatal("%s has ended; only the kernel can do that: a seccomp filter of the program kills threads for a system call that Lunar needs. "
        "Allow it there, or run the program without Lunar (service thread has ended)", name);
}

}  // namespace

void keeper_wake(uint32_t what) {
  auto& state = pager_state();
  if ((state.keeper_word.fetch_or(what, std::memory_order_seq_cst) & what) != what) sys::futex_wake(&state.keeper_word, 1, true);
}

void wait_for_sweep() {
  auto& state = pager_state();
  if (!pager_armed() || sys::in_service_thread()) return;
  const uint32_t before = state.sweeps.load(std::memory_order_acquire);
  keeper_wake(kKeeperSweep);
  const uint64_t end = sys::now_ns() + static_cast<uint64_t>(kSweepWaitNs);
  while (state.sweeps.load(std::memory_order_acquire) == before && sys::now_ns() < end) (void)sys::futex_wait(&state.sweeps, before, kSweepWaitNs / 4, false);
}

void hand_over_room(bool sure) {
  auto& state = pager_state();
  if (!state.room_wanted.load(std::memory_order_seq_cst)) return;
  if (!sure && state.account.free_pages() <= kKeepFreePages) return;
  state.room_wanted.store(false, std::memory_order_seq_cst);
  for (unsigned i = 0; i < state.handler_count; ++i) state.handlers[i]->room_came();
}

void keeper_run() {
  auto& state = pager_state();
  for (;;) {
    const uint32_t asked = state.keeper_word.fetch_and(kKeeperRuns, std::memory_order_seq_cst);
    if ((asked & kKeeperRuns) == 0) say_who_ended(state);
    const bool told = unmaps_settle(state);
    const Swept swept = sweep(state);
    if ((asked & kKeeperGrow) != 0) {
      grow_ahead(state);
      hand_over_room(true);
    }
    lunar_stats stats{};
    pager_stats(&stats);
    stats_file_write(stats);
    wait_for_work(state, swept, told);
  }
}

// What the tree's account and our own LUN both still give: a child that lives holds its promise in the account, and in our LUN what it can
// reach there. One is there before the other as it begins, and after it as it has ended.
static void lun_space_stats(const PagerState& state, uint64_t committed, lunar_stats* out) {
  const int64_t used = state.account.lun_cap() - state.account.lun_free();
  int64_t free = state.account.lun_free(), forked = used - static_cast<int64_t>(committed);
  if (state.lun_ready.load()) {
    const SlotAllocator& lun = state.luns[state.own_lun];
    const auto page = static_cast<int64_t>(state.page_size), charged = static_cast<int64_t>(lun.charged_slots()) * page;
    const int64_t own = static_cast<int64_t>(lun.capacity_slots()) * page - charged, held = charged - static_cast<int64_t>(committed);
    if (own < free) free = own;
    if (held > forked) forked = held;
  }
  out->lun_free_bytes = static_cast<uint64_t>(free > 0 ? free : 0);
  out->lun_forked_bytes = static_cast<uint64_t>(forked > 0 ? forked : 0);
}

void pager_stats(lunar_stats* out) {
  auto& state = pager_state();
  auto& c = counters();
  size_t size = out->struct_size;
  *out = {};
  out->struct_size = size != 0 ? size : sizeof *out;
  out->page_bytes = state.page_size;
  out->dram_budget_bytes = state.dram_bytes;
  uint64_t committed = 0;
  for (uint32_t i = 0; i < state.regions.count.load(std::memory_order_acquire); ++i) {
    Region* region = state.regions.sorted[i].load(std::memory_order_acquire);
    if (region != nullptr) committed += region->committed_pages.load(std::memory_order_relaxed) << state.page_shift;
  }
  out->committed_bytes = committed;
  out->lun_capacity_bytes = state.lun_bytes;
  out->lun_free_bytes = state.lun_bytes > committed ? state.lun_bytes - committed : 0;   // nothing is charged before activation
  if (pager_armed()) {
    out->dram_budget_bytes = static_cast<uint64_t>(state.account.cap_pages()) << state.page_shift;
    out->fixed_bytes = static_cast<uint64_t>(state.account.own_fixed() + state.evictor->low_water()) << state.page_shift;
    out->dram_used_bytes = static_cast<uint64_t>(state.account.own_pages()) << state.page_shift;
    if (state.lun_ready.load()) {
      uint64_t used = state.luns[state.own_lun].used_slots() << state.page_shift;
      out->lun_used_bytes = used;
    }
    lun_space_stats(state, committed, out);
  }
  int64_t resident = c.resident.load(std::memory_order_relaxed);
  out->resident_bytes = static_cast<uint64_t>(resident > 0 ? resident : 0) << state.page_shift;
  out->resident_peak_bytes = static_cast<uint64_t>(state.resident_peak.load(std::memory_order_relaxed)) << state.page_shift;
  int64_t evicted = c.evicted.load(std::memory_order_relaxed);
  out->evicted_bytes = static_cast<uint64_t>(evicted > 0 ? evicted : 0) << state.page_shift;
  out->pinned_bytes = static_cast<uint64_t>(state.pinned_pages.load(std::memory_order_relaxed)) << state.page_shift;
  out->faults = c.faults;
  out->zero_fills = c.zero_fills;
  out->major_faults = c.major_faults;
  out->second_chances = c.second_chances;
  out->prefetched = c.prefetched;
  out->evictions = c.evictions;
  out->evicted_clean = c.evicted_clean;
  out->evicted_zero = c.evicted_zero;
  out->lun_read_bytes = c.read_bytes;
  out->lun_written_bytes = c.written_bytes;
  out->read_errors = c.read_errors;
  out->write_errors = c.write_errors;
  out->poisoned = c.poisoned;
  out->budget_waits = c.budget_waits;
  out->fork_count = c.forks;
}

}  // namespace lunar
