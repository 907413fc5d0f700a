// SPDX-License-Identifier: Apache-2.0
// Slots that are given up while living children may still read them: kept until the children of
// that fork, and those handed up in their place, have ended.
// Threading: slot_release on the fault path too; short spin locks.
#pragma once
#include <cstdint>

#include "pager/page/page_word.h"

namespace lunar {

struct PagerState;

// Frees a slot, if it is one: at once, or when the children that may read it have ended. Slots of
// ancestors' LUNs belong to the ancestors. Pre: no word names it any more (a fork may copy the word
// after the slot was freed), or no fork can come in between (evictor, MutatorScope).
void slot_release(PagerState& state, unsigned lun, Slot slot);
void deferred_slots_release(PagerState& state);  // by the housekeeping thread
uint64_t deferred_slot_count();
[[nodiscard]] int deferred_slots_prepare(PagerState& state);  // before a fork
uint64_t deferred_slots_bytes(uint64_t slots);  // what it maps, once, for a LUN of that many slots
void deferred_slots_forget();                   // in the child

// Before a fork, under its lock: reserves slots for what the child can reach, which stays on our
// LUN while we write new copies to other slots. 0 or -errno.
[[nodiscard]] int reservation_make(PagerState& state, uint32_t epoch);
void reservations_release(PagerState& state);  // of children that have ended
void reservations_forget();                    // in the child

}  // namespace lunar
