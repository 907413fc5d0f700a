// SPDX-License-Identifier: Apache-2.0
// The three fork handlers. They run on the forking thread; in the child it is the only thread, and libc's and
// jemalloc's locks may be held by threads that no longer exist: nothing here may allocate from the host. They need more
// of a stack than a plain fork, which fits into a signal handler's of 8 KiB: so they have one of their own.
#include "pager/fork/fork.h"

#include <errno.h>
#include <langinfo.h>
#include <locale.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#include <initializer_list>

#include "base/host_guard.h"
#include "pager/activation/activate.h"
#include "pager/activation/activation.h"
#include "pager/activation/service_threads.h"
#include "pager/evict/evictor.h"
#include "pager/fault/bring_in.h"
#include "pager/fault/cow_gate.h"
#include "pager/fault/fault_state.h"
#include "pager/fault/handler.h"
#include "pager/fault/kept_pages.h"
#include "pager/fork/checked_forks.h"
#include "pager/fork/lun_ids.h"
#include "pager/fork/wipe.h"
#include "pager/space/deferred_slots.h"
#include "pager/space/lun_space.h"
#include "pager/state/descriptors.h"
#include "pager/state/program_end.h"
#include "pager/state/requests.h"
#include "pager/table/leaf_pool.h"
#include "pager/table/table_promise.h"
#include "sys/arena.h"
#include "sys/fatal.h"
#include "sys/log.h"
#include "sys/memory_constants.h"
#include "sys/memory_copy.h"
#include "sys/own_stack.h"
#include "sys/proc.h"

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

struct ForkInHand {
  bool engaged = false;  // prepare ran on an active pager
  int member = -1;
  uint64_t ticket = 0;  // for the member
  int lun = -1;         // the child's number for its LUN
  int refusal = 0;
  int64_t charged = 0;                           // to the child, for what it inherits
  int64_t fixed = 0, tables = 0, lun_bytes = 0;  // reserved for the child when the fork was checked
  bool gate = false;                             // there is no room to copy all of it
  ForkDescriptors descriptors;
};
// The forking thread's: fork.lock is held from prepare to parent/child.
ForkInHand g_fork;
constinit sys::OwnStack g_stack;

// What this thread's check of a fork has reserved: in our name until prepare gives it to the child's member.
struct ForkChecked {
  bool plain = false;  // charged as plain memory
  int64_t fixed = 0, tables = 0, lun_bytes = 0;
  int member = -1;  // prepare has taken it over
  uint64_t ticket = 0;
  bool counted = false;  // by checked_forks_enter, which gave `since`
  uint64_t since = 0;
};
constinit thread_local ForkChecked t_checked __attribute__((tls_model("initial-exec")));

// Returns what was reserved for the child, with what was committed since; that is the caller's now.
int64_t take_checked(PagerState& state) {
  int64_t bytes = t_checked.lun_bytes;
  if (t_checked.counted) bytes += checked_forks_leave(state, t_checked.since);
  t_checked.counted = false;
  t_checked.lun_bytes = 0;
  return bytes;
}

// in_child: a hole means that a raw call (map_events.h) of another thread came before the kernel's copy of the maps.
void set_inheritable(PagerState& state, bool yes, bool in_child = false) {
  const auto mark = [=](char* at, size_t bytes) {
    const int rc = sys::advise(at, bytes, yes ? MADV_DOFORK : MADV_DONTFORK);
    if (in_child && rc == -ENOMEM && !sys::is_mapped(at, bytes))
      fatal("fork: tiered memory from %p on was moved or unmapped by a system call past Lunar at the same moment",
            static_cast<void*>(at));
    return 0;
  };
  for (const Region& region : state.regions)
    (void)for_own(state.foreign, region.base, region.base + (region.pages << state.page_shift), mark);
}

struct ForkOrigin {
  const void* here;         // the stack of the program's on which the fork is made
  const void* child_stack;  // on which the child begins, if that is another one
  bool of_libc;             // fork(), which runs fork handlers
};

