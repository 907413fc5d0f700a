// SPDX-License-Identifier: Apache-2.0
// Diagnostics of the pager: pager_dump and pager_validate.
// Threading: dump reads without synchronization and takes no lock; validate pauses the evictor and
// expects no faults meanwhile.
#include <errno.h>

#include "base/format.h"
#include "pager/evict/evictor.h"
#include "pager/evict/pins.h"
#include "pager/fault/fault_state.h"
#include "pager/fault/handler.h"
#include "pager/pager.h"
#include "pager/space/deferred_slots.h"
#include "pager/table/table_promise.h"
#include "pager/table/tables.h"
#include "sys/log.h"

namespace lunar {
namespace {

void say(int fd, const char* text, size_t n) { (void)sys::write_to_program(fd, text, n); }

void dump_region(int fd, const Region& region) {
  uint64_t in_state[kPageStates] = {};
  uint64_t end = region.table_pages.load();
  char line[256];
  unsigned shown = 0;
  region.table.for_words(0, end, [&](uint64_t i, const AtomicPageWord& atomic) {
    const PageWord word = atomic.load(std::memory_order_relaxed);
    ++in_state[static_cast<unsigned>(word.state())];
    if (word.state() == PageState::kBusy && shown++ < 8) {
      size_t n = format_to(line, sizeof line, "  busy page %p (was %s, waiter %d, index %u)\n",
                           static_cast<const void*>(region.address_of(PageIndex(i))),
                           kPageStateNames[static_cast<unsigned>(word.previous())], word.waiter(),
                           word.index());
      say(fd, line, n);
    }
  });
  size_t n = format_to(line, sizeof line, "region %p: %lu of %lu pages used, committed %lu:",
                       static_cast<const void*>(region.base), end, region.pages,
                       region.committed_pages.load());
  say(fd, line, n);
  for (unsigned s = 0; s < kPageStates; ++s) {
    if (in_state[s] == 0) continue;
    n = format_to(line, sizeof line, " %s %lu", kPageStateNames[s], in_state[s]);
    say(fd, line, n);
  }
  say(fd, "\n", 1);
}

}  // namespace

void pager_dump(int fd) {
  auto& state = pager_state();
  char line[256];
  size_t n = format_to(
      line, sizeof line,
      "pager: %s, generation %u, fork epoch %u, oldest child %u, deferred slots %lu, may pin %d\n",
      pager_active() ? "active" : "not active", state.fork.generation, state.fork.epoch.load(),
      state.fork.oldest_child.load(), deferred_slot_count(), pins_noted());
  say(fd, line, n);
  for (const Region& region : state.regions) dump_region(fd, region);
  if (!pager_active()) return;
  n = format_to(line, sizeof line, "page tables: %ld pages, promised %ld\n", table_pages(),
                promise_pages());
  say(fd, line, n);
  state.account.dump(fd);
  state.evictor->dump(fd);
  for (unsigned i = 0; i < state.services.handler_count; ++i) g_fault.handlers[i]->dump(fd);
  auto& c = counters();
  n = format_to(line, sizeof line,
                "counts: faults %lu zero %lu major %lu second %lu evictions %lu waits %lu "
                "duplicates %lu errors %lu/%lu\n",
                c.faults.get(), c.zero_fills.get(), c.major_faults.get(), c.second_chances.get(),
                c.evictions.get(), c.budget_waits.get(), c.duplicates.get(), c.read_errors.get(),
                c.write_errors.get());
  say(fd, line, n);
}

namespace {

// The result of a scan of all page words.
struct Tally {
  int64_t resident = 0, evicted = 0;
  uint64_t slots = 0;
  bool good = true;

  void check(bool fact, const char* what, const void* where, int64_t found, int64_t expected) {
    if (fact) return;
    if (good)  // the first difference is enough
      log_error("validate: %s at %p: %ld, expected %ld", what, where, found, expected);
    good = false;
  }
  void walk(PagerState& state, Region& region);
};

void Tally::walk(PagerState& state, Region& region) {
  uint64_t end = region.table_pages.load();
  uint8_t present[kChunkPages];
  for (uint64_t at = 0; at < end; at += kChunkPages) {
    uint64_t n = end - at < kChunkPages ? end - at : kChunkPages;
    char* base = region.address_of(PageIndex(at));
    check(present_own(state.foreign, base, n, present) == 0, "pagemap cannot be read", base, 0, 0);
    int32_t in_chunk = 0;
    for (uint64_t k = 0; k < n; ++k) {
      const PageWord word = region.table.peek(at + k);
      PageState s = word.state();
      const char* page = base + k * state.page_size;
      if (s == PageState::kResident) ++in_chunk;
      if (s == PageState::kEvicted || s == PageState::kInFrame) ++evicted;
      check(s != PageState::kBusy, "a busy page", page, static_cast<int64_t>(word.previous()), -1);
      if (s != PageState::kPoisoned && s != PageState::kGuard)
        check((s == PageState::kResident) == (present[k] != 0), "present, by its state", page,
              present[k], static_cast<int64_t>(s));
      if ((s == PageState::kResident || s == PageState::kEvicted || s == PageState::kPoisoned) &&
          word.has_slot() && word.lun() == state.luns.own)
        ++slots;
      if (s == PageState::kInFrame) {
        const Frame& frame = state.frames.at(word.index());
        if (frame.lun == state.luns.own && frame.slot != kNoSlot) ++slots;
      }
    }
    check(in_chunk == region.chunk_resident[at / kChunkPages].load(), "resident in a chunk", base,
          region.chunk_resident[at / kChunkPages].load(), in_chunk);
    resident += in_chunk;
  }
}

}  // namespace

bool pager_validate() {
  auto& state = pager_state();
  if (!pager_active()) return true;
  state.evictor->pause();
  const sys::ScopedSignalBlock signals;
  const TableScope scope;
  Tally tally;
  for (Region& region : state.regions) tally.walk(state, region);
  tally.check(tally.resident == counters().resident.load(), "resident pages", nullptr,
              counters().resident.load(), tally.resident);
  tally.check(tally.evicted == counters().evicted.load(), "evicted pages", nullptr,
              counters().evicted.load(), tally.evicted);
  if (state.luns.ready.load()) {
    const SlotAllocator& lun = state.luns.slots[state.luns.own];
    tally.check(lun.validate(), "the LUN's bitmap", nullptr, 0, 0);
    if (state.fork.oldest_child.load() == 0 && deferred_slot_count() == 0)
      tally.check(tally.slots == lun.used_slots(), "slots in use", nullptr,
                  static_cast<int64_t>(lun.used_slots()), static_cast<int64_t>(tally.slots));
  }
  state.evictor->resume();
  return tally.good;
}

// The service threads stay asleep, until a later pager_create uses them again.
int pager_destroy() {
  auto& state = pager_state();
  if (!pager_created()) return -EINVAL;
  if (state.regions.count.load() != 0) return -EBUSY;
  state.created.store(false, std::memory_order_release);
  return 0;
}

}  // namespace lunar
