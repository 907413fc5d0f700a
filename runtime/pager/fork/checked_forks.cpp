// SPDX-License-Identifier: Apache-2.0
#include "pager/fork/checked_forks.h"

#include <errno.h>

#include <atomic>

#include "pager/activation/activate.h"
#include "pager/activation/activation.h"
#include "pager/fork/lun_ids.h"
#include "pager/space/deferred_slots.h"
#include "pager/space/lun_space.h"
#include "pager/state/requests.h"
#include "pager/table/table_promise.h"
#include "pager/table/tables.h"
#include "sys/arena.h"
#include "sys/log.h"

namespace lunar {
namespace {

struct CheckedForks {
  std::atomic<int> count{0};  // changes under the lock
  sys::SpinLock lock;
  uint64_t committed = 0;  // pages committed while there were such forks, since the process began
};
constinit CheckedForks g_forks;

// The reservations of this thread's check of a fork. This process is charged for them until prepare
// gives them to the child's member.
struct ForkChecked {
  bool plain = false;  // charged as plain memory
  int64_t fixed = 0, tables = 0, lun_bytes = 0;
  int member = -1;  // the child's, which prepare has made
  uint64_t ticket = 0;
  bool counted = false;  // by enter(), which returned `since`
  uint64_t since = 0;
};
constinit thread_local ForkChecked t_checked __attribute__((tls_model("initial-exec")));

// Counts the fork, before the check adds up what is committed. The result is the argument of
// leave().
uint64_t enter() {
  sys::ScopedSignalBlock signals;
  sys::Locked<sys::SpinLock> lock(g_forks.lock);
  g_forks.count.fetch_add(1, std::memory_order_seq_cst);
  return g_forks.committed;
}

// Ends that. Returns the bytes that were charged for this child since; they are the caller's now.
int64_t leave(PagerState& state, uint64_t since) {
  sys::ScopedSignalBlock signals;
  sys::Locked<sys::SpinLock> lock(g_forks.lock);
  g_forks.count.fetch_sub(1, std::memory_order_seq_cst);
  return static_cast<int64_t>((g_forks.committed - since) << state.page_shift);
}

// Returns the LUN space reserved for the child, with what was committed since; it is the caller's
// now.
int64_t take_checked(PagerState& state) {
  int64_t bytes = t_checked.lun_bytes;
  if (t_checked.counted) bytes += leave(state, t_checked.since);
  t_checked.counted = false;
  t_checked.lun_bytes = 0;
  return bytes;
}

// Reserves what a child needs of the tree's account, from which several processes may fork at once.
int reserve_for_child(PagerState& state, uint64_t pages) {
  const int64_t fixed = own_need(state, false, state.account.cap_pages()).pages() + table_pages(),
                tables = promise_pages();
  const bool has_room = state.account.promise_tables(tables, INT64_MIN) &&
                        state.account.reserve_fixed(fixed, kWorkRoom);
  if (!has_room) {
    (void)state.account.promise_tables(-tables, INT64_MIN);
    LUNAR_LOG_LIMITED(log_warning, 4,
                      "fork refused: the processes of this tree fill the DRAM budget with what "
                      "each needs for itself; give more (--dram)");
    return -ENOMEM;
  }
  const auto bytes = static_cast<int64_t>(pages << state.page_shift);
  if (state.account.lun_take(bytes) < 0) {
    wait_for_sweep(state);  // dead members count until a sweep
    if (state.account.lun_take(bytes) < 0) {
      state.account.give_fixed(fixed);
      (void)state.account.promise_tables(-tables, INT64_MIN);
      return -ENOSPC;
    }
  }
  t_checked.fixed = fixed;
  t_checked.tables = tables;
  t_checked.lun_bytes = bytes;
  return 0;
}

// Whether the limits on memory allow what a child's own pager maps (frames, windows, threads and
// rings, the tables of a LUN), and what our prepare handler maps. The child inherits the limits,
// which are on all that a process has mapped, so this tries to map as much. The answer errs towards
// no, because it also counts what a child does not inherit.
bool child_may_map(const PagerState& state) {
  if (!sys::memory_is_limited()) return true;
  constexpr uint64_t kThreadBytes = kMiB, kOtherBytes = 2 * kMiB;
  const OwnNeed need = own_need(state, false, state.account.cap_pages());
  const uint64_t slots = static_cast<uint64_t>(state.account.lun_cap()) >> state.page_shift,
                 threads = need.handlers + 2,
                 bytes = (static_cast<uint64_t>(need.pages()) << state.page_shift) +
                         threads * kThreadBytes + 2 * deferred_slots_bytes(slots) + kOtherBytes;
  void* probe = map_private(bytes, ForkPolicy::kDontFork);
  unmap_private(probe, bytes);
  return probe != nullptr;
}

// While the pager is not active: charges the child as plain memory. If the tree may not hold so
// much plain memory, the pager becomes active, which can make room.
int charge_plain_or_activate(PagerState& state) {
  if (state.is_active()) return 0;
  {
    sys::Locked<sys::Mutex> lock(g_activation.lock);
    if (!state.is_active() && plain_charge_fork(state)) {
      t_checked.plain = true;
      return 0;
    }
  }
  ErrorText why;
  return activate(state, &why) < 0 ? -ENOMEM : 0;
}

// Makes the own LUN reserve the space on its device, here where waiting for the file system does no
// harm.
int grow_lun(PagerState& state, uint64_t pages) {
  if (!state.luns.ready.load()) return 0;
  int rc = slots_charge(state, pages);
  if (rc < 0) {  // space may be held for children that have ended
    wait_for_sweep(state);
    rc = slots_charge(state, pages);
  }
  if (rc == 0) state.luns.slots[state.luns.own].uncharge(pages);
  return rc;
}

void say_no_lun_space(PagerState& state, uint64_t pages, int64_t left) {
  const uint64_t bytes = pages << state.page_shift;
  LUNAR_LOG_LIMITED(
      log_warning, 4, "fork refused: the child may come to need %s of LUN space and %s is left; %s",
      format_size(bytes).text, format_size(static_cast<uint64_t>(left > 0 ? left : 0)).text,
      space_remedy(state, space_bound(state, bytes)));
}

int reserve_all(PagerState& state) {
  if (!child_may_map(state)) {
    LUNAR_LOG_LIMITED(
        log_warning, 4,
        "fork refused: the child's own pager cannot map what it needs; raise the limit (%s)",
        sys::memory_limit());
    return -ENOMEM;
  }
  t_checked.since = enter();
  t_checked.counted = true;
  uint64_t pages = 0;
  {
    sys::Locked<sys::Mutex> lock(state.regions.lock);
    pages = committed_pages(state);
  }
  int rc = reserve_for_child(state, pages);
  if (rc == -ENOMEM) return rc;
  if (rc == 0) rc = grow_lun(state, pages);
  if (rc < 0) {
    const int64_t left = state.account.lun_free() + t_checked.lun_bytes;
    fork_failed(state);
    say_no_lun_space(state, pages, left);
    return -ENOMEM;
  }
  sys::Locked<sys::Mutex> forks(state.fork.lock);
  return lun_id_for_child(state) < 0 ? -EAGAIN : 0;
}

}  // namespace

int fork_check(PagerState& state) {
  if (t_checked.counted) fork_failed(state);  // a fork handler of the program's forks
  t_checked = {};
  if (forked_past_us(state) != 0) return 0;
  if (const int rc = charge_plain_or_activate(state); rc < 0 || t_checked.plain) return rc;
  sys::ScopedSignalBlock signals;  // a fork in a signal handler would wait for the locks taken here
  const int rc = reserve_all(state);
  if (rc < 0) fork_failed(state);
  return rc;
}

void fork_failed(PagerState& state) {
  sys::ScopedSignalBlock signals;
  const int64_t lun_bytes = take_checked(state);
  const ForkChecked was = t_checked;
  t_checked = {};
  if (was.plain) {
    sys::Locked<sys::Mutex> lock(g_activation.lock);
    if (!state.is_active()) plain_uncharge_fork(state);  // else activation has done that
  }
  if (was.fixed != 0) state.account.give_fixed(was.fixed);
  if (was.tables != 0) (void)state.account.promise_tables(-was.tables, INT64_MIN);
  if (lun_bytes != 0) state.account.lun_give(lun_bytes);
  if (was.member < 0) return;
  state.account.release_child(static_cast<unsigned>(was.member), was.ticket);
  // frees the slots that were held for the child
  if (state.is_active()) housekeeping_wake(state, kHousekeepingSweep);
}

CheckedFork fork_take_checked(PagerState& state) {
  const int64_t lun_bytes = take_checked(state);
  return {t_checked.fixed, t_checked.tables, lun_bytes};
}

void fork_has_member(int member, uint64_t ticket) {
  t_checked = {};
  t_checked.member = member;
  t_checked.ticket = ticket;
}

bool checked_forks_charge(PagerState& state, uint64_t pages) {
  // A check that is not counted yet will count the pages itself.
  if (g_forks.count.load(std::memory_order_seq_cst) == 0) return true;
  sys::ScopedSignalBlock signals;
  sys::Locked<sys::SpinLock> lock(g_forks.lock);
  const int64_t count = g_forks.count.load(std::memory_order_relaxed);
  if (count == 0) return true;
  if (state.account.lun_take(count * static_cast<int64_t>(pages << state.page_shift)) < 0)
    return false;
  g_forks.committed += pages;
  return true;
}

// Forks of the parent's other threads are not this process'.
void checked_forks_enter_child() {
  t_checked = {};
  g_forks.lock.unlock();
  g_forks.count.store(0);
}

}  // namespace lunar
