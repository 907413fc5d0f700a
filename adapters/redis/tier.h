// SPDX-License-Identifier: Apache-2.0
// The tier that serves this server: the module's own, or that of the preload library if the server
// runs under `lunar run` (the module then uses its lunar_* calls and starts nothing). Both have the
// calls of lunar/lunar.h.
// Threading: started on the main thread; the calls are those of lunar.h.
#pragma once
#include "base/error.h"
#include "config/options.h"
#include "gate/gate.h"
#include "lunar/lunar.h"

namespace lunar::redis {

enum class TierOwner { kNone, kModule, kPreload };

struct Tier {
  TierOwner owner = TierOwner::kNone;
  int (*get_stats)(lunar_stats*) = nullptr;
  int (*set_dram)(uint64_t) = nullptr;
  int (*advise)(const void*, size_t, lunar_advice) = nullptr;
  int (*prefetch)(const lunar_range*, size_t) = nullptr;
  int (*pin)(const void*, size_t) = nullptr;
  int (*unpin)(const void*, size_t) = nullptr;
  int (*is_tiered)(const void*) = nullptr;
  // makes the allocator give back its free pages; nullptr: an older preload library
  void (*purge)() = nullptr;
  const GateCalls* gate = nullptr;  // nullptr: no gate, or one of another version
  bool started() const { return owner != TierOwner::kNone; }
};
const Tier& tier();
lunar_stats tier_stats();

// Whether `lunar run` serves this process.
bool tier_preloaded();
// Uses the preload's tier. pre: tier_preloaded.
void tier_adopt();
// Starts the module's own tier: pager, threads, heap, redirections. 0 or -errno with *why; if it
// fails, nothing is redirected.
[[nodiscard]] int tier_start(const Options& options, ErrorText* why);

}  // namespace lunar::redis