// Brings in the pages of a region that lie from `below` under `at` to `above` over it; where it has none to read (a
// guard page, its end), no further that way.
void touch_around(const PagerState& state, const void* at, size_t below, size_t above) {
  const uintptr_t middle = round_down(reinterpret_cast<uintptr_t>(at), state.page_size);
  auto touch = [&](uintptr_t page) {
    auto* address = reinterpret_cast<char*>(page);
    return state.regions.find(address) != nullptr && sys::advise(address, state.page_size, MADV_POPULATE_READ) == 0;
  };
  for (size_t n = 0; n <= below && touch(middle - n); n += state.page_size) {}
  for (size_t n = state.page_size; n <= above && touch(middle + n); n += state.page_size) {}
}

// The forking thread's stack, with its local storage (at its top, if the program gave the memory), and the stack that
// a child of clone() begins on: a coroutine's, a thread's, or a clone's may be tiered.
void touch_stack(const PagerState& state, const void* here, const void* child_stack) {
  constexpr size_t kDepth = 64 * 1024, kCallers = 16 * 1024;  // of ours and libc's; several times what they use
  touch_around(state, here, kDepth, kCallers);
  touch_around(state, __builtin_thread_pointer(), kCallers, kCallers);
  if (child_stack != nullptr) touch_around(state, static_cast<const char*>(child_stack) - 1, kDepth, 0);
}

// libc's fork touches every open FILE and its lock in the child before there is a handler. They may lie on the heap of
// the program.
void touch_files() {
  if (_IO_iter_begin == nullptr || _IO_iter_end == nullptr || _IO_iter_next == nullptr || _IO_iter_file == nullptr ||
      _IO_list_lock == nullptr || _IO_list_unlock == nullptr)
    return;
  _IO_list_lock();  // as libc itself does a moment later: other threads close FILEs
  for (void* at = _IO_iter_begin(); at != _IO_iter_end(); at = _IO_iter_next(at)) {
    volatile char* file = reinterpret_cast<volatile char*>(_IO_iter_file(at));
    for (size_t offset = 0; offset < sizeof(FILE); offset += 64) (void)file[offset];
    (void)file[sizeof(FILE) - 1];
    auto* lock = reinterpret_cast<volatile char*>(reinterpret_cast<FILE*>(const_cast<char*>(file))->_lock);
    if (lock != nullptr) (void)*lock;
  }
  _IO_list_unlock();
}

// What a new thread reads when it begins (__ctype_init), so our handlers themselves.
void touch_locale() {
  const locale_t own = uselocale(LC_GLOBAL_LOCALE);
  for (const nl_item item : {_NL_CTYPE_CLASS, _NL_CTYPE_TOUPPER, _NL_CTYPE_TOLOWER}) (void)nl_langinfo(item);
  (void)uselocale(own);
}

void touch_for_child(const PagerState& state, const ForkOrigin& origin) {
  touch_locale();
  if (origin.of_libc) touch_files();
  touch_stack(state, origin.here, origin.child_stack);
}

// The two steps of a fork take the count from `now` to `next`. Marks in the half of values that it enters are of the
// last time round, 16,384 forks ago and more: those pages become "not known to be exclusive". Eviction is at rest. A
// page in a handler's hands that was resident before is waited for (a few system calls, and they end without us): its
// word may be put back as it was.
void retire_epochs(PagerState& state, uint16_t now, uint16_t next) {
  if (same_epoch_half(now, next)) return;
  for (const Region& region : state.regions) {
    const TableScope scope;
    region.table.for_words(0, region.table_pages.load(), [next](uint64_t, AtomicPageWord& word) {
      PageWord seen = word.load(std::memory_order_acquire);
      for (; seen.state() == PageState::kBusy && seen.previous() == PageState::kResident;
           seen = word.load(std::memory_order_acquire))
        sys::sleep_ns(10000);
      while (seen.state() == PageState::kResident && same_epoch_half(seen.epoch(), next) &&
             !word.compare_exchange_weak(seen, seen.with_epoch(kEpochUnknown), std::memory_order_acq_rel)) {}
    });
  }
}

