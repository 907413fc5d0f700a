// SPDX-License-Identifier: Apache-2.0
// Moving what lies alone. jemalloc keeps blocks of one size in slabs of a few pages, and gives a slab back when its
// last block is freed: blocks that stay scattered after others of their size were freed hold on to several times their
// own room. An owner that can change the pointers to its blocks moves those of the emptier slabs into the fuller ones.
//
// Threading: any thread; the caller owns the block. Not under a HostGuard.
#pragma once
#include <cstddef>

namespace lunar {

// Whether the slab that `inside` points into is emptier than those of this size are on average. Touches no byte of it.
// False as well where the block has no slab (large ones), is not of the tiered heap, or jemalloc does not tell.
bool heap_in_sparse_slab(const void* inside);
// Moves `block` to the slab that jemalloc fills next, past the thread's cache (which would hand out the places that
// were just freed). The new block, of the same usable size; nullptr: nothing happened.
void* heap_move(void* block);

}  // namespace lunar
