// SPDX-License-Identifier: Apache-2.0
// The LUN numbers in page words. A word can hold 16 numbers; a chain of forks may be longer.
// Threading: the forking thread, under fork's lock; the child. May wait for page faults and the
// device.
#pragma once

namespace lunar {

struct PagerState;

// Returns a number for the LUN of a future child. If none is free, frees one by bringing the pages
// of the LUN with the fewest into DRAM. Called before a fork, while there is eviction. -EAGAIN: no
// number can be freed.
[[nodiscard]] int lun_id_for_child(PagerState& state);
// In the child: forgets the LUNs that no page of the child refers to, and closes their descriptors.
void lun_ids_forget_unused(PagerState& state);

}  // namespace lunar