// Pages that have come back, and perhaps been written since, are resident in their words, too. What comes back from now
// on is write-protected until then (fork_guards).
void wait_for_release(const PagerState& state) {
  for (unsigned i = 0; i < state.services.handler_count; ++i) g_fault.handlers[i]->wait_for_release();
  thread_resolvers_wait_for_release();
}

// The child is charged for what it inherits, in its own name: its parent may be gone before it can do that itself.
void charge_child(PagerState& state) {
  g_fork.charged = counters().resident.load();
  if (state.account.take_for_child(static_cast<unsigned>(g_fork.member), g_fork.charged, state.evictor->low_water(),
                                   state.write_protect) ||
      !state.write_protect)
    return;
  g_fork.gate = true;
  // What handlers bring in from now on is protected too; what they have in hand is there before the walk.
  state.fork.gate_used.store(true);
  state.fork.gate_closing.store(true, std::memory_order_seq_cst);
  for (unsigned i = 0; i < state.services.handler_count; ++i) g_fault.handlers[i]->wait_for_round();
  gate_close(state);
  kept_pages_open(state);
}

void prepare_locked(PagerState& state, const ForkOrigin& origin) {
  g_fork = {};
  if (!state.is_active()) {
    g_activation.lock.lock();
    if (!state.is_active()) {  // activation.lock is held until parent/child: no activation meanwhile
      state.regions.lock.lock();
      g_fork.member = plain_reserve_child(state, &g_fork.ticket);
      t_checked = {false, 0, 0, 0, g_fork.member, g_fork.ticket};
      g_fork.refusal = g_fork.member < 0 ? g_fork.member : 0;
      return;
    }
    g_activation.lock.unlock();
  }
  g_fork.engaged = true;
  g_fork.lun = lun_id_for_child(state);
  state.fork.since_ns.store(sys::now_ns());
  state.fork.forking.store(true, std::memory_order_seq_cst);
  touch_for_child(state, origin);  // while there is eviction to make room
  while (state.fork.mutators.load(std::memory_order_seq_cst) != 0) sys::sleep_ns(5000);
  state.fork.thread_id.store(sys::thread_id(), std::memory_order_seq_cst);
  state.fork.since_ns.store(sys::now_ns());
  state.evictor->pause();
  touch_for_child(state, origin);  // what was evicted again meanwhile
  wait_for_release(state);
  state.regions.lock.lock();
  state.luns.open_lock.lock();
  const uint32_t before = state.fork.epoch.load(std::memory_order_acquire);
  retire_epochs(state, static_cast<uint16_t>(before), static_cast<uint16_t>(before + 2));
  uint32_t epoch = state.fork.epoch.fetch_add(1, std::memory_order_acq_rel) + 1;
  g_fork.member = state.account.reserve_child(epoch, &g_fork.ticket);
  g_fork.refusal = g_fork.member < 0 ? g_fork.member : g_fork.lun < 0 ? g_fork.lun : deferred_slots_prepare(state);
  int found = fork_descriptors_prepare(state, &g_fork.descriptors);
  if (g_fork.refusal == 0) g_fork.refusal = found;
  if (g_fork.refusal == 0 && state.luns.ready.load()) g_fork.refusal = reservation_make(state, epoch);
  if (g_fork.member >= 0) {
    g_fork.fixed = t_checked.fixed;
    g_fork.tables = t_checked.tables;
    g_fork.lun_bytes = take_checked(state);
    state.account.hand_to_child(static_cast<unsigned>(g_fork.member), g_fork.fixed, g_fork.lun_bytes, g_fork.tables);
    t_checked = {false, 0, 0, 0, g_fork.member, g_fork.ticket};
    charge_child(state);
  } else {
    pager_fork_failed();
  }
  uint32_t none = 0;
  state.fork.oldest_child.compare_exchange_strong(none, epoch);
  set_inheritable(state, true);
}

