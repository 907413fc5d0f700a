// SPDX-License-Identifier: Apache-2.0
// The rules of the preload library's code, the phase of its life, and the options.
//
// This code runs in other people's programs. Rules: it allocates only from the early heap and
// sys/arena; it uses no stdio and no exceptions; it holds no lock of its own where it could take a
// lock of the program; it leaves errno as the real calls do; it passes everything that is not
// Lunar's to the kernel or to jemalloc unchanged. It calls none of the functions that it exports,
// because the program may have overwritten them (tests/preload/own_names_test.py).
#pragma once
#include <atomic>

#include "base/host_guard.h"
#include "config/options.h"
#include "sys/kernel_call.h"

#define LUNAR_EXPORT extern "C" __attribute__((visibility("default")))

namespace lunar::preload {

using sys::with_errno;

enum class Phase : int {
  kEarly,    // before our constructor: memory comes from the early heap, jemalloc is not used yet
  kGuarded,  // the pager exists, the heap does not: plain jemalloc
  kReady,    // tiered
};
extern constinit std::atomic<Phase> g_phase;
extern constinit Options g_options;

inline bool ready() { return g_phase.load(std::memory_order_acquire) == Phase::kReady; }
// Whether allocations of this thread are tiered now.
inline bool serves_tiered() { return __builtin_expect(ready() && !HostGuard::active(), 1); }

}  // namespace lunar::preload
