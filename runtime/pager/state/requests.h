// SPDX-License-Identifier: Apache-2.0
// Requests of any thread to the service threads: each call stores the request and wakes them. Their
// code is in higher folders.
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
// For program threads that are short of something: returns when the charges of dead members were
// given back, or after 200 ms.
void wait_for_sweep(PagerState& state);
// Called by service threads when DRAM or LUN space was freed: handlers with parked faults try
// again. Costs one load if there are none. `sure`: also when no DRAM is free, because LUN space was
// freed.
void hand_over_room(PagerState& state, bool sure);

// Makes the housekeeping thread charge slots to the own LUN, whose file may have to grow, or
// register a range (`address`) with the userfaultfd: the descriptors are still in its table. Waits.
// 0 or -errno.
[[nodiscard]] int ask_table_request(PagerState& state, uint64_t slots, void* address, size_t bytes);
void answer_table_request(PagerState& state);  // by the housekeeping thread

// Wakes the threads that wait for these pages. If the program has closed this thread's descriptors,
// the housekeeping thread wakes all threads that wait for any page.
inline void wake_waiters(PagerState& state, void* address, size_t bytes) {
  if (sys::uffd_wake(state.uffd, address, bytes) < 0) housekeeping_wake(state, kHousekeepingWake);
}

}  // namespace lunar