void prepare(PagerState& state, const void* child_stack, bool of_libc) {
  sys::block_signals();  // until parent/child: a handler that forks would wait for this fork
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
    set_inheritable(state, false);  // before the count: a raw fork would share what is marked with the new one
    // what was installed up to now may be shared with the child
    state.fork.epoch.fetch_add(1, std::memory_order_acq_rel);
    fork_descriptors_parent(g_fork.descriptors);
    release_parent(state);
    housekeeping_wake(state, kHousekeepingSweep);  // it waits for this child's end, too, from now on
  } else {
    state.regions.lock.unlock();
    g_activation.lock.unlock();
  }
  state.account.fork_returned();
  state.fork.lock.unlock();
  sys::unblock_signals();
}

// Whether a relative maps the page, too, or it is the kernel's page of zeros.
bool is_shared(const char* at) {
  const void* const page = at;
  sys::PageFacts facts;
  const int pagemap = sys::keep_own_file(sys::OwnFile::kPagemap);
  return pagemap >= 0 && sys::page_facts(pagemap, &page, 1, &facts) == 0 && facts.present && !facts.exclusive;
}

// The child has a page whose word is that of an evicted one. Either the parent has brought it in and not released it
// yet: it has been write-protected since (fork_guards), so its content is the evicted one. Or something has touched its
// place in the child, where nothing serves faults yet, and has met zeros. What cannot be read, nothing has touched.
// Without write protection threads of the parent may have written to it, but it is shared with the parent then.
void check_brought_in(PagerState& state, const Region& region, uint64_t page) {
  static char* content = nullptr;
  if (content == nullptr) content = static_cast<char*>(map_private(state.page_size, ForkPolicy::kInherit));
  if (content == nullptr) fatal("fork: no memory for a page");
  char* at = region.address_of(PageIndex(page));
  if (sys::peek(at, content, state.page_size) < 0 || page_hash(content) == region.table.hash(page)) return;
  if (!state.write_protect && !page_is_zero(content) && is_shared(at)) return;
  fatal(
      "fork: page %p was evicted, and something has touched it in the child before Lunar served it; a fork handler of "
      "the program's that may do so must be registered (pthread_atfork) after lunar_init",
      static_cast<void*>(at));
}

// A page's state as the child must see it. The kernel copied words and pages at different moments, while handlers went
// on bringing pages in: what is present counts, whatever the word says, and what is missing is where it was before it
// came.
PageWord settled_word(PagerState& state, Region& region, uint64_t page, bool present) {
  const bool on_touch = region.on_touch;  // a page that is there is charged
  PageWord word = region.table.peek(page);
  word = word.with_state(word.settled());
  word.raw &= ~PageWord::kWaiter;
  switch (word.state()) {
    case PageState::kResident:
      if (present || word.has_slot()) return present ? word : word.with_state(PageState::kEvicted);
      return word.with_state(PageState::kEmpty).with_charged(false);
    case PageState::kEvicted:
      if (!present) return word;
      check_brought_in(state, region, page);
      return word.with_state(PageState::kResident).with_epoch(shared_epoch());
    case PageState::kEmpty:
      if (!present) return word;
      return word.with_state(PageState::kResident).with_slot(kNoSlot).with_epoch(shared_epoch()).with_charged(on_touch);
    case PageState::kInFrame: {
      const Frame& frame = state.frames.at(word.index());  // its content stayed with the parent; its slot is written
      if (present) {
        check_brought_in(state, region, page);
        return word.with_state(PageState::kResident).with_slot(kNoSlot).with_epoch(shared_epoch());
      }
      if (frame.slot == kNoSlot)
        fatal("fork: page %p had no slot when the process forked",
              static_cast<void*>(region.address_of(PageIndex(page))));
      return word.with_state(PageState::kEvicted).with_slot(frame.slot).with_lun(frame.lun);
    }
    // lost: nothing will be read there, and the number of its LUN may get another meaning
    default:
      return word.with_slot(kNoSlot);
  }
}

