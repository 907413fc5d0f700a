// SPDX-License-Identifier: Apache-2.0
// See space.h.
#include "space.h"

#include "base/units.h"
#include "heap/heap.h"
#include "module_settings.h"
#include "tier.h"

namespace lunar::redis {
namespace {

constexpr uint64_t kBlur = 1 * kMiB;  // error of the figures below, which are not of one moment

void ask_server(Space* space) {
  ServerInfo* info = g_api.GetServerInfo(nullptr, "memory");
  if (info == nullptr) return;
  int error = 0;
  space->used = g_api.ServerInfoGetFieldUnsigned(info, "used_memory", &error);
  const uint64_t not_counted =
      g_api.ServerInfoGetFieldUnsigned(info, "mem_not_counted_for_evict", &error);
  space->counted = space->used > not_counted ? space->used - not_counted : 0;
  space->clients = g_api.ServerInfoGetFieldUnsigned(info, "mem_clients_normal", &error);
  space->streams = g_api.ServerInfoGetFieldUnsigned(info, "mem_clients_slaves", &error);
  g_api.FreeServerInfo(nullptr, info);
  info = g_api.GetServerInfo(nullptr, "clients");
  if (info == nullptr) return;
  space->connections = g_api.ServerInfoGetFieldUnsigned(info, "connected_clients", &error);
  g_api.FreeServerInfo(nullptr, info);
}

}  // namespace

Space space_now(bool server) {
  Space space;
  if (!tier().started()) return space;
  const lunar_stats stats = tier_stats();
  space.committed = stats.committed_bytes;
  space.free = stats.lun_free_bytes;
  space.forked = stats.lun_forked_bytes;
  space.capacity = space.committed + space.free + space.forked;
  if (space.forked < kBlur) space.forked = 0;
  if (space.capacity + kBlur > stats.lun_capacity_bytes) space.capacity = stats.lun_capacity_bytes;
  const bool forks = settings().forks;
  space.end = forks ? space.capacity / 2 : space.capacity;
  space.limit = space.end / 8 * 7;
  const uint64_t margin = space.margin(), reach = space.committed + space.free;
  space.edge = space.end - margin / 2;
  if (space.forked != 0 && reach < space.end) {
    space.end = reach;
    space.edge = reach > margin / 2 ? reach - margin / 2 : 0;
    space.limit = reach > margin ? reach - margin : 0;
  }
  if (server) ask_server(&space);
  return space;
}

uint64_t space_committed_now() {
  return tier().owner == TierOwner::kModule ? heap_hook_bytes().committed
                                            : tier_stats().committed_bytes;
}

void space_purge() {
  if (tier().purge != nullptr) tier().purge();
}

}  // namespace lunar::redis
