// SPDX-License-Identifier: Apache-2.0
// The numbers that page words have for LUNs. A word has room for 16; a chain of forks may be longer
// than that. Threading: the forking thread, under fork's lock; the child. May wait for page faults
// and the device.
#pragma once

namespace lunar {

struct PagerState;

// A number for the LUN of a future child. If none is free, frees one by taking the pages of the LUN
// that has the fewest into DRAM: before a fork, while there is eviction. -EAGAIN: none available.
[[nodiscard]] int lun_id_for_child(PagerState& state);
// In the child: forgets the LUNs that none of its pages refers to, and closes their descriptors.
void lun_ids_forget_unused(PagerState& state);

}  // namespace lunar
