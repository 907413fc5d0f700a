// SPDX-License-Identifier: Apache-2.0
// The three fork handlers. They run on the forking thread, which is the only thread in the child.
// Threads that do not exist there may have held libc's and jemalloc's locks, so nothing here
// allocates from the host. libc's part of a fork fits on a signal handler's stack of 8 KiB. These
// handlers need more, so they have a stack of their own.
#include "pager/fork/fork.h"

#include <langinfo.h>
#include <locale.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/mman.h>

#include <algorithm>
#include <initializer_list>

#include "base/host_guard.h"
#include "pager/activation/activation.h"
#include "pager/evict/evictor.h"
#include "pager/fault/bring_in.h"
#include "pager/fault/cow_gate.h"
#include "pager/fault/fault_state.h"
#include "pager/fault/handler.h"
#include "pager/fault/kept_pages.h"
#include "pager/fork/checked_forks.h"
#include "pager/fork/child.h"
#include "pager/fork/lun_ids.h"
#include "pager/space/deferred_slots.h"
#include "pager/state/requests.h"
#include "sys/fatal.h"
#include "sys/memory_constants.h"
#include "sys/own_stack.h"

// glibc's iteration over open FILEs (exported for gdb and malloc debuggers; GLIBC_2.2).
extern "C" {
void* _IO_iter_begin(void) __attribute__((weak));
void* _IO_iter_end(void) __attribute__((weak));
void* _IO_iter_next(void*) __attribute__((weak));
FILE* _IO_iter_file(void*) __attribute__((weak));
void _IO_list_lock() __attribute__((weak));
void _IO_list_unlock() __attribute__((weak));
}

