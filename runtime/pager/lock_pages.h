// SPDX-License-Identifier: Apache-2.0
// Shared by the range operations that empty, move or mark pages: seizing a page.
// Threading: the caller's thread, inside a MutatorScope.
#pragma once
#include <cstddef>
#include <cstdint>

#include "pager/page/page_word.h"
#include "pager/page/region.h"

namespace lunar {

struct PagerState;

// Whether the kernel has something in its place: content, or the mark of a lost page.
inline bool is_present(PageWord word) {
  return word.state() == PageState::kResident || word.state() == PageState::kPoisoned;
}
// Waits for the thread that has a page busy; returns the word it leaves.
PageWord wait_while_busy(const Region& region, uint64_t page);
// Seizes a page; waits for the thread that has it busy. Returns its word. Empty pages and guard
// pages are not locked: seized() is false for them.
PageWord seize(Region& region, uint64_t page);
inline bool seized(PageWord was) {
  return was.state() != PageState::kEmpty && was.state() != PageState::kGuard;
}
// The same, but also takes empty and guard pages (a neighbour's first touch fills in runs). False:
// it has no word.
[[nodiscard]] bool take_there(Region& region, uint64_t page, PageWord* was);
// The same for all of [first, end), which gets words. 0, or -ENOMEM: none is taken.
[[nodiscard]] int take_all(PagerState& state, Region& region, uint64_t first, uint64_t end,
                           PageWord* was);
// Frees and uncharges all that the pager has of the page's content. Returns the word for
// release_page.
PageWord empty_word(PagerState& state, Region& region, uint64_t page, PageWord was, PageState next);
// Frees the slot of an evicted, framed or resident page.
void drop_content(PagerState& state, PageWord was);

}  // namespace lunar
