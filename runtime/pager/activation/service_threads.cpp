// SPDX-License-Identifier: Apache-2.0
// Starts the service threads, and has the housekeeping thread (README.md). Program threads wait for
// that thread (TableRequest), so it writes to no file of the user except the log; the live stats
// file has a thread of its own. The activating thread starts the threads, under activation's lock,
// possibly inside an allocator's hook: code that allocates then runs under a HostGuard.
#include "pager/activation/service_threads.h"

#include <errno.h>

#include "base/format.h"
#include "base/host_guard.h"
#include "pager/activation/activation.h"
#include "pager/evict/evictor.h"
#include "pager/fault/fault_state.h"
#include "pager/fault/handler.h"
#include "pager/space/deferred_slots.h"
#include "pager/state/program_end.h"
#include "pager/state/requests.h"
#include "pager/table/tables.h"
#include "stats/export.h"
#include "sys/arena.h"
#include "sys/fatal.h"
#include "sys/numa.h"
#include "sys/proc.h"

namespace lunar {
namespace {

// while there is a child whose end would not wake this thread
constexpr int64_t kUnsureNs = 50'000'000;
// while a member ends, or leaves of page tables wait for the end of scopes
constexpr int64_t kUnsettledNs = 2'000'000;
// looks for threads of the program: its last thread still exists when its descriptors are closed
constexpr unsigned kThreadLooks = 200;
constexpr int64_t kThreadLookNs = 5'000'000;

// Reserves LUN space ahead of MAP_NORESERVE memory.
void grow_ahead(PagerState& state) {
  bool on_touch = false;
  for (const Region& region : state.regions)
    on_touch |= region.on_touch && region.table_pages.load() != 0;
  if (!on_touch || !state.luns.ready.load()) return;
  // charge() reserves space: a step is charged and uncharged, so that charge_fast finds space. Near
  // the end of the LUN a smaller step succeeds.
  SlotAllocator& lun = state.luns.slots[state.luns.own];
  uint64_t step = (64 * kMiB) >> state.page_shift;
  while (step != 0 && lun.charge(step) < 0) step /= 2;
  if (step != 0) lun.uncharge(step);
  state.luns.growth_refused.store(step == 0);
}

// For program threads that could not wake a page's waiters themselves. Threads that wait for other
// pages fault again.
void wake_all_waiters(PagerState& state) {
  for (const Region& region : state.regions)
    (void)sys::uffd_wake(state.uffd, region.base, region.pages << state.page_shift);
}

enum class Swept { kNot, kUnsettled, kSettled };

// Sweeps the account, and frees what was held for children that have ended. kNot: a fork is under
// way, which may wait for this thread (TableRequest), so only the account was swept. kUnsettled:
// the memory of an ending member is being freed, or a member that holds the account's lock is
// stopped.
Swept sweep(PagerState& state) {
  // A fork's prepare holds this lock: an older sweep must not overwrite the oldest_child that it
  // has set.
  if (state.fork.forking.load(std::memory_order_acquire) || !state.fork.lock.try_lock()) {
    // The forking thread may wait for DRAM that a dead member is still charged for, as its stack
    // can be evicted.
    uint32_t ignored = 0;
    (void)state.account.sweep(&ignored);
    return Swept::kNot;
  }
  uint32_t oldest = state.fork.oldest_child.load(std::memory_order_acquire);
  const bool settled = state.account.sweep(&oldest);
  state.fork.oldest_child.store(oldest, std::memory_order_release);
  reservations_release(state);
  state.fork.lock.unlock();
  deferred_slots_release(state);
  if (settled) {
    state.services.sweeps.fetch_add(1, std::memory_order_release);
    sys::futex_wake(&state.services.sweeps, INT32_MAX, false);
  }
  state.evictor->wake_if_low();
  return settled ? Swept::kSettled : Swept::kUnsettled;
}

// Sleeps until there is work, or with a timeout if something cannot wake it.
void wait_for_work(PagerState& state, Swept swept, bool trimming, bool ending) {
  sys::FutexWait words[sys::kFutexWaitMax];
  bool unsure = false;
  words[0] = {&state.services.housekeeping_word, kHousekeepingRuns};
  unsigned n = 1 + state.account.child_words(words + 1, sys::kFutexWaitMax - 1, &unsure);
  int64_t timeout = -1;
  int64_t again = kUnsureNs;  // timeout if the children's words cannot be waited for
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
  format_to(path, sizeof path, "/proc/self/task/%d", state.services.evictor_tid.load());
  if (sys::path_status(path, &status) == -ENOENT) name = "the evictor (a service thread)";
  fatal(
      "%s has ended; only the kernel can do that: a seccomp filter of the program kills threads "
      "for a system call that Lunar needs. Allow it there, or run the program without Lunar",
      name);
}

// Never returns.
void housekeeping_run(PagerState& state) {
  unsigned looks = 0;  // that are left, for threads of a program that may have ended
  bool trimming = false;
  for (;;) {
    const uint32_t asked =
        state.services.housekeeping_word.fetch_and(kHousekeepingRuns, std::memory_order_seq_cst);
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

void housekeeping_thread(void* argument) {
  auto& state = *static_cast<PagerState*>(argument);
  state.services.housekeeping_tid.store(sys::thread_id());
  // A descriptor table of its own, because the program may close any number. It has none of the
  // program's files, because an open end of a pipe would hide the end of file from the reader.
  int keep[kLunIds * kDeviceFdsMax + 11];
  unsigned n = 0;
  keep[n++] = state.uffd;
  keep[n++] = program_end_descriptor();
  if (const int account = state.account.descriptor(); account >= 0) keep[n++] = account;
  standby_descriptors(state, keep, &n);
  for (Device* device : state.luns.devices)
    for (unsigned i = 0; device != nullptr && i < device->fd_count(); ++i)
      keep[n++] = device->fd(i);
  state.evictor->add_descriptors(keep, &n);
  sys::close_all_but(keep, n);
  state.account.lock_alive();
  // Handlers start before any thread that evicts or may fault.
  int rc = 0;
  for (unsigned i = 0; rc == 0 && i < state.services.handler_count; ++i)
    rc = g_fault.handlers[i]->start();
  const auto handlers_run = [&] {
    return state.services.handlers_running.load(std::memory_order_acquire) >=
           state.services.handler_count;
  };
  if (rc == 0) sys::wait_for_start("lunar-fault", handlers_run);
  if (rc == 0) rc = state.evictor->start();
  pthread_t stats;
  if (rc == 0 && stats_file_is_open())
    rc = sys::thread_start_beside_exec(
        {"lunar-stats", stats_file_run, nullptr, false, false, &state.services.housekeeping_word},
        &stats);
  if (rc < 0) fatal("pager: service threads cannot be started (%s)", errno_name(rc));
  // The last thread is made, and no service thread allocates any more. Only now may a forked child
  // stop using the early heap: its other fork handlers, and the allocator's, run concurrently with
  // this thread.
  host_fork_bootstrap.store(false);
  housekeeping_run(state);
}

int open_evictor(PagerState& state, const OwnNeed& need, ErrorText* why) {
  if (state.evictor == nullptr) state.evictor = arena_new<Evictor>(state, state.frames);
  if (state.evictor == nullptr) return why->set(-ENOMEM, "pager: out of memory");
  // Frames, the pipe and the staging area are DRAM like any other.
  state.account.take_fixed(need.frames + 2 * kBatchPages);
  const int rc = state.evictor->open(need.frames);
  if (rc == 0) return 0;
  return why->set(rc, "pager: frames or pipe cannot be made (%s); %s", errno_name(rc),
                  rc == -EMFILE   ? "raise the limit (ulimit -n)"
                  : rc == -ENOMEM ? "raise the limit on memory (ulimit -v, ulimit -d)"
                                  : "see pipe-user-pages-soft");
}

// Handler i serves node i % nodes.
int open_handlers(PagerState& state, const OwnNeed& need, ErrorText* why) {
  const unsigned window = need.window, nodes = static_cast<unsigned>(sys::numa_nodes());
  LUNAR_DCHECK(nodes > 0);
  state.services.handler_count = 0;
  for (unsigned i = 0; i < need.handlers; ++i) {
    if (g_fault.handlers[i] == nullptr) g_fault.handlers[i] = arena_new<Handler>(state);
    if (g_fault.handlers[i] == nullptr) return why->set(-ENOMEM, "pager: out of memory");
    const int rc = g_fault.handlers[i]->open(i, i < nodes || window < 128 ? window : window / 2,
                                             static_cast<int>(i % nodes));
    if (rc < 0)
      return why->set(rc,
                      "pager: the DRAM budget of %s has no room for handlers; give more (--dram)",
                      format_size(state.dram_bytes).text);
    ++state.services.handler_count;
  }
  return 0;
}

// Starts the housekeeping thread, which starts the others.
int launch(PagerState& state, ErrorText* why) {
  int rc = program_end_prepare();
  if (rc < 0)
    return why->set(rc, "pager: a pipe cannot be made (%s); raise the limit (ulimit -n)",
                    errno_name(rc));
  g_activation.making_threads_ns.store(sys::now_ns(), std::memory_order_release);
  // Making threads allocates. A thread that forks meanwhile holds the allocator's locks and waits
  // for this thread.
  host_fork_bootstrap.store(true);
  state.services.handlers_running.store(0);
  rc = sys::thread_start_beside_exec({"lunar-housekeep", housekeeping_thread, &state, true},
                                     &state.services.housekeeping);
  if (rc == 0) return 0;
  host_fork_bootstrap.store(false);
  program_end_close_reading();
  program_end_forget();
  if (rc == -EINVAL)
    return why->set(rc,
                    "pager: service threads cannot be started (EINVAL): not after "
                    "unshare(CLONE_NEWPID); use the tiered memory before, or in a child");
  const bool short_of_memory = rc == -ENOMEM || (rc == -EAGAIN && sys::memory_is_limited());
  return why->set(rc, "pager: service threads cannot be started (%s); raise the limit (%s)",
                  errno_name(rc), short_of_memory ? sys::memory_limit() : "ulimit -u");
}

// A child may exec at once. If it has no lock in the account, its end is detected only by `alive`,
// from here on.
void wait_until_served(PagerState& state) {
  sys::wait_for_start("lunar-housekeep", [&] {
    return state.account.alive_locked() &&
           state.services.handlers_running.load(std::memory_order_acquire) >=
               state.services.handler_count;
  });
}

// Uses the DRAM that was reserved.
int make_threads(PagerState& state, const OwnNeed& need, ErrorText* why) {
  if (const int rc = open_evictor(state, need, why); rc < 0) return rc;
  if (const int rc = open_handlers(state, need, why); rc < 0) return rc;
  state.account.end_reserved();  // from here on other code takes DRAM as well
  if (const int rc = launch(state, why); rc < 0) return rc;
  wait_until_served(state);
  // The housekeeping thread's table has these descriptors now; the program's does not need them.
  state.evictor->close_descriptors();
  program_end_close_reading();
  return 0;
}

}  // namespace

int no_room(const PagerState& state, ErrorText* why) {
  return why->set(
      -ENOMEM,
      "pager: the processes of this tree fill the DRAM budget of %s with what each needs for "
      "itself; give more (--dram)",
      format_size(static_cast<uint64_t>(state.account.cap_pages()) << state.page_shift).text);
}

int start_threads(PagerState& state, ErrorText* why) {
  // A forked child gets an eighth, because it usually saves or execs while its parent goes on. So
  // does a process that becomes active after others.
  // The tree's fixed pages must leave room for faults, or all its processes would wait forever. For
  // a forked child the fork's check has reserved its part.
  const int64_t prepaid = state.account.reserved(), before = state.account.own_fixed();
  const OwnNeed need = own_need(state, is_first_active(state),
                                state.account.cap_pages() - state.account.fixed_total() + prepaid);
  if (prepaid == 0) {
    if (!state.account.reserve_fixed(need.pages(), kWorkRoom)) return no_room(state, why);
    state.account.use_reserved(need.pages());
  }
  const int rc = make_threads(state, need, why);
  g_activation.making_threads_ns.store(0);
  if (rc < 0) {
    if (g_activation.passed.load()) fatal("%s; memory has been committed meanwhile", why->text);
    if (state.evictor != nullptr) state.evictor->give_up();
    state.account.end_reserved();
    state.account.give_fixed(state.account.own_fixed() - before);
  }
  return rc;
}

}  // namespace lunar
