// SPDX-License-Identifier: Apache-2.0
// The input gate (gate/gate.h) under `lunar run -- redis-server`. As in the Redis module, it
// redirects calls of the main program. It does not interpose read() and close(), for which other
// programs would pay.
//
// The Redis module calls the functions below when it is loaded into such a server.
//
// Threading: started by the library's constructor, before the program has threads.
#include "server_gate.h"

#include "gate/gate.h"
#include "heap/heap.h"
#include "preload.h"
#include "sys/log.h"

namespace lunar::preload {
namespace {

constinit redis::GateCalls g_calls;

}  // namespace

void server_gate_start() {
  if (!redis::gate_fits_program()) return;
  ErrorText why;
  if (redis::gate_start(redis::gate_options(g_options), &why) < 0)
    log_warning("input gate stays open, cold keys wait one by one: %s", why.text);
}

}  // namespace lunar::preload

LUNAR_EXPORT const lunar::redis::GateCalls* lunar_gate_calls() noexcept {
  using lunar::redis::GateState;
  return lunar::redis::gate_state() == GateState::kOff ? nullptr : &lunar::preload::g_calls;
}

LUNAR_EXPORT void lunar_heap_purge() noexcept { lunar::heap_purge(); }
