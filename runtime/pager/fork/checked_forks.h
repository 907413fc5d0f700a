// SPDX-License-Identifier: Apache-2.0
// Forks between their check, which reserves LUN space for all that the child will inherit, and their prepare handler:
// what is committed meanwhile is charged once more for each of them. Otherwise the child might find no space for it.
// Threading: any thread of the program; not on the fault path.
#pragma once
#include <cstdint>

namespace lunar {

struct PagerState;

// Before the check adds up what is committed. The result is for the call that ends it.
[[nodiscard]] uint64_t checked_forks_enter();
// Returns the bytes that were charged for this child since; they are the caller's now.
[[nodiscard]] int64_t checked_forks_leave(PagerState& state, uint64_t since);
// pre: the pages are counted as committed. False: there is no LUN space for the children; nothing is charged.
[[nodiscard]] bool checked_forks_charge(PagerState& state, uint64_t pages);
void checked_forks_enter_child();

}  // namespace lunar