void check_known(int rc) {
  if (rc < 0) fatal("fork: the child cannot tell which pages it has (/proc/self/pagemap: %s)", errno_name(rc));
}

// Settles all words, counts resident pages anew, and notes on which LUNs pages lie. Returns how many are resident.
int64_t settle_words(PagerState& state) {
  int64_t resident = 0, pinned = 0;
  uint8_t present[kChunkPages];
  state.luns.referred = 0;
  tables_enter_child(state);
  promise_enter_child(state);
  wipe_in_child(state);
  for (Region& region : state.regions) {
    region.grow_lock.reset_in_child();
    uint64_t end = region.table_pages.load(), charged = 0;
    for (uint64_t at = 0; at < end; at += kChunkPages) {
      uint64_t n = end - at < kChunkPages ? end - at : kChunkPages;
      // libc may have touched a page that is committed and has no word
      if (!region.table.uses(at, at + n) && region.chunk_committed[at / kChunkPages].load() == 0) continue;
      check_known(present_own(state.foreign, region.address_of(PageIndex(at)), n, present));
      int32_t in_chunk = 0;
      int64_t evicted = 0;
      for (uint64_t i = 0; i < n; ++i) {
        PageWord next = settled_word(state, region, at + i, present[i] != 0);
        if (next.state() == PageState::kResident) ++in_chunk;
        if (next.state() == PageState::kEvicted) ++evicted;
        if ((next.state() == PageState::kResident || next.state() == PageState::kEvicted) && next.has_slot())
          state.luns.referred |= 1u << next.lun();
        if (next.charged()) ++charged;
        if (next.pinned()) ++pinned;
        if (next.raw == region.table.peek(at + i).raw) continue;  // spares the table a copy-on-write
        // libc may have touched an empty page
        if (table_reach(state, region, at + i, at + i + 1, 0) < 0)
          fatal("fork: the child has no memory for page tables");
        region.table.at(at + i).store(next, std::memory_order_relaxed);
      }
      region.chunk_resident[at / kChunkPages].store(in_chunk, std::memory_order_relaxed);
      resident += in_chunk;
      count_evicted(evicted);
    }
    if (region.on_touch) region.committed_pages.store(charged);  // as its words say
  }
  state.pinned_pages.store(pinned);  // another thread of the parent's may have been in the midst of a pin
  return resident;
}

int child_restart(PagerState& state, ErrorText* why) {
  thread_resolver_forget();
  fork_descriptors_child(state, g_fork.descriptors);
  program_end_forget();
  for (Handler* handler : g_fault.handlers)
    if (handler != nullptr) handler->forget_parents();
  state.evictor->forget_parents();
  lun_ids_forget_unused(state);
  if (int rc = open_uffd(state, why); rc < 0) return rc;
  for (const Region& region : state.regions) {
    int rc = region_register(state, region, region.base, region.pages << state.page_shift);
    if (rc < 0) return why->set(rc, "fork: a region cannot be registered in the child (%s)", errno_name(rc));
  }
  state.fork.gate_closing.store(false);
  state.fork.gate_used.store(g_fork.gate);
  set_inheritable(state, false, true);
  // Here, and not at the first eviction: what a service thread opens is not in the program's descriptor table. (Nothing
  // is reserved on it yet. When there is none now, the evictor tries again.)
  Device* inherited = state.luns.devices[state.luns.parent];
  if (inherited != nullptr && !inherited->growable()) {
    // known to a child of ours too, should it fork before it needs its piece
    share_device(state, state.luns.own, state.luns.parent);
  } else if (inherited != nullptr) {
    DeviceOptions options;
    options.sqpoll = state.options.sqpoll;
    ErrorText later;
    if (open_device(state, state.luns.own, options, &later) < 0) state.luns.devices[state.luns.own] = nullptr;
  }
  if (int rc = start_threads(state, why); rc < 0) return rc;
  if (g_fork.gate) {  // a fork keeps no protection. Handlers are there: our stack may be tiered
    gate_close(state);
    kept_pages_open(state);
  }
  return 0;
}

