// SPDX-License-Identifier: Apache-2.0
// Locking pages, for the range operations that empty, move or mark them.
// Threading: the caller's thread, inside a MutatorScope.
#pragma once
#include <cstddef>
#include <cstdint>

#include "pager/page/page_word.h"
#include "pager/page/region.h"

namespace lunar {

struct PagerState;

// Whether the kernel has content in the page's place, or the mark of a lost page.
inline bool is_present(PageWord word) {
  return word.state() == PageState::kResident || word.state() == PageState::kPoisoned;
}
// Waits until no thread has locked the page. Returns its word.
PageWord wait_while_busy(const Region& region, uint64_t page);
// Empty pages and guard pages have no content.
inline bool has_content(PageWord word) {
  return word.state() != PageState::kEmpty && word.state() != PageState::kGuard;
}
// Locks a page if it has content; waits while another thread has locked it. Returns its word from
// before.
PageWord lock_page_with_content(Region& region, uint64_t page);
// Locks a page, also without content, because a neighbour's first touch may fill it. False: it has
// no word.
[[nodiscard]] bool lock_page(Region& region, uint64_t page, PageWord* was);
// Gives all pages of [first, end) words, and locks them. 0; -ENOMEM: none is locked.
[[nodiscard]] int lock_pages(PagerState& state, Region& region, uint64_t first, uint64_t end,
                             PageWord* was);
// Drops the pages of [first, end) that are present by `was`. It drops no other page, because any
// thread may fill an empty one meanwhile. advice: MADV_DONTNEED, or MADV_DONTNEED_LOCKED to drop
// also what a raw call has locked. Sets stays[i] for pages that cannot be dropped. 0, or the first
// error.
int drop_present(const PagerState& state, const Region& region, uint64_t first, uint64_t end,
                 const PageWord* was, int advice, bool* stays);
// Frees and uncharges all that the pager has of the page's content. Returns the word for
// release_page.
PageWord empty_word(PagerState& state, Region& region, uint64_t page, PageWord was, PageState next);
// Frees the slot of an evicted, framed or resident page.
void drop_content(PagerState& state, PageWord was);

}  // namespace lunar
