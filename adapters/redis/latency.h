// SPDX-License-Identifier: Apache-2.0
// What cold data cost, in the server's own latency monitor (LATENCY LATEST|HISTORY|RESET|GRAPH), where it reaches
// latency-monitor-threshold:
//   lunar-fault   the server's main thread, and every client with it, waited so long for one page
//   lunar-stall   it waited so long for pages between two waits for events, all its faults together
//   lunar-hold    a client's command waited so long at the input gate; others went on
//
// The monitor keeps the worst of each second; the worst since the last time is handed over with each run of the
// server's cron. Threading: the server's main thread.
#pragma once
#include "module_abi.h"

namespace lunar::redis {

// Does nothing where the server has no monitor for modules, or does not tell its cron.
void latency_start(Context* context);

}  // namespace lunar::redis
