// SPDX-License-Identifier: Apache-2.0
#include "pager/fault/zero_fill.h"

#include <errno.h>

#include <algorithm>

#include "base/test_switches.h"
#include "pager/evict/evictor.h"
#include "pager/fault/out_since.h"
#include "pager/space/lun_space.h"
#include "pager/state/install.h"
#include "pager/state/requests.h"
#include "pager/table/table_promise.h"
#include "pager/table/tables.h"
#include "sys/arena.h"
#include "sys/fatal.h"

namespace lunar {
namespace {

constexpr unsigned kZeroPages = 128;

constinit OutSince g_space_out, g_tables_out;

// Returns the length of the run to fill: while a quarter of the budget is free, fill twice the run
// of used pages below this one. Memory that grows upwards is filled in doubling runs, whichever
// thread touches it. If there are holes below, but at least half of the 128 pages are used, it is
// half of their number. Memory that is touched here and there, a page each, is filled page by page.
unsigned fill_run(const PagerState& state, const Region& region, PageIndex page, unsigned asked) {
  const Account& account = state.account;
  if (region.on_touch || account.free_pages() < account.cap_pages() / 4) return asked;
  const uint64_t first = page.value - std::min<uint64_t>(page.value, kZeroPages);
  unsigned used = 0, before = 0;
  for (uint64_t at = page.value; at > first; --at) {
    if (region.table.peek(at - 1).state() == PageState::kEmpty) continue;
    ++used;
    if (before == page.value - at) ++before;
  }
  unsigned run = before == 0 ? 1 : before * 2;
  if (used > before && used >= kZeroPages / 2) run = std::max(run, used / 2);
  return std::max(run, asked);
}

// Gives a page a word. False: there is no DRAM for a leaf now.
bool reach(PagerState& state, Region& region, uint64_t page, int64_t keep_free, bool is_needed) {
  const int rc = table_reach(state, region, page, page + 1, keep_free);
  if (rc == -ENOMEM && is_needed && g_tables_out.failed_for_a_while(sys::now_ns()))
    fatal(
        "the page tables take all that they may of the DRAM budget: there is no room for that of "
        "page %p%s; give a larger --dram",
        static_cast<void*>(region.address_of(PageIndex(page))),
        region.on_touch ? ", of a map without reservation (MAP_NORESERVE)"
                        : ", which was not committed");
  return rc == 0;
}

// Charges the LUN space of a page that is charged at its first touch. False: there is none now.
bool charge_touch(PagerState& state, const Region& region, uint64_t page, bool is_needed) {
  const int rc = space_charge(state, 1, false);
  if (rc == 0) {
    g_space_out.succeeded();
    return true;
  }
  // dead members may hold space, or more must be reserved
  housekeeping_wake(state, rc == -ENOMEM ? kHousekeepingSweep : kHousekeepingGrow);
  if ((rc == -ENOMEM || state.luns.growth_refused.load()) && is_needed &&
      g_space_out.failed_for_a_while(sys::now_ns()))
    fatal(
        "LUN space is used up: none is left for page %p of a map without reservation "
        "(MAP_NORESERVE); %s",
        static_cast<void*>(region.address_of(PageIndex(page))),
        space_remedy(state, space_bound(state, state.page_size)));
  return false;
}

// Locks empty pages from `page` on, at most `run`, and charges their LUN space if it is charged at
// first touch. Returns how many. If it cannot have the first one for a while, the process ends.
unsigned lock_empty(PagerState& state, Region& region, PageIndex page, const FillRequest& request,
                    unsigned run) {
  for (unsigned locked = 0; locked < run; ++locked) {
    const uint64_t at = page.value + locked;
    const bool is_needed = locked == 0 && request.heat != kHeatReadAhead;
    if (!reach(state, region, at, request.keep_free, is_needed)) return locked;
    const PageWord seen = region.table.peek(at);
    if (seen.state() != PageState::kEmpty) return locked;
    if (region.on_touch && !charge_touch(state, region, at, is_needed)) return locked;
    if (region.table.lock(at, seen)) continue;
    if (region.on_touch) space_uncharge(state, 1);
    return locked;
  }
  return run;
}

// A locked page becomes empty again.
void leave_empty(PagerState& state, Region& region, PageIndex page, Wake wake) {
  if (region.on_touch) space_uncharge(state, 1);
  const PageWord busy = region.table.at(page.value).load(std::memory_order_relaxed);
  release_page(state, region, page, busy.with_state(PageState::kEmpty), wake);
}

// Releases a locked page that was filled; `epoch` was read before. The copy has woken the threads
// that met it missing; a thread may have met it write-protected since (during a fork).
void settle_filled(PagerState& state, Region& region, PageIndex page, uint16_t epoch, Wake wake) {
  const bool on_touch = region.on_touch;
  count_resident(state, region, page, 1);
  if (on_touch) region.committed_pages.fetch_add(1, std::memory_order_relaxed);
  const PageWord busy = region.table.at(page.value).load(std::memory_order_relaxed);
  release_page(
      state, region, page,
      resident_word(busy, kNoSlot, state.luns.own, kHeatFault, epoch).with_charged(on_touch), wake);
}

// Fills locked pages with zeros and releases them. Returns how many; the others are empty again.
unsigned fill_locked(PagerState& state, Region& region, PageIndex page, unsigned locked,
                     Reservation& room) {
  LUNAR_DCHECK(locked > 0 && locked <= kZeroPages && room.pages() == locked);
  sys::test_delay(test_switches.reach_delay_us);
  unsigned gone = 0;
  for (unsigned done = 0; done < locked;) {
    const PageIndex at(page.value + done);
    const uint16_t epoch = exclusive_epoch(state);
    const InstallResult run = install(state, region.address_of(at), zero_run(), locked - done);
    if (run.outcome == InstallOutcome::kRefused || run.outcome == InstallOutcome::kBorder) {
      // only the first page is needed
      const unsigned kept = run.outcome == InstallOutcome::kBorder ? done + 1 : done;
      for (; locked > kept; --locked)
        leave_empty(state, region, PageIndex(page.value + locked - 1), Wake::kWaiters);
      continue;
    }
    sys::test_delay(test_switches.release_delay_us);
    const bool there = run.outcome == InstallOutcome::kThere;
    const unsigned filled = run.outcome == InstallOutcome::kDone ? run.pages : 1;
    if (run.outcome == InstallOutcome::kGone) {
      leave_empty(state, region, at, Wake::kAll);
      ++gone;
    } else {
      for (unsigned i = 0; i < filled; ++i)
        settle_filled(state, region, PageIndex(at.value + i), there ? shared_epoch() : epoch,
                      there ? Wake::kAll : Wake::kWaiters);
      room.keep(filled);
    }
    done += filled;
  }
  counters().zero_fills.add(locked - gone);
  return locked;
}

}  // namespace

const char* zero_run() {
  static char* const zeros =
      static_cast<char*>(map_private(kZeroPages * sys::page_bytes(), ForkPolicy::kInherit));
  return zeros;
}

FillResult zero_fill(PagerState& state, Region& region, PageIndex page,
                     const FillRequest& request) {
  const unsigned wanted = request.fault ? fill_run(state, region, page, request.run) : 1;
  auto run =
      static_cast<unsigned>(std::min<uint64_t>({wanted, kZeroPages, region.pages - page.value}));
  bool foreign = false;
  char* at = region.address_of(page);
  run = static_cast<unsigned>(
      static_cast<size_t>(state.foreign.run(at, at + run * state.page_size, &foreign) - at) >>
      state.page_shift);
  Reservation room(state.account);
  while (run > 1 && !room.take(run, request.keep_free + state.evictor->low_water() / 2)) run /= 2;
  const bool has_room = run > 1 || room.take(1, request.keep_free);
  const unsigned locked = has_room ? lock_empty(state, region, page, request, run) : 0;
  room.shrink(locked);
  const unsigned filled = locked == 0 ? 0 : fill_locked(state, region, page, locked, room);
  if (filled != 0) return {Outcome::kResident, filled};
  const PageWord now = region.table.peek(page.value);
  return {now.state() == PageState::kEmpty ? Outcome::kNoRoom : Outcome::kChanged};
}

}  // namespace lunar
