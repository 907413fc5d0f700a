// SPDX-License-Identifier: Apache-2.0
// Reports waits for cold data to the server's own latency monitor (LATENCY
// LATEST|HISTORY|RESET|GRAPH), if they reach latency-monitor-threshold:
//   lunar-fault   the wait of the server's main thread, and of every client with it, for one page
//   lunar-stall   its waits for pages between two waits for events, all faults together
//   lunar-hold    the wait of a client's command at the input gate, while other clients go on
//
// The monitor keeps the longest of each second. Each run of the server's cron reports the longest
// since the run before. Threading: the server's main thread.
#pragma once
#include "module_abi.h"

namespace lunar::redis {

// Does nothing if the server has no monitor for modules, or no cron event.
void latency_start(Context* context);

}  // namespace lunar::redis
