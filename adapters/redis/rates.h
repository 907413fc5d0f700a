// SPDX-License-Identifier: Apache-2.0
// Figures of INFO over the last second, ten seconds and minute. The server's cron samples the
// counters every second, and the hold times every ten seconds.
//
// A command is warm if it caused no read. For a command that the gate looked up, that means: the
// memory of all its keys was in DRAM when it arrived. If the gate looks up no keys (it is bypassed,
// or nothing was ever evicted), it means: the main thread waited for no page between the start of
// this command and that of the next.
//
// Threading: the server's main thread. Allocates nothing.
#pragma once
#include <cstdint>

#include "module_abi.h"

namespace lunar::redis {

void rates_start(Context* context);
void rates_on_command();  // before each command

struct Rates {
  // per second, over the last 1, 10 and 60 s
  double cold_faults[3] = {}, main_reads[3] = {}, gate_reads[3] = {};
  double warm = 1;         // share of the commands of the last minute
  double hold_p99_ms = 0;  // of the holds of the last minute; 0: no holds
};
Rates rates_now();

// 0 if `all` is 0.
inline double part_of(uint64_t some, uint64_t all) {
  return all == 0 ? 0 : static_cast<double>(some) / static_cast<double>(all);
}

}  // namespace lunar::redis
