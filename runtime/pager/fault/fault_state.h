// SPDX-License-Identifier: Apache-2.0
// The state that the fault handlers share. One per process.
#pragma once
#include <atomic>
#include <cstdint>

#include "pager/fault/watched.h"
#include "pager/state/state.h"
#include "sys/phases.h"

namespace lunar {

struct Handler;

struct FaultState {
  Handler* handlers[kHandlersMax] = {};
  // futex: handlers that are not the first of their node rest on it
  std::atomic<uint32_t> helpers_called{0};
  std::atomic<uint32_t> helpers_resting{0};
  WatchedThread watched;
  // inside while a handler reads messages and judges the events among them
  struct alignas(64) Reading : sys::Section {
  } readings[kHandlersMax];
};
inline constinit FaultState g_fault;

}  // namespace lunar
