// SPDX-License-Identifier: Apache-2.0
// Forks between their check, which reserves LUN space for all that the child will inherit, and
// their prepare handler: what is committed meanwhile is charged once more for each of them.
// Otherwise the child might find no space for it. Threading: any thread of the program; not on the
// fault path.
#pragma once
#include <cstdint>

namespace lunar {

struct PagerState;

// See pager_fork_check, pager_fork_failed.
[[nodiscard]] int fork_check(PagerState& state);
void fork_failed(PagerState& state);
// In the prepare handler: what this thread's check has reserved is the caller's now.
struct CheckedFork {
  int64_t fixed, tables, lun_bytes;
};
CheckedFork fork_take_checked(PagerState& state);
void fork_has_member(int member, uint64_t ticket);  // from then on it has all that is the child's

// pre: the pages are counted as committed. False: there is no LUN space for the children; nothing
// is charged.
[[nodiscard]] bool checked_forks_charge(PagerState& state, uint64_t pages);
void checked_forks_enter_child();  // also of a process that is not active

}  // namespace lunar
