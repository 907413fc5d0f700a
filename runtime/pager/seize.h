// SPDX-License-Identifier: Apache-2.0
// What the range operations that empty, move or mark pages share: ranges of pages, and taking a page out of everybody's hands.
// Threading: the caller's thread, inside a MutatorScope.
#pragma once
#include <cstddef>
#include <cstdint>

#include "pager/page_word.h"
#include "pager/region.h"

namespace lunar {

struct PageRange {
  Region* region;
  uint64_t first, end;
};

// Whole pages touched by the range (outward) or inside it (inward). -EINVAL: not in one region.
[[nodiscard]] int pages_of(const void* address, size_t bytes, bool inward, PageRange* out);

// Takes a page; waits for whoever has it in hand. Returns its word. Empty pages, guard pages and those that are gone are not
// locked: seized() is false.
PageWord seize(Region& region, uint64_t page);
inline bool seized(PageWord was) {
  return was.state() != PageState::kEmpty && was.state() != PageState::kGone && was.state() != PageState::kGuard;
}
// The same, and takes the empty and guard pages too (a neighbour's first touch fills in runs): only those that are gone are not locked.
PageWord take_any(Region& region, uint64_t page);
// The pager has no part in the page's content any more: what it had is freed and uncharged. Returns the word for put_back.
PageWord empty_word(Region& region, uint64_t page, PageWord was, PageState next);
// Lets go of a locked page, into `next`.
void put_back(Region& region, uint64_t page, PageWord next);
// Frees what an evicted, framed or resident page holds on the LUN.
void drop_content(PageWord was);

// Guard pages of one chunk at most, inside a MutatorScope (or before activation, under activation_lock). See pager_guard.
[[nodiscard]] int guard_pages(Region& region, uint64_t first, uint64_t end, bool install);

}  // namespace lunar
