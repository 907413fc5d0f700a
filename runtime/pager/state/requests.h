// SPDX-License-Identifier: Apache-2.0
// What any thread asks of the service threads: each call leaves a word for them and wakes them.
// They are above: nothing here knows their code.
#pragma once
#include <cstddef>
#include <cstdint>

#include "pager/state/state.h"
#include "sys/uffd.h"

namespace lunar {

// Requests work of the housekeeping thread (bits in state.h). Any thread; never waits.
void housekeeping_wake(PagerState& state, uint32_t what);
// DRAM is short: wakes the evictor. Cheap when it is awake.
void evictor_wake(PagerState& state);
// For program threads that are short of something: when it returns, what dead members held was
// returned (or 200 ms have passed).
void wait_for_sweep(PagerState& state);
// Called by service threads when DRAM or LUN space was freed: handlers with parked faults try
// again. One load if there are none. `sure`: even if no DRAM is free (because LUN space was freed).
void hand_over_room(PagerState& state, bool sure);

// Charges slots to the own LUN, whose file may have to grow, or registers a range (`address`) with
// the userfaultfd: done by the housekeeping thread, in whose descriptor table their numbers are
// still these. Waits. 0 or -errno.
[[nodiscard]] int ask_table_request(PagerState& state, uint64_t slots, void* address, size_t bytes);
void answer_table_request(PagerState& state);  // by the housekeeping thread

// Wakes the threads that wait for pages there. If the program has closed this thread's descriptors,
// the housekeeping thread wakes them, for all pages.
inline void wake_waiters(PagerState& state, void* address, size_t bytes) {
  if (sys::uffd_wake(state.uffd, address, bytes) < 0) housekeeping_wake(state, kHousekeepingWake);
}

}  // namespace lunar
