// SPDX-License-Identifier: Apache-2.0
// See tier.h.
#include "tier.h"

#include <dlfcn.h>

#include "heap/heap.h"
#include "heap/start.h"
#include "pager/pager.h"
#include "server_heap.h"

namespace lunar::redis {
namespace {

constinit Tier g_tier;
constinit GateCalls g_own_gate;

template <class F>
bool look_up(F& slot, const char* name) {
  slot = reinterpret_cast<F>(dlsym(RTLD_DEFAULT, name));
  return slot != nullptr;
}

// False: a call is missing, so the library is of another version and cannot be used.
bool look_up_all(Tier* found) {
  return look_up(found->get_stats, "lunar_get_stats") &&
         look_up(found->set_dram, "lunar_set_dram") && look_up(found->advise, "lunar_advise") &&
         look_up(found->prefetch, "lunar_prefetch") && look_up(found->pin, "lunar_pin") &&
         look_up(found->unpin, "lunar_unpin") && look_up(found->is_tiered, "lunar_is_tiered");
}

bool serves(const Tier& found) {
  lunar_stats stats{};
  stats.struct_size = sizeof(stats);
  return found.get_stats(&stats) == 0;
}

}  // namespace

const Tier& tier() { return g_tier; }

lunar_stats tier_stats() {
  lunar_stats stats{};
  stats.struct_size = sizeof(stats);
  if (g_tier.started()) (void)g_tier.get_stats(&stats);
  return stats;
}

bool tier_preloaded() {
  Tier found;
  return look_up_all(&found) && serves(found);
}

void tier_adopt() {
  (void)look_up_all(&g_tier);
  (void)look_up(g_tier.purge, "lunar_heap_purge");
  const GateCalls* (*gate)() = nullptr;
  if (look_up(gate, kGateCallsSymbol)) g_tier.gate = gate();
  if (g_tier.gate != nullptr && !g_tier.gate->same_version()) g_tier.gate = nullptr;
  g_tier.owner = TierOwner::kPreload;
}

int tier_start(const Options& options, ErrorText* why) {
  int rc = server_heap_check(why);
  if (rc == 0) rc = start_tier(options, why);
  if (rc < 0) return rc;
  // Activates now, and not at the first few MiB: a LUN that cannot be opened must be reported
  // before the server has data.
  rc = pager_activate(why);
  if (rc == 0) rc = server_heap_start(why);
  if (rc < 0) {
    (void)pager_destroy();
    return rc;
  }
  g_tier = {TierOwner::kModule, lunar_get_stats, lunar_set_dram,  lunar_advise, lunar_prefetch,
            lunar_pin,          lunar_unpin,     lunar_is_tiered, heap_purge,   &g_own_gate};
  return 0;
}

}  // namespace lunar::redis
