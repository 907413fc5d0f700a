// SPDX-License-Identifier: Apache-2.0
// A forked child: makes what it has from its parent its own. Page states are those of the fork,
// busy pages in their state before; userfaultfd, threads, frames and LUN are its own.
// Threading: the child's only thread. libc's and jemalloc's locks may be held by threads that are
// gone: allocates nothing from the host.
#pragma once
#include "pager/fork/checked_forks.h"
#include "pager/state/descriptors.h"

namespace lunar {

// What the prepare handler has made for the child.
struct ForkInHand {
  bool engaged = false;  // prepare ran on an active pager
  int member = -1;
  uint64_t ticket = 0;  // for the member
  int lun = -1;         // the child's number for its LUN
  int refusal = 0;
  int64_t charged = 0;    // to the child, for what it inherits
  CheckedFork checked{};  // reserved for the child when the fork was checked
  bool gate = false;      // there is no room to copy all of it
  ForkDescriptors descriptors;
};

void fork_enter_child(PagerState& state, const ForkInHand& fork, bool of_libc, const void* here);

// in_child: a hole means that a raw call (map_events.h) of another thread came before the kernel's
// copy of the maps.
void set_inheritable(PagerState& state, bool yes, bool in_child = false);

}  // namespace lunar
