// SPDX-License-Identifier: Apache-2.0
// Figures over a window of time: what INFO says of the last second, ten seconds and minute. The server's cron takes a
// sample of the counters each second, and one of the hold times each ten.
//
// A command is warm when it met no read: at the gate, when all its keys' memory was in DRAM as it came; where the gate
// has looked none up (it is open, or nothing was ever evicted), when the main thread waited for no page from the
// command before to the one after.
//
// Threading: the server's main thread. Allocates nothing.
#pragma once
#include <cstdint>

#include "module_abi.h"

namespace lunar::redis {

void rates_start(Context* context);
void rates_on_command();  // before each

struct Rates {
  double cold_faults[3] = {}, main_reads[3] = {}, gate_reads[3] = {};  // a second, over the last 1, 10 and 60 s
  double warm = 1;                                                     // of the commands of the last minute
  double hold_p99_ms = 0;                                              // of the holds of the last minute; 0: none
};
Rates rates_now();

}  // namespace lunar::redis
