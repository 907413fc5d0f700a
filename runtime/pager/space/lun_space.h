// SPDX-License-Identifier: Apache-2.0
// LUN space, which is charged to the tree's account and then to the own LUN's slots.
// Threading: any thread; not on the fault path unless stated.
#pragma once
#include <cstdint>

#include "pager/page/page_word.h"

namespace lunar {

struct PagerState;
struct Region;

// 0; -ENOMEM; -EFBIG (logged). may_block false: for the fault path; also -EAGAIN.
[[nodiscard]] int space_charge(PagerState& state, uint64_t pages, bool may_block);
// Charges only the own LUN, which grows as needed. Any thread that may block. pre: the LUN is open.
[[nodiscard]] int slots_charge(PagerState& state, uint64_t slots);
void space_uncharge(PagerState& state, uint64_t pages);

// The limit on LUN space that this process meets if it cannot have `bytes` more.
enum class SpaceBound : uint8_t {
  kSize,    // the tree's --size, given or by default
  kPart,    // this process' part of a LUN that the processes of the tree divide
  kDevice,  // the space left on the device or its file system
};
SpaceBound space_bound(PagerState& state, uint64_t bytes);
// The end of a log line, as "give a larger --size".
const char* space_remedy(const PagerState& state, SpaceBound bound);

// Uncharges a page that was charged at its first touch (MAP_NORESERVE), if `was` was, and is empty
// from now on. Charged pages count as committed.
void uncharge_touched(PagerState& state, Region& region, PageWord was);

// Opens the own LUN: at activation, and in a forked child when it first needs to write. 0 or
// -errno. May block; not for handlers.
[[nodiscard]] int lun_open_own(PagerState& state);
void lun_close_own(PagerState& state);  // pre: nothing was written to it

}  // namespace lunar
