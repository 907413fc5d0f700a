// SPDX-License-Identifier: Apache-2.0
// fork: a child keeps its memory. Internal to pager/.
//
//   prepare   keep discards and moves out; the evictor comes to rest with no write in flight; FILE objects, which libc itself
//             will touch in the child before any handler runs, are made resident; a member is reserved in the account; the
//             regions are made inheritable (they are MADV_DONTFORK otherwise)
//   parent    all of that undone; slots given up from now on are held until the child is gone
//   child     page states as they stood at fork: what was in hand is what it was before; a userfaultfd, threads and frames of
//             its own; ancestors' LUNs are read only, a LUN of its own is opened at the first dirty eviction
#pragma once

namespace lunar {

[[nodiscard]] int fork_handlers_install();   // once; before the program's libraries install theirs (see adapters/preload)
void housekeeping_run();                           // the housekeeping thread's loop; never returns

}  // namespace lunar
