// SPDX-License-Identifier: Apache-2.0
// fork: a child keeps its memory. Internal to pager/.
//
//   prepare   excludes discards and moves; waits until the evictor rests with no write in flight; makes FILE objects
//             resident, because libc itself touches them in the child before any handler runs; reserves a member in the
//             account; makes the regions inheritable (they are MADV_DONTFORK otherwise)
//   parent    undoes all of that; defers the release of slots until the child is gone
//   child     page states as of the fork, busy pages in their state before; its own userfaultfd, threads and frames;
//             only reads ancestors' LUNs, and opens a LUN of its own at the first dirty eviction
#pragma once

namespace lunar {

struct PagerState;

// called once, before the program's libraries install theirs (see adapters/preload)
[[nodiscard]] int fork_handlers_install();
void housekeeping_run(PagerState& state);  // the housekeeping thread's loop; never returns
// the loop of the thread that keeps the live counters; never returns. pre: the file is open
void stats_file_run(void*);

}  // namespace lunar