namespace lunar {

namespace {

// Used by the forking thread, which holds fork.lock from prepare to parent or child.
ForkInProgress g_fork;
constinit sys::OwnStack g_stack;

struct ForkOrigin {
  const void* here;         // an address on the program's stack
  const void* child_stack;  // the end of the child's stack, if it is another one
  bool of_libc;             // libc's fork()
};

// Brings in the pages from `below` bytes under `at` to `above` bytes over it, each way up to the
// first page that cannot be read (a guard page, the end of the region).
void touch_around(const PagerState& state, const void* at, size_t below, size_t above) {
  const uintptr_t middle = round_down(reinterpret_cast<uintptr_t>(at), state.page_size);
  auto touch = [&](uintptr_t page) {
    auto* address = reinterpret_cast<char*>(page);
    return state.regions.find(address) != nullptr &&
           sys::advise(address, state.page_size, MADV_POPULATE_READ) == 0;
  };
  for (size_t n = 0; n <= below && touch(middle - n); n += state.page_size) {}
  for (size_t n = state.page_size; n <= above && touch(middle + n); n += state.page_size) {}
}

// Brings in the forking thread's stack with its thread-local storage (at the top, if the program
// gave the memory), and the stack on which a child of clone() begins. Stacks of threads, coroutines
// and clones may be tiered.
void touch_stack(const PagerState& state, const void* here, const void* child_stack) {
  // several times what our functions and libc's use
  constexpr size_t kDepth = 64 * 1024, kCallers = 16 * 1024;
  touch_around(state, here, kDepth, kCallers);
  touch_around(state, __builtin_thread_pointer(), kCallers, kCallers);
  if (child_stack != nullptr)
    touch_around(state, static_cast<const char*>(child_stack) - 1, kDepth, 0);
}

// Brings in open FILEs and their locks, which may be on the program's heap: libc's fork touches
// them in the child before there is a handler.
void touch_files() {
  if (_IO_iter_begin == nullptr || _IO_iter_end == nullptr || _IO_iter_next == nullptr ||
      _IO_iter_file == nullptr || _IO_list_lock == nullptr || _IO_list_unlock == nullptr)
    return;
  _IO_list_lock();  // as libc itself does a moment later: other threads close FILEs
  for (void* at = _IO_iter_begin(); at != _IO_iter_end(); at = _IO_iter_next(at)) {
    volatile char* file = reinterpret_cast<volatile char*>(_IO_iter_file(at));
    for (size_t offset = 0; offset < sizeof(FILE); offset += 64) (void)file[offset];
    (void)file[sizeof(FILE) - 1];
    auto* lock =
        reinterpret_cast<volatile char*>(reinterpret_cast<FILE*>(const_cast<char*>(file))->_lock);
    if (lock != nullptr) (void)*lock;
  }
  _IO_list_unlock();
}

// Brings in the locale, which a new thread reads when it begins (__ctype_init), our handlers in the
// child among them.
void touch_locale() {
  const locale_t own = uselocale(LC_GLOBAL_LOCALE);
  for (const nl_item item : {_NL_CTYPE_CLASS, _NL_CTYPE_TOUPPER, _NL_CTYPE_TOLOWER})
    (void)nl_langinfo(item);
  (void)uselocale(own);
}

void touch_for_child(const PagerState& state, const ForkOrigin& origin) {
  touch_locale();
  if (origin.of_libc) touch_files();
  touch_stack(state, origin.here, origin.child_stack);
}

// The two steps of a fork take the epoch from `now` to `next`. If it enters the other half of its
// values, marks with such values are of the last round, 16,384 forks ago or more: these pages
// become "not known to be exclusive". Eviction is at rest. A busy page that was resident before is
// waited for, because its word may be restored; its owner needs only a few system calls, and does
// not wait for the fork.
void retire_epochs(PagerState& state, uint16_t now, uint16_t next) {
  if (same_epoch_half(now, next)) return;
  for (const Region& region : state.regions) {
    const TableScope scope;
    region.table.for_words(0, region.table_pages.load(), [next](uint64_t, AtomicPageWord& word) {
      PageWord seen = word.load(std::memory_order_acquire);
      for (; seen.state() == PageState::kBusy && seen.previous() == PageState::kResident;
           seen = word.load(std::memory_order_acquire))
        sys::sleep_ns(10'000);
      while (seen.state() == PageState::kResident && same_epoch_half(seen.epoch(), next) &&
             !word.compare_exchange_weak(seen, seen.with_epoch(kEpochUnknown),
                                         std::memory_order_acq_rel)) {}
    });
  }
}

// Waits until pages that have come back, and may have been written since, are resident by their
// words as well. Pages that come back from now on are write-protected until then (fork_guards).
void wait_for_release(const PagerState& state) {
  for (unsigned i = 0; i < state.services.handler_count; ++i)
    g_fault.handlers[i]->wait_for_release();
  thread_resolvers_wait_for_release();
}

// Charges the child's member for the pages that the child inherits: the parent may have ended
// before the child could do that itself.
void charge_child(PagerState& state) {
  g_fork.charged = counters().resident.load();
  if (state.account.take_for_child(static_cast<unsigned>(g_fork.member), g_fork.charged,
                                   state.evictor->low_water(), state.write_protect) ||
      !state.write_protect)
    return;
  g_fork.gate = true;
  // Pages that handlers bring in from now on are protected as well; those that they are installing
  // now are present before gate_close walks over all pages.
  state.fork.gate_used.store(true);
  state.fork.gate_closing.store(true, std::memory_order_seq_cst);
  for (unsigned i = 0; i < state.services.handler_count; ++i) g_fault.handlers[i]->wait_for_round();
  gate_close(state);
  kept_pages_open(state);
}

// The process is not active: makes the child's member. activation.lock and regions.lock are held
// until parent or child, so that no activation runs meanwhile. False: the process is active.
bool prepare_plain(PagerState& state) {
  if (state.is_active()) return false;
  g_activation.lock.lock();
  if (state.is_active()) {
    g_activation.lock.unlock();
    return false;
  }
  state.regions.lock.lock();
  g_fork.member = plain_reserve_child(state, &g_fork.ticket);
  fork_has_member(g_fork.member, g_fork.ticket);
  g_fork.refusal = std::min(g_fork.member, 0);
  return true;
}

// From here on no thread enters a MutatorScope; returns when none is inside. Pages for the child
// are brought in while there is eviction to make room.
void stop_mutators(PagerState& state, const ForkOrigin& origin) {
  state.fork.since_ns.store(sys::now_ns());
  state.fork.forking.store(true, std::memory_order_seq_cst);
  touch_for_child(state, origin);
  while (state.fork.mutators.load(std::memory_order_seq_cst) != 0) sys::sleep_ns(5000);
}

void stop_eviction(PagerState& state, const ForkOrigin& origin) {
  state.fork.thread_id.store(sys::thread_id(), std::memory_order_seq_cst);
  state.fork.since_ns.store(sys::now_ns());
  state.evictor->pause();
  touch_for_child(state, origin);  // pages that were evicted again meanwhile
}

// Returns the epoch of this fork.
uint32_t advance_epoch(PagerState& state) {
  const uint32_t before = state.fork.epoch.load(std::memory_order_acquire);
  retire_epochs(state, static_cast<uint16_t>(before), static_cast<uint16_t>(before + 2));
  return state.fork.epoch.fetch_add(1, std::memory_order_acq_rel) + 1;
}

// Makes the child's member, descriptors and slots. The first error is the fork's refusal.
void make_child(PagerState& state, uint32_t epoch) {
  g_fork.member = state.account.reserve_child(epoch, &g_fork.ticket);
  g_fork.refusal = g_fork.member < 0 ? g_fork.member
                   : g_fork.lun < 0  ? g_fork.lun
                                     : deferred_slots_prepare(state);
  const int found = fork_descriptors_prepare(state, &g_fork.descriptors);
  if (g_fork.refusal == 0) g_fork.refusal = found;
  if (g_fork.refusal == 0 && state.luns.ready.load())
    g_fork.refusal = reservation_make(state, epoch);
}

// Gives the member what the check has reserved, and charges it for what the child inherits.
void endow_child(PagerState& state) {
  if (g_fork.member < 0) {
    fork_failed(state);
    return;
  }
  g_fork.checked = fork_take_checked(state);
  state.account.hand_to_child(static_cast<unsigned>(g_fork.member), g_fork.checked.fixed,
                              g_fork.checked.lun_bytes, g_fork.checked.tables);
  fork_has_member(g_fork.member, g_fork.ticket);
  charge_child(state);
}

// README.md has the steps.
void prepare_locked(PagerState& state, const ForkOrigin& origin) {
  g_fork = {};
  if (prepare_plain(state)) return;
  g_fork.engaged = true;
  g_fork.lun = lun_id_for_child(state);
  stop_mutators(state, origin);
  stop_eviction(state, origin);
  wait_for_release(state);
  state.regions.lock.lock();
  state.luns.open_lock.lock();
  const uint32_t epoch = advance_epoch(state);
  make_child(state, epoch);
  endow_child(state);
  uint32_t none = 0;
  state.fork.oldest_child.compare_exchange_strong(none, epoch);
  set_inheritable(state, true);
}

void prepare(PagerState& state, const void* child_stack, bool of_libc) {
  // until parent or child: a signal handler that forks would wait for this fork
  sys::block_signals();
  state.fork.lock.lock();
  const ForkOrigin origin{__builtin_frame_address(0), child_stack, of_libc};
  g_stack.call([&] { prepare_locked(state, origin); });
}

void release_parent(PagerState& state) {
  state.fork.gate_closing.store(false);
  state.luns.open_lock.unlock();
  state.regions.lock.unlock();
  state.evictor->resume();
  state.fork.thread_id.store(0);
  state.fork.forking.store(false, std::memory_order_seq_cst);
}

void parent(PagerState& state) {
  if (g_fork.engaged) {
    counters().forks.add();
    // before the epoch advances: a raw fork would share pages that are marked with the new epoch
    set_inheritable(state, false);
    // pages that were installed before may be shared with the child
    state.fork.epoch.fetch_add(1, std::memory_order_acq_rel);
    fork_descriptors_parent(g_fork.descriptors);
    release_parent(state);
    // so that it waits for this child's end as well
    housekeeping_wake(state, kHousekeepingSweep);
  } else {
    state.regions.lock.unlock();
    g_activation.lock.unlock();
  }
  state.account.fork_returned();
  state.fork.lock.unlock();
  sys::unblock_signals();
}

void child(PagerState& state, bool of_libc) {
  const void* here = __builtin_frame_address(0);
  g_stack.call([&] { fork_enter_child(state, g_fork, of_libc, here); });
  state.fork.lock.unlock();  // after g_stack.call: the next fork uses that stack
  sys::unblock_signals();
}

}  // namespace

// False in a process that a raw fork made: the kernel alone handles its forks.
static thread_local bool t_prepared = false;

void pager_fork_prepare(const void* child_stack) {
  t_prepared = !pager_forked_past_us();
  if (t_prepared) prepare(pager_state(), child_stack, false);
}
void pager_fork_prepare_of_libc() {
  t_prepared = !pager_forked_past_us();
  if (t_prepared) prepare(pager_state(), nullptr, true);
}
void pager_fork_parent() {
  if (t_prepared) parent(pager_state());
}
void pager_fork_child() {
  if (t_prepared) child(pager_state(), false);
}
void pager_fork_child_of_libc() {
  if (t_prepared) child(pager_state(), true);
}

void pager_fork_child_ran() {
  if (g_fork.engaged && pager_state().fork.forking.load())
    fatal(
        "fork: libc has not called the pager's handler in the child, whose evicted memory would "
        "read as zeros");
}

bool pager_forked_past_us() { return forked_past_us(pager_state()) != 0; }

int pager_fork_check() { return fork_check(pager_state()); }
void pager_fork_failed() { fork_failed(pager_state()); }

int fork_handlers_install() {
  static bool installed = false;
  if (installed) return 0;
  HostGuard guard;
  g_stack.make();
  int rc = pthread_atfork(pager_fork_prepare_of_libc, pager_fork_parent, pager_fork_child_of_libc);
  installed = rc == 0;
  return -rc;
}

}  // namespace lunar
