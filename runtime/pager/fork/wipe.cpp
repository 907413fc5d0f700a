// SPDX-License-Identifier: Apache-2.0
// See wipe.h. An unordered list of disjoint ranges.
#include "pager/fork/wipe.h"

#include <errno.h>
#include <sys/mman.h>

#include <atomic>

#include "pager/state/state.h"

namespace lunar {
namespace {

struct Range {
  char* begin;
  char* end;
};
constexpr unsigned kRangesMax = 256;

struct WipeList {
  sys::SpinLock lock;
  std::atomic<unsigned> count{0};
  Range ranges[kRangesMax] = {};
};
constinit WipeList g_list;

// Takes [begin, end) out of all ranges. False: a range would fall in two and there is no room.
bool take_out(char* begin, char* end) {
  unsigned n = g_list.count.load(std::memory_order_relaxed);
  for (unsigned i = 0; i < n; ++i) {
    Range one = g_list.ranges[i];
    if (one.end <= begin || one.begin >= end) continue;
    const bool below = one.begin < begin;
    const bool above = one.end > end;
    if (below && above) {
      if (n == kRangesMax) return false;
      g_list.ranges[n++] = {end, one.end};
    }
    if (below)
      g_list.ranges[i].end = begin;
    else if (above)
      g_list.ranges[i].begin = end;
    else
      g_list.ranges[i--] = g_list.ranges[--n];
  }
  g_list.count.store(n, std::memory_order_relaxed);
  return true;
}

bool change(char* begin, char* end, bool wipe) {
  sys::Locked<sys::SpinLock> lock(g_list.lock);
  if (!take_out(begin, end)) return false;
  unsigned n = g_list.count.load(std::memory_order_relaxed);
  if (!wipe) return true;
  if (n == kRangesMax) return false;
  g_list.ranges[n] = {begin, end};
  g_list.count.store(n + 1, std::memory_order_relaxed);
  return true;
}

}  // namespace

bool wipe_any() { return g_list.count.load(std::memory_order_relaxed) != 0; }

int wipe_set(PagerState& state, char* begin, size_t bytes, bool wipe) {
  MutatorScope scope(state);
  // In this order each way: a range that is not in the list is never wiped by the kernel.
  if (wipe && !change(begin, begin + bytes, true)) return -ENOMEM;
  int rc = sys::advise(begin, bytes, wipe ? MADV_WIPEONFORK : MADV_KEEPONFORK);
  if ((!wipe || rc < 0) && !change(begin, begin + bytes, false)) return -ENOMEM;
  return rc;
}

int wipe_move(PagerState& state, char* to, char* from, size_t bytes) {
  Range found[kRangesMax];
  unsigned n = 0;
  {
    sys::Locked<sys::SpinLock> lock(g_list.lock);
    for (unsigned i = 0; i < g_list.count.load(std::memory_order_relaxed); ++i) {
      Range one = g_list.ranges[i];
      if (one.end <= from || one.begin >= from + bytes) continue;
      found[n++] = {one.begin < from ? from : one.begin,
                    one.end > from + bytes ? from + bytes : one.end};
    }
  }
  for (unsigned i = 0; i < n; ++i)
    if (int rc = wipe_set(state, to + (found[i].begin - from),
                          static_cast<size_t>(found[i].end - found[i].begin), true);
        rc < 0)
      return rc;
  return 0;
}

void wipe_reset_in_child() { g_list.lock.unlock(); }

void wipe_in_child(PagerState& state) {
  for (unsigned i = 0; i < g_list.count.load(std::memory_order_relaxed); ++i) {
    for (char* at = g_list.ranges[i].begin; at < g_list.ranges[i].end; at += state.page_size) {
      Region* region = state.regions.find(at);
      if (region == nullptr) continue;
      AtomicPageWord* word = region->table.find(region->page_of(at).value);
      PageWord was = word != nullptr ? word->load(std::memory_order_relaxed) : PageWord{};
      if (was.state() == PageState::kEmpty) continue;
      word->store(
          PageWord{was.raw & PageWord::kPinned}.with_state(PageState::kEmpty).with_slot(kNoSlot),
          std::memory_order_relaxed);
    }
  }
}

}  // namespace lunar
