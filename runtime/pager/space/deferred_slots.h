// SPDX-License-Identifier: Apache-2.0
// Slots that are given up while living children may still read them. They are kept until the
// children of that fork, and the descendants handed up in their place, have ended. Threading:
// slot_release also on the fault path; short spin locks.
#pragma once
#include <cstdint>

#include "pager/page/page_word.h"

namespace lunar {

struct PagerState;

// Frees a slot of the own LUN, now or when the children that may read it have ended. Ignores
// kNoSlot, and slots of ancestors' LUNs, which belong to the ancestors. Pre: no word names the slot
// any more (a fork might copy the word after the slot was freed), or no fork can come in between
// (evictor, MutatorScope).
void slot_release(PagerState& state, unsigned lun, Slot slot);
void deferred_slots_release(PagerState& state);  // by the housekeeping thread
uint64_t deferred_slot_count();
[[nodiscard]] int deferred_slots_prepare(PagerState& state);  // before a fork
// The memory that deferred_slots_prepare maps for a LUN of so many slots.
uint64_t deferred_slots_bytes(uint64_t slots);
void deferred_slots_forget();  // in the child

// Before a fork, under its lock: charges slots for the pages that the child can reach. Their
// content stays on our LUN while new content of ours goes to other slots. 0 or -errno.
[[nodiscard]] int reservation_make(PagerState& state, uint32_t epoch);
void reservations_release(PagerState& state);  // of children that have ended
void reservations_forget();                    // in the child

}  // namespace lunar
