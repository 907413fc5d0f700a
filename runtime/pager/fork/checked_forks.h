// SPDX-License-Identifier: Apache-2.0
// Forks between their check, which reserves LUN space for all memory that the child will inherit,
// and their prepare handler. Commits meanwhile are charged once more for each such fork. Otherwise
// the child might find no space for them. Threading: any thread of the program; not on the fault
// path.
#pragma once
#include <cstdint>

namespace lunar {

struct PagerState;

// See pager_fork_check, pager_fork_failed.
[[nodiscard]] int fork_check(PagerState& state);
void fork_failed(PagerState& state);
// In the prepare handler: returns what this thread's check has reserved, which is the caller's from
// now on.
struct CheckedFork {
  int64_t fixed, tables, lun_bytes;
};
CheckedFork fork_take_checked(PagerState& state);
// The member has the child's charges from now on.
void fork_has_member(int member, uint64_t ticket);

// Charges a commit for the children of such forks. pre: the pages are counted as committed. False:
// there is no LUN space for the children, and nothing is charged.
[[nodiscard]] bool checked_forks_charge(PagerState& state, uint64_t pages);
void checked_forks_enter_child();  // also if the parent is not active

}  // namespace lunar
