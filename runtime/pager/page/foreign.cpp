// SPDX-License-Identifier: Apache-2.0
// See foreign.h. An array that has become too small stays mapped: a reader may still be in it.
#include "pager/page/foreign.h"

#include <errno.h>
#include <string.h>

#include <algorithm>

#include "sys/arena.h"
#include "sys/fatal.h"
#include "sys/mem.h"
#include "sys/thread.h"

namespace lunar {

constexpr size_t kFirstCapacity = 256;

int ForeignRanges::reserve() {
  const size_t count = count_.load(std::memory_order_relaxed);
  if (count < capacity_) return 0;  // a change adds one range at most
  const size_t capacity = capacity_ == 0 ? kFirstCapacity : 2 * capacity_;
  auto* larger = static_cast<Range*>(map_private(capacity * sizeof(Range), ForkPolicy::kInherit));
  if (larger == nullptr) return -ENOMEM;
  const Range* old = ranges_.load(std::memory_order_relaxed);
  for (size_t i = 0; i < count; ++i) {
    larger[i].begin.store(old[i].begin.load(std::memory_order_relaxed), std::memory_order_relaxed);
    larger[i].end.store(old[i].end.load(std::memory_order_relaxed), std::memory_order_relaxed);
  }
  ranges_.store(larger, std::memory_order_release);
  capacity_ = capacity;
  return 0;
}

size_t ForeignRanges::lower(uintptr_t at) const {
  // the count before the array: an older array may be too short for a newer count
  size_t low = 0, high = count_.load(std::memory_order_acquire);
  const Range* ranges = ranges_.load(std::memory_order_acquire);
  while (low < high) {
    const size_t middle = (low + high) / 2;
    if (ranges[middle].end.load(std::memory_order_relaxed) > at)
      high = middle;
    else
      low = middle + 1;
  }
  return low;
}

// Replaces the ranges [first, last) by the first `puts` of `put`.
void ForeignRanges::replace(size_t first, size_t last, const uintptr_t (&put)[2][2], size_t puts) {
  Range* ranges = ranges_.load(std::memory_order_relaxed);
  const size_t count = count_.load(std::memory_order_relaxed),
               after = count - (last - first) + puts;
  LUNAR_CHECK(after <= capacity_, "foreign ranges: no room was reserved");
  const auto copy = [ranges](size_t to, size_t from) {
    ranges[to].begin.store(ranges[from].begin.load(std::memory_order_relaxed),
                           std::memory_order_relaxed);
    ranges[to].end.store(ranges[from].end.load(std::memory_order_relaxed),
                         std::memory_order_relaxed);
  };
  sequence_.fetch_add(1, std::memory_order_acq_rel);
  std::atomic_thread_fence(std::memory_order_release);
  if (first + puts > last)
    for (size_t i = count; i > last; --i) copy(i - 1 + after - count, i - 1);
  else
    for (size_t i = last; i < count; ++i) copy(i - (count - after), i);
  for (size_t i = 0; i < puts; ++i) {
    ranges[first + i].begin.store(put[i][0], std::memory_order_relaxed);
    ranges[first + i].end.store(put[i][1], std::memory_order_relaxed);
  }
  count_.store(after, std::memory_order_release);
  sequence_.fetch_add(1, std::memory_order_release);
}

void ForeignRanges::add(const void* begin, size_t bytes) {
  uintptr_t from = reinterpret_cast<uintptr_t>(begin), to = from + bytes;
  const Range* ranges = ranges_.load(std::memory_order_relaxed);
  const size_t first = lower(from - 1);  // a range that ends where this one begins is joined
  size_t last = first;
  for (; last < count_.load(std::memory_order_relaxed) && ranges[last].begin.load() <= to; ++last) {
    from = std::min(from, ranges[last].begin.load());
    to = std::max(to, ranges[last].end.load());
  }
  replace(first, last, {{from, to}}, 1);
}

void ForeignRanges::remove(const void* begin, size_t bytes) {
  const uintptr_t from = reinterpret_cast<uintptr_t>(begin), to = from + bytes;
  const Range* ranges = ranges_.load(std::memory_order_relaxed);
  const size_t first = lower(from);
  size_t last = first, puts = 0;
  uintptr_t rest[2][2] = {};
  for (; last < count_.load(std::memory_order_relaxed) && ranges[last].begin.load() < to; ++last) {
    const uintptr_t low = ranges[last].begin.load(), high = ranges[last].end.load();
    const auto keep = [&](uintptr_t begin_kept, uintptr_t end_kept) {
      rest[puts][0] = begin_kept;
      rest[puts][1] = end_kept;
      ++puts;
    };
    if (low < from) keep(low, from);
    if (high > to) keep(to, high);
  }
  if (last != first) replace(first, last, rest, puts);
}

char* ForeignRanges::run(char* at, char* end, bool* foreign) const {
  *foreign = false;
  if (count_.load(std::memory_order_acquire) == 0) return end;
  const auto from = reinterpret_cast<uintptr_t>(at), limit = reinterpret_cast<uintptr_t>(end);
  for (;;) {
    const uint32_t before = sequence_.load(std::memory_order_acquire);
    uintptr_t stop = limit;
    bool inside = false;
    if ((before & 1) == 0) {
      const size_t i = lower(from);
      if (i < count_.load(std::memory_order_acquire)) {
        const Range& range = ranges_.load(std::memory_order_acquire)[i];
        inside = range.begin.load(std::memory_order_relaxed) <= from;
        const uintptr_t edge = (inside ? range.end : range.begin).load(std::memory_order_relaxed);
        if (edge < stop) stop = edge;
      }
      std::atomic_thread_fence(std::memory_order_acquire);
      if (sequence_.load(std::memory_order_relaxed) == before) {
        *foreign = inside;
        return at + (stop - from);
      }
    }
    sys::cpu_relax();
  }
}

bool ForeignRanges::overlaps(const void* begin, size_t bytes) const {
  auto* at = const_cast<char*>(static_cast<const char*>(begin));
  bool foreign = false;
  return run(at, at + bytes, &foreign) != at + bytes || foreign;
}

int present_own(const ForeignRanges& ranges, char* at, uint64_t pages, uint8_t* present) {
  const size_t page = sys::page_bytes();
  memset(present, 0, pages);
  return for_own(ranges, at, at + pages * page, [&](char* from, size_t bytes) {
    return sys::present_pages(from, bytes / page, present + static_cast<size_t>(from - at) / page);
  });
}

}  // namespace lunar
