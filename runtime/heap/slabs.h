// SPDX-License-Identifier: Apache-2.0
// Defragmentation. jemalloc keeps blocks of one size in slabs of a few pages, and gives a slab back
// when its last block is freed. If most blocks of a size are freed, the scattered rest takes
// several times its own space. An owner that can change the pointers to its blocks moves the blocks
// of the emptier slabs into the fuller ones.
//
// Threading: any thread; the caller owns the block. Not under a HostGuard.
#pragma once
#include <cstddef>

namespace lunar {

// Whether the slab that `inside` points into is emptier than the average slab of its size. Does not
// touch the slab's memory. False also for a large block, which has no slab, for a block outside of
// the tiered heap, and if jemalloc does not tell.
bool heap_in_sparse_slab(const void* inside);
// Moves `block` to the slab that jemalloc fills next, bypassing the thread's cache, which would
// hand out blocks that were just freed. Returns the new block, of the same usable size, and frees
// the old one; nullptr: nothing has changed.
void* heap_move(void* block);

}  // namespace lunar
