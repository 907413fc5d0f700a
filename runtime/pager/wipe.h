// SPDX-License-Identifier: Apache-2.0
// MADV_WIPEONFORK: ranges whose contents a forked child does not get. The kernel keeps them from the child's mappings;
// this file keeps the child's page table from bringing them back from the LUN.
// Threading: a MutatorScope keeps forks out of a change. Few ranges: keys and seeds, a page or so each.
#pragma once
#include <cstddef>
#include <cstdint>

namespace lunar {

struct PagerState;
struct Region;

// Adds or removes the range. -ENOMEM: too many. Not for callers that may not wait for a fork.
[[nodiscard]] int wipe_set(PagerState& state, char* begin, size_t bytes, bool wipe);
bool wipe_any();  // there are any
// What `from` is, `to` is from now on (mremap).
[[nodiscard]] int wipe_move(PagerState& state, char* to, char* from, size_t bytes);
// In a forked child: another thread of the parent's may have been at work on the list.
void wipe_reset_in_child();
// In a forked child, before anything looks at page words: pages of these ranges are empty.
void wipe_in_child(PagerState& state);

}  // namespace lunar