// Dead members count until a sweep.
bool lun_take_or_sweep(PagerState& state, int64_t bytes) {
  if (state.account.lun_take(bytes) == 0) return true;
  state.account.sweep_settled();
  return state.account.lun_take(bytes) == 0;
}

// In the child of a process that is not active: all memory is there, and was charged by the prepare handler.
void enter_plain_child(PagerState& state) {
  if (g_fork.refusal < 0) fatal("fork: the child cannot be charged (%s)", errno_name(g_fork.refusal));
  if (state.account.adopt(static_cast<unsigned>(g_fork.member), g_fork.ticket) < 0)
    fatal("fork: the child stood still for too long before it began; its place in the account is given up");
  state.account.become_plain();
  state.member.pid.store(getpid());
  state.member.copy.store(sys::memory_copy());
  g_activation.plain_forks = 0;  // of the parent's other threads
  g_activation.plain_fork_pages = 0;
  g_activation.failed.store(false);
  g_activation.next_ns.store(0);
  // What other threads of the parent's were in the midst of.
  kept_pages_enter_child();
  tables_enter_child(state);
  promise_enter_child(state);
  state.fork.mutators.store(0);
  for (Region& region : state.regions) region.grow_lock.reset_in_child();
  standby_open(state, true);
  state.regions.lock.unlock();
  g_activation.lock.unlock();
}

// Makes the page table, the LUNs and the counts, which are copies of the parent's, this process' own. Returns the pages
// that are resident.
int64_t take_over(PagerState& state) {
  keep_own_files();
  g_activation.lock.reset_in_child();  // another thread of the parent's may have held it
  counters().evicted.store(0);
  const int64_t resident = settle_words(state);
  // A LUN of its own: what ancestors wrote is read-only.
  ++state.fork.generation;
  state.luns.parent = state.luns.own;
  state.luns.own = static_cast<unsigned>(g_fork.lun);
  state.luns.ready.store(false);
  state.luns.promised_slots.store(static_cast<int64_t>(committed_pages(state)));
  checked_forks_enter_child();
  state.fork.oldest_child.store(0);
  deferred_slots_forget();
  kept_pages_enter_child();
  state.fork.epoch.fetch_add(1);
  counters().resident.store(resident);
  state.resident_peak.store(resident);
  state.fork.mutators.store(0);
  g_fault.helpers_resting.store(0);
  reservations_forget();
  state.services.table_request.lock.reset_in_child();
  state.services.table_request.asked.store(0);
  return resident;
}

// What the child has, where it differs from what the parent's prepare handler charged for it.
void charge_difference(PagerState& state, int64_t resident) {
  const uint64_t committed = committed_pages(state);
  if (resident > g_fork.charged)
    state.account.take_always(resident - g_fork.charged);
  else
    state.account.give_maybe_shared(g_fork.charged - resident);
  state.account.use_reserved(g_fork.fixed);
  tables_go_live(state);
  promise_go_live(state, g_fork.tables);
  // than it was when the fork was checked
  const int64_t more = static_cast<int64_t>(committed << state.page_shift) - g_fork.lun_bytes;
  if (more < 0)
    state.account.lun_give(-more);
  else if (!lun_take_or_sweep(state, more))
    fatal("fork: there is no LUN space for the child's memory (%s); %s",
          format_size(committed << state.page_shift).text,
          space_remedy(state, space_bound(state, static_cast<uint64_t>(more))));
}

// A foreign piece that the program keeps from its children (MADV_DONTFORK) leaves a hole. No map of the child's own may
// come to lie there: the place is still the region's.
void close_foreign_holes(PagerState& state) {
  for (const Region& region : state.regions) {
    char* end = region.base + (region.pages << state.page_shift);
    for (char *at = region.base, *stop; at < end; at = stop) {
      bool foreign = false;
      stop = state.foreign.run(at, end, &foreign);
      if (!foreign) continue;
      const uint64_t first = region.page_of(at).value, count = static_cast<uint64_t>(stop - at) >> state.page_shift;
      claim_holes(region, first, first + count);
    }
  }
}

