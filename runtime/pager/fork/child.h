// SPDX-License-Identifier: Apache-2.0
// A forked child: takes over the state that it has from its parent. Page states are those of the
// fork, for busy pages the state before; userfaultfd, threads, frames and LUN are the child's own.
// Threading: the child's only thread. Threads that do not exist in the child may have held libc's
// and jemalloc's locks, so nothing is allocated from the host.
#pragma once
#include "pager/fork/checked_forks.h"
#include "pager/state/descriptors.h"

namespace lunar {

// Made for the child by the prepare handler.
struct ForkInProgress {
  bool engaged = false;   // prepare ran on an active pager
  int member = -1;        // index of the child's member, or -errno
  uint64_t ticket = 0;    // with which the child adopts it
  int lun = -1;           // the child's number for its LUN, or -errno
  int refusal = 0;        // -errno: the child cannot be served
  int64_t charged = 0;    // pages that the child is charged for, as it inherits them
  CheckedFork checked{};  // reserved for the child when the fork was checked
  bool gate = false;      // there is no room to copy all these pages
  ForkDescriptors descriptors;
};

// of_libc: in a child of libc's fork(). here: an address on the program's stack.
void fork_enter_child(PagerState& state, const ForkInProgress& fork, bool of_libc,
                      const void* here);

// Lets children inherit the regions, or not (MADV_DONTFORK). in_child: a hole means that a raw call
// of another thread of the parent (map_events.h) came before the kernel copied the maps; ends the
// process.
void set_inheritable(PagerState& state, bool yes, bool in_child = false);

}  // namespace lunar
