// SPDX-License-Identifier: Apache-2.0
// Figures over a window of time: those of INFO for the last second, ten seconds and minute. The
// server's cron samples the counters every second, and the hold times every ten seconds.
//
// A command is warm if it caused no read: at the gate, if the memory of all its keys was in DRAM
// when it arrived; if the gate has looked up no keys (it is bypassed, or nothing was ever evicted),
// if the main thread waited for no page between the start of this command and that of the next.
//
// Threading: the server's main thread. Allocates nothing.
#pragma once
#include <cstdint>

#include "module_abi.h"

namespace lunar::redis {

void rates_start(Context* context);
void rates_on_command();  // before each command

struct Rates {
  // a second, over the last 1, 10 and 60 s
  double cold_faults[3] = {}, main_reads[3] = {}, gate_reads[3] = {};
  double warm = 1;         // of the commands of the last minute
  double hold_p99_ms = 0;  // of the holds of the last minute; 0: there were none
};
Rates rates_now();

}  // namespace lunar::redis