void child_locked(PagerState& state, bool of_libc, const void* here) {
  close_foreign_holes(state);
  t_checked = {};
  sys::note_memory_owner();
  if (of_libc) sys::threads_unmap_parents(here);
  wipe_reset_in_child();
  HostGuard guard;
  if (!g_fork.engaged) return enter_plain_child(state);
  host_fork_bootstrap.store(true);  // until the housekeeping thread has made its threads
  if (g_fork.refusal < 0)
    fatal("fork: the child cannot be served (%s); its memory would be lost", errno_name(g_fork.refusal));
  if (state.account.adopt(static_cast<unsigned>(g_fork.member), g_fork.ticket) < 0)
    fatal(
        "fork: the child stood still for too long before it began; its place in the account, and its memory with it, "
        "is given up");
  state.member.pid.store(getpid());
  state.member.copy.store(sys::memory_copy());
  state.fork.thread_id.store(sys::thread_id());
  charge_difference(state, take_over(state));
  state.luns.open_lock.unlock();
  state.regions.lock.unlock();
  ErrorText why;
  if (int rc = child_restart(state, &why); rc < 0) fatal("%s", why.text);
  state.fork.thread_id.store(0);
  state.fork.forking.store(false);
}

void child(PagerState& state, bool of_libc) {
  const void* here = __builtin_frame_address(0);
  g_stack.call([&] { child_locked(state, of_libc, here); });
  state.fork.lock.unlock();  // back on the program's stack: the next to fork takes the other one
  sys::unblock_signals();
}

}  // namespace

// What a process that was forked past us has, its own children inherit without us.
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
    fatal("fork: libc has not called the pager's handler in the child, whose evicted memory would read as zeros");
}

bool pager_forked_past_us() { return forked_past_us(pager_state()) != 0; }

int pager_parent_past_us(const void* address) {
  auto& state = pager_state();
  const int parent = forked_past_us(state);
  if (parent == 0) return 0;
  // Not by find(): in the child no thread ends a change of the table that was under way.
  for (const Region& region : state.regions)
    if (region.holds(address)) return parent;
  return 0;
}

int fork_handlers_install() {
  static bool installed = false;
  if (installed) return 0;
  HostGuard guard;
  g_stack.make();
  int rc = pthread_atfork(pager_fork_prepare_of_libc, pager_fork_parent, pager_fork_child_of_libc);
  installed = rc == 0;
  return -rc;
}

