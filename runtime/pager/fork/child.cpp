// SPDX-License-Identifier: Apache-2.0
#include "pager/fork/child.h"

#include <errno.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/host_guard.h"
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
#include "pager/page/present_chunks.h"
#include "pager/space/deferred_slots.h"
#include "pager/space/lun_space.h"
#include "pager/state/program_end.h"
#include "pager/table/table_promise.h"
#include "pager/table/tables.h"
#include "sys/arena.h"
#include "sys/fatal.h"
#include "sys/memory_copy.h"

namespace lunar {

void set_inheritable(PagerState& state, bool yes, bool in_child) {
  const auto mark = [=](char* at, size_t bytes) {
    const int rc = sys::advise(at, bytes, yes ? MADV_DOFORK : MADV_DONTFORK);
    if (in_child && rc == -ENOMEM && !sys::is_mapped(at, bytes))
      fatal(
          "fork: tiered memory from %p on was moved or unmapped by a system call past Lunar at the "
          "same moment",
          static_cast<void*>(at));
    return 0;
  };
  for (const Region& region : state.regions)
    (void)for_own(state.foreign, region.base, region.base + (region.pages << state.page_shift),
                  mark);
}

namespace {

// Whether a relative maps the page as well, or it is the kernel's page of zeros.
bool is_shared(const char* at) {
  const void* const page = at;
  sys::PageFacts facts;
  const int pagemap = sys::keep_own_file(sys::OwnFile::kPagemap);
  return pagemap >= 0 && sys::page_facts(pagemap, &page, 1, &facts) == 0 && facts.present &&
         !facts.exclusive;
}

// The page is present, and its word says that it is evicted. Either the parent has brought it in
// and not released it yet: it has been write-protected since (fork_guards), so its content still
// has the evicted hash. Or something has touched it in the child, where nothing serves faults yet,
// and has met zeros; then this ends the child. Memory that cannot be read was not touched. Without
// write protection, threads of the parent may have written to the page, but then it is shared with
// the parent.
void check_brought_in(PagerState& state, const Region& region, uint64_t page) {
  static char* content = nullptr;
  if (content == nullptr)
    content = static_cast<char*>(map_private(state.page_size, ForkPolicy::kInherit));
  if (content == nullptr) fatal("fork: no memory for a page");
  char* at = region.address_of(PageIndex(page));
  if (sys::peek(at, content, state.page_size) < 0 || page_hash(content) == region.table.hash(page))
    return;
  if (!state.write_protect && !page_is_zero(content) && is_shared(at)) return;
  fatal(
      "fork: page %p was evicted, and something has touched it in the child before Lunar served "
      "it; a fork handler of the program's that may do so must be registered (pthread_atfork) "
      "after lunar_init",
      static_cast<void*>(at));
}

// A page's word for the child. The kernel copied words and pages at different moments, while
// handlers went on bringing pages in. So a page that is present is resident, whatever its word
// says, and a missing page is where it was before it came in.
PageWord settled_word(PagerState& state, Region& region, uint64_t page, bool present) {
  const bool on_touch = region.on_touch;  // then a present page is charged
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
      return word.with_state(PageState::kResident)
          .with_slot(kNoSlot)
          .with_epoch(shared_epoch())
          .with_charged(on_touch);
    case PageState::kInFrame: {
      // the frame stayed with the parent; its slot is written
      const Frame& frame = state.frames.at(word.index());
      if (present) {
        check_brought_in(state, region, page);
        return word.with_state(PageState::kResident).with_slot(kNoSlot).with_epoch(shared_epoch());
      }
      if (frame.slot == kNoSlot)
        fatal("fork: page %p had no slot when the process forked",
              static_cast<void*>(region.address_of(PageIndex(page))));
      return word.with_state(PageState::kEvicted).with_slot(frame.slot).with_lun(frame.lun);
    }
    // a lost page, whose slot will not be read: its LUN number may be given to another LUN
    default:
      return word.with_slot(kNoSlot);
  }
}

// The sums over settled words.
struct Settled {
  int64_t resident = 0, pinned = 0;
  uint64_t charged = 0;
};

// Settles the words of a chunk, counts its resident pages anew, and notes on which LUNs pages lie.
void settle_chunk(PagerState& state, Region& region, uint64_t first, uint64_t count,
                  const uint8_t* present, Settled* sum) {
  int32_t resident = 0;
  int64_t evicted = 0;
  for (uint64_t i = 0; i < count; ++i) {
    const uint64_t page = first + i;
    const PageWord next = settled_word(state, region, page, present[i] != 0);
    const bool is_resident = next.state() == PageState::kResident,
               is_evicted = next.state() == PageState::kEvicted;
    resident += is_resident;
    evicted += is_evicted;
    if ((is_resident || is_evicted) && next.has_slot()) state.luns.referred |= 1u << next.lun();
    sum->charged += next.charged();
    sum->pinned += next.pinned();
    // a store would copy the page of the table
    if (next.raw == region.table.peek(page).raw) continue;
    // libc may have touched an empty page
    if (table_reach(state, region, page, page + 1, 0) < 0)
      fatal("fork: the child has no memory for page tables");
    region.table.at(page).store(next, std::memory_order_relaxed);
  }
  region.chunk_resident[first / kChunkPages].store(resident, std::memory_order_relaxed);
  sum->resident += resident;
  count_evicted(evicted);
}

// Settles all words. Returns the number of resident pages.
int64_t settle_words(PagerState& state) {
  Settled sum;
  state.luns.referred = 0;
  tables_enter_child(state);
  promise_enter_child(state);
  wipe_in_child(state);
  for (Region& region : state.regions) {
    region.grow_lock.reset_in_child();
    sum.charged = 0;
    const int rc = for_present_chunks(state.foreign, region, region.table_pages.load(),
                                      [&](uint64_t first, uint64_t count, const uint8_t* present) {
                                        settle_chunk(state, region, first, count, present, &sum);
                                        return 0;
                                      });
    if (rc < 0)
      fatal(
          "fork: the child cannot tell which pages it has: it may not read "
          "/proc/self/pagemap (%s), and the host has swap space",
          errno_name(rc));
    if (region.on_touch) region.committed_pages.store(sum.charged);
  }
  // another thread of the parent may have been pinning
  state.pinned_pages.store(sum.pinned);
  return sum.resident;
}

int child_restart(PagerState& state, const ForkInProgress& fork, ErrorText* why) {
  thread_resolver_forget();
  fork_descriptors_child(state, fork.descriptors);
  program_end_forget();
  for (Handler* handler : g_fault.handlers)
    if (handler != nullptr) handler->forget_parents();
  state.evictor->forget_parents();
  lun_ids_forget_unused(state);
  if (int rc = open_uffd(state, why); rc < 0) return rc;
  for (const Region& region : state.regions) {
    int rc = region_register(state, region, region.base, region.pages << state.page_shift);
    if (rc < 0)
      return why->set(rc, "fork: a region cannot be registered in the child (%s)", errno_name(rc));
  }
  state.fork.gate_closing.store(false);
  state.fork.gate_used.store(fork.gate);
  set_inheritable(state, false, true);
  // Opened here, not at the first eviction: a descriptor that a service thread opens is not in the
  // program's table. No space is reserved on it yet. If it cannot be opened now, the evictor tries
  // again.
  Device* inherited = state.luns.devices[state.luns.parent];
  if (inherited != nullptr && !inherited->growable()) {
    // so that a child of this process finds the device even if this process has not carved its part
    // yet
    share_device(state, state.luns.own, state.luns.parent);
  } else if (inherited != nullptr) {
    DeviceOptions options;
    ErrorText later;
    if (open_device(state, state.luns.own, options, &later) < 0)
      state.luns.devices[state.luns.own] = nullptr;
  }
  if (int rc = start_threads(state, why); rc < 0) return rc;
  // A fork keeps no write protection. Handlers run by now, as this thread's stack may be tiered.
  if (fork.gate) {
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

// In the child of a process that is not active: all memory is present, and was charged by the
// prepare handler.
void enter_plain_child(PagerState& state, const ForkInProgress& fork) {
  if (fork.refusal < 0) fatal("fork: the child cannot be charged (%s)", errno_name(fork.refusal));
  if (state.account.adopt(static_cast<unsigned>(fork.member), fork.ticket) < 0)
    fatal(
        "fork: the child was stopped for too long before it began; its place in the account is "
        "given up");
  state.account.become_plain();
  state.member.pid.store(getpid());
  state.member.copy.store(sys::memory_copy());
  g_activation.plain_forks = 0;  // those were of the parent's other threads
  g_activation.plain_fork_pages = 0;
  g_activation.failed.store(false);
  g_activation.next_ns.store(0);
  // Other threads of the parent may have been changing these.
  kept_pages_enter_child();
  tables_enter_child(state);
  promise_enter_child(state);
  state.fork.mutators.store(0);
  for (Region& region : state.regions) region.grow_lock.reset_in_child();
  standby_open(state, true);
  state.regions.lock.unlock();
  g_activation.lock.unlock();
}

// Turns the page table, the LUNs and the counts, which are copies of the parent's, into this
// process' own. Returns the number of resident pages.
int64_t take_over(PagerState& state, const ForkInProgress& fork) {
  keep_own_files();
  g_activation.lock.reset_in_child();  // another thread of the parent may have held it
  counters().evicted.store(0);
  const int64_t resident = settle_words(state);
  // From now on this process writes to its own LUN, and only reads its ancestors'.
  ++state.fork.generation;
  state.luns.parent = state.luns.own;
  state.luns.own = static_cast<unsigned>(fork.lun);
  state.luns.ready.store(false);
  state.luns.promised_slots.store(static_cast<int64_t>(committed_pages(state)));
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

// Charges the difference between what the child has and what the parent's prepare handler charged
// for it.
void charge_difference(PagerState& state, const ForkInProgress& fork, int64_t resident) {
  const uint64_t committed = committed_pages(state);
  if (resident > fork.charged)
    state.account.take_always(resident - fork.charged);
  else
    state.account.give_maybe_shared(fork.charged - resident);
  state.account.use_reserved(fork.checked.fixed);
  tables_go_live(state);
  promise_go_live(state, fork.checked.tables);
  // LUN space beyond what the check reserved
  const int64_t more = static_cast<int64_t>(committed << state.page_shift) - fork.checked.lun_bytes;
  if (more < 0)
    state.account.lun_give(-more);
  else if (!lun_take_or_sweep(state, more))
    fatal("fork: there is no LUN space for the child's memory (%s); %s",
          format_size(committed << state.page_shift).text,
          space_remedy(state, space_bound(state, static_cast<uint64_t>(more))));
}

// A foreign piece with MADV_DONTFORK leaves a hole in the child. It is reserved again, because the
// place is still the region's, and no other map may come to lie there.
void close_foreign_holes(PagerState& state) {
  for (const Region& region : state.regions) {
    char* end = region.base + (region.pages << state.page_shift);
    for (char* at = region.base; at < end;) {
      bool foreign = false;
      char* const stop = state.foreign.run(at, end, &foreign);
      const uint64_t first = region.page_of(at).value,
                     count = static_cast<uint64_t>(stop - at) >> state.page_shift;
      if (foreign) claim_holes(region, first, first + count);
      at = stop;
    }
  }
}

}  // namespace

void fork_enter_child(PagerState& state, const ForkInProgress& fork, bool of_libc,
                      const void* here) {
  close_foreign_holes(state);
  checked_forks_enter_child();
  sys::note_memory_owner();
  if (of_libc) sys::threads_unmap_parents(here);
  wipe_reset_in_child();
  HostGuard guard;
  if (!fork.engaged) return enter_plain_child(state, fork);
  host_fork_bootstrap.store(true);  // until the housekeeping thread has made its threads
  if (fork.refusal < 0)
    fatal("fork: the child cannot be served (%s); its memory would be lost",
          errno_name(fork.refusal));
  if (state.account.adopt(static_cast<unsigned>(fork.member), fork.ticket) < 0)
    fatal(
        "fork: the child was stopped for too long before it began; its place in the account, and "
        "its memory with it, is given up");
  state.member.pid.store(getpid());
  state.member.copy.store(sys::memory_copy());
  state.fork.thread_id.store(sys::thread_id());
  charge_difference(state, fork, take_over(state, fork));
  state.luns.open_lock.unlock();
  state.regions.lock.unlock();
  ErrorText why;
  if (int rc = child_restart(state, fork, &why); rc < 0) fatal("%s", why.text);
  state.fork.thread_id.store(0);
  state.fork.forking.store(false);
}

}  // namespace lunar
