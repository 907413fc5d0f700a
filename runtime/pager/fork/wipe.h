// SPDX-License-Identifier: Apache-2.0
// MADV_WIPEONFORK: ranges whose content a forked child does not get. The kernel removes it from the
// child's mappings; this file keeps the child's page table from bringing it back from the LUN.
// Threading: a MutatorScope excludes forks during a change. There are few ranges: keys and seeds, a
// page or so each.
#pragma once
#include <cstddef>
#include <cstdint>

namespace lunar {

struct PagerState;
struct Region;

// Adds or removes the range. -ENOMEM: there are too many. Not for callers that may not wait for a
// fork.
[[nodiscard]] int wipe_set(PagerState& state, char* begin, size_t bytes, bool wipe);
bool wipe_any();  // there are any
// From now on `to` is what `from` was (mremap).
[[nodiscard]] int wipe_move(PagerState& state, char* to, char* from, size_t bytes);
// In a forked child: resets the list, on which another thread of the parent may have been working.
void wipe_reset_in_child();
// In a forked child, before anything looks at page words: pages of these ranges are empty.
void wipe_in_child(PagerState& state);

}  // namespace lunar