// Reserves what a child needs of the tree's account: several processes may fork at the same moment.
static int reserve_for_child(PagerState& state, uint64_t pages) {
  const int64_t fixed = own_need(state, false, state.account.cap_pages()).pages() + table_pages(),
                tables = promise_pages();
  const bool has_room =
      state.account.promise_tables(tables, INT64_MIN) && state.account.reserve_fixed(fixed, kWorkRoom);
  if (!has_room) {
    (void)state.account.promise_tables(-tables, INT64_MIN);
    LUNAR_LOG_LIMITED(log_warning, 4,
                      "fork refused: the processes of this tree fill the DRAM budget with what each needs for itself; "
                      "give more (--dram)");
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

// Whether the limits on memory, which a child inherits with what is mapped, leave what its own pager maps: frames,
// windows, threads and rings, the tables of a LUN; and what our prepare handler does. Tried, as the limits are on what
// the whole process has. The answer errs towards no: what a child does not inherit is not counted in its favour. The
// fork itself takes nothing of these limits.
static bool child_may_map(const PagerState& state) {
  if (!sys::memory_is_limited()) return true;
  constexpr uint64_t kThreadBytes = kMiB, kOtherBytes = 2 * kMiB;
  const OwnNeed need = own_need(state, false, state.account.cap_pages());
  const uint64_t slots = static_cast<uint64_t>(state.account.lun_cap()) >> state.page_shift,
                 threads = need.handlers + 2,
                 bytes = (static_cast<uint64_t>(need.pages()) << state.page_shift) + threads * kThreadBytes +
                         2 * deferred_slots_bytes(slots) + kOtherBytes;
  void* probe = map_private(bytes, ForkPolicy::kDontFork);
  unmap_private(probe, bytes);
  return probe != nullptr;
}

int pager_fork_check() {
  auto& state = pager_state();
  if (t_checked.counted) pager_fork_failed();  // a fork handler of the program's forks
  t_checked = {};
  if (forked_past_us(state) != 0) return 0;
  if (!state.is_active()) {
    {
      sys::Locked<sys::Mutex> lock(g_activation.lock);
      if (!state.is_active() && plain_charge_fork(state)) {
        t_checked.plain = true;
        return 0;
      }
    }
    // Parent and child together would pass what the tree may hold plain: its pager makes room for the copies.
    ErrorText why;
    if (int rc = activate(state, &why); rc < 0) return -ENOMEM;
  }
  sys::ScopedSignalBlock signals;  // a handler's fork would wait for the locks taken here
  if (!child_may_map(state)) {
    LUNAR_LOG_LIMITED(log_warning, 4,
                      "fork refused: the child's own pager cannot map what it needs; raise the limit (%s)",
                      sys::memory_limit());
    return -ENOMEM;
  }
  t_checked.since = checked_forks_enter();
  t_checked.counted = true;
  uint64_t pages = 0;
  {
    sys::Locked<sys::Mutex> lock(state.regions.lock);
    pages = committed_pages(state);
  }
  int rc = reserve_for_child(state, pages);
  if (rc == -ENOMEM) {
    pager_fork_failed();
    return rc;
  }
  if (rc == 0 && state.luns.ready.load()) {
    // Reserves the space on the device here, where waiting for the file system does no harm.
    rc = slots_charge(state, pages);
    if (rc < 0) {  // what is held for children that are gone
      wait_for_sweep(state);
      rc = slots_charge(state, pages);
    }
    if (rc == 0) state.luns.slots[state.luns.own].uncharge(pages);
  }
  if (rc < 0) {
    int64_t left = state.account.lun_free() + t_checked.lun_bytes;
    pager_fork_failed();
    const SpaceBound bound = space_bound(state, pages << state.page_shift);
    LUNAR_LOG_LIMITED(log_warning, 4, "fork refused: the child may come to need %s of LUN space and %s is left; %s",
                      format_size(pages << state.page_shift).text,
                      format_size(static_cast<uint64_t>(left > 0 ? left : 0)).text, space_remedy(state, bound));
    return -ENOMEM;
  }
  {
    sys::Locked<sys::Mutex> forks(state.fork.lock);
    rc = lun_id_for_child(state) < 0 ? -EAGAIN : 0;
  }
  if (rc < 0) pager_fork_failed();
  return rc;
}

void pager_fork_failed() {
  auto& state = pager_state();
  sys::ScopedSignalBlock signals;
  const int64_t lun_bytes = take_checked(state);
  const ForkChecked was = t_checked;
  t_checked = {};
  if (was.plain) {
    sys::Locked<sys::Mutex> lock(g_activation.lock);
    if (!state.is_active()) plain_uncharge_fork(state);  // else activation has
  }
  if (was.fixed != 0) state.account.give_fixed(was.fixed);
  if (was.tables != 0) (void)state.account.promise_tables(-was.tables, INT64_MIN);
  if (lun_bytes != 0) state.account.lun_give(lun_bytes);
  if (was.member < 0) return;
  state.account.release_child(static_cast<unsigned>(was.member), was.ticket);
  if (state.is_active()) housekeeping_wake(state, kHousekeepingSweep);  // what was held for it
}

}  // namespace lunar
