// SPDX-License-Identifier: Apache-2.0
// Brings ranges of pages in on the caller's thread, by a resolver of its own: without faults, and
// with many reads in flight. Threading: any thread of the program; waits for the device, but takes
// no page fault on tiered memory.
#pragma once
#include <cstddef>
#include <cstdint>

#include "lunar/lunar.h"

namespace lunar {

struct PagerState;
struct Region;

struct PageRange {
  Region* region;
  uint64_t first, end;
};

// The pages that the range touches, or with `inward` only those wholly inside it. 0; -EINVAL: it is
// not in one region; -EFAULT: a part of it is foreign; -ENOMEM: this process has none of the tiered
// memory.
[[nodiscard]] int pages_of(const PagerState& state, const void* address, size_t bytes, bool inward,
                           PageRange* out);

enum class Want { kRead, kTouch };
// See pager_prefetch (kRead) and pager_touch. pre: active.
[[nodiscard]] int bring_in_ranges(PagerState& state, const lunar_range* ranges, size_t count,
                                  Want want);

void thread_resolver_forget();             // in a forked child: the rings belong to the parent
void thread_resolvers_wait_for_release();  // as Resolver's, for all program threads

}  // namespace lunar
