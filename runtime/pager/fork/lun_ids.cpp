// SPDX-License-Identifier: Apache-2.0
// See lun_ids.h. A number is needed only for a LUN on which pages lie, not for each ancestor. A
// child notes these LUNs when it reads all words, and forgets the others, whose numbers become
// free. If all numbers are in use, a fork first gives up the LUN with the fewest pages: they come
// into DRAM, lose their slots there, and their next eviction writes them to the own LUN.
#include "pager/fork/lun_ids.h"

#include <errno.h>
#include <sys/mman.h>

#include <algorithm>

#include "pager/fault/bring_in.h"
#include "pager/state/descriptors.h"
#include "sys/log.h"
#include "sys/memory_constants.h"

namespace lunar {
namespace {

constexpr unsigned kNoLun = kLunIds;
constexpr unsigned kRoundsMax = 1000;
constexpr unsigned kRangesMax = 128;

// Returns the LUN on which a page's content lies, by its word, which is not busy; kNoLun: on none.
unsigned lun_of(PagerState& state, PageWord seen) {
  switch (seen.state()) {
    case PageState::kResident:
    case PageState::kEvicted:
      return seen.has_slot() ? seen.lun() : kNoLun;
    // the frame may have been reused, so settled() checks the word again
    case PageState::kInFrame:
      return state.frames.at(seen.index()).lun;
    default:
      return kNoLun;
  }
}

// Waits until the page is not busy. Returns its word, and the LUN that belongs to this word.
PageWord settled(PagerState& state, const Region& region, uint64_t page, unsigned* lun) {
  for (unsigned spins = 0;; ++spins) {
    const TableScope scope;
    const PageWord seen = region.table.peek(page);
    if (seen.state() != PageState::kBusy) {
      *lun = lun_of(state, seen);
      std::atomic_thread_fence(std::memory_order_acquire);
      if (region.table.peek(page).raw == seen.raw) return seen;
    }
    spins < 100 ? sys::cpu_relax() : sys::sleep_ns(20'000);
  }
}

// Takes the slot out of the page's word. False: the word has changed.
bool lose_slot(const Region& region, uint64_t page, PageWord seen) {
  const TableScope scope;
  AtomicPageWord* word = region.table.find(page);
  return word != nullptr && word->compare_exchange_strong(seen, seen.with_slot(kNoSlot));
}

template <class F>
int for_chunks(PagerState& state, F visit) {
  for (Region& region : state.regions) {
    const uint64_t end = region.table_pages.load();
    for (uint64_t at = 0; at < end; at += kChunkPages) {
      if (!region.table.uses(at, chunk_end(at, end))) continue;
      if (int rc = visit(region, at, chunk_end(at, end)); rc < 0) return rc;
    }
  }
  return 0;
}

void count_pages(PagerState& state, uint64_t (&pages)[kLunIds + 1]) {
  (void)for_chunks(state, [&](Region& region, uint64_t first, uint64_t end) {
    for (uint64_t p = first; p < end; ++p) {
      unsigned lun;
      (void)settled(state, region, p, &lun);
      ++pages[lun];
    }
    return 0;
  });
}

// Brings the pages of [first, end) that lie on `lun` into DRAM, and takes away their slots. Repeats
// that while evictions are faster.
int take_off(PagerState& state, Region& region, uint64_t first, uint64_t end, unsigned lun) {
  for (unsigned round = 0; round < kRoundsMax; ++round) {
    bool left = false;
    for (uint64_t p = first; p < end;) {
      uint64_t next = p;
      for (unsigned on = lun; next < end; ++next) {
        PageWord seen = settled(state, region, next, &on);
        if (on != lun) break;
        if (seen.state() == PageState::kResident && lose_slot(region, next, seen)) break;
      }
      if (next == p) {
        ++p;
        continue;
      }
      left = true;
      if (int rc = sys::advise(region.address_of(PageIndex(p)), (next - p) << state.page_shift,
                               MADV_POPULATE_READ);
          rc < 0 && rc != -EAGAIN)
        return rc;
      p = next;
    }
    if (!left) return 0;
  }
  return -EAGAIN;
}

// Prefetches the pages of [first, end) that are only on `lun`: read one by one, each would cost a
// latency of the device. take_off reads the pages that this leaves out, or that are evicted again.
void read_ahead_of(PagerState& state, Region& region, uint64_t first, uint64_t end, unsigned lun) {
  lunar_range ranges[kRangesMax];
  unsigned count = 0;
  for (uint64_t p = first; p < end; ++p) {
    unsigned on = kNoLun;
    const PageWord seen = settled(state, region, p, &on);
    if (on != lun || seen.state() != PageState::kEvicted) continue;
    char* at = region.address_of(PageIndex(p));
    const bool follows =
        count != 0 &&
        static_cast<const char*>(ranges[count - 1].address) + ranges[count - 1].bytes == at;
    if (follows)
      ranges[count - 1].bytes += state.page_size;
    else if (count < kRangesMax)
      ranges[count++] = {at, state.page_size};
    else
      break;
  }
  if (count > 1) (void)bring_in_ranges(state, ranges, count, Want::kRead);
}

// Some chunks at a time, so that prefetched pages stay until take_off.
int empty_lun(PagerState& state, unsigned lun) {
  constexpr uint64_t kPagesAtOnce = 8 * kChunkPages;
  uint64_t ahead_to = 0;
  const Region* ahead_in = nullptr;
  return for_chunks(state, [&](Region& region, uint64_t first, uint64_t end) {
    if (&region != ahead_in || first >= ahead_to) {
      ahead_in = &region;
      ahead_to = std::min(first + kPagesAtOnce, region.table_pages.load());
      read_ahead_of(state, region, first, ahead_to, lun);
    }
    return take_off(state, region, first, end, lun);
  });
}

}  // namespace

int lun_id_for_child(PagerState& state) {
  const auto free_number = [&state] {
    for (unsigned id = 0; id < kLunIds; ++id)
      if (id != state.luns.own && (state.luns.referred >> id & 1) == 0) return static_cast<int>(id);
    return -EAGAIN;
  };
  if (int id = free_number(); id >= 0) return id;
  uint64_t pages[kLunIds + 1] = {};
  count_pages(state, pages);
  state.luns.referred = 0;
  for (unsigned id = 0; id < kLunIds; ++id)
    state.luns.referred |= static_cast<uint32_t>(pages[id] != 0) << id;
  int rc = -EAGAIN;
  for (uint32_t tried = 1u << state.luns.own; free_number() < 0;) {
    unsigned fewest = kNoLun;
    for (unsigned id = 0; id < kLunIds; ++id)
      if ((tried >> id & 1) == 0 && (fewest == kNoLun || pages[id] < pages[fewest])) fewest = id;
    if (fewest == kNoLun) {
      LUNAR_LOG_LIMITED(log_warning, 4,
                        "fork refused: this process has pages on the LUNs of %u ancestors, and "
                        "none of these can be emptied (%s)",
                        kLunIds - 1, errno_name(rc));
      return -EAGAIN;
    }
    tried |= 1u << fewest;
    rc = empty_lun(state, fewest);
    if (rc == 0) state.luns.referred &= ~(1u << fewest);
  }
  return free_number();
}

void lun_ids_forget_unused(PagerState& state) {
  for (unsigned id = 0; id < kLunIds; ++id) {
    if ((state.luns.referred >> id & 1) != 0 ||
        (state.fork.generation != 0 && id == state.luns.parent))
      continue;
    forget_device(state, id);
    state.luns.slots[id].forget();
  }
}

}  // namespace lunar
