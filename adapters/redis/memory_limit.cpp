// SPDX-License-Identifier: Apache-2.0
// See memory_limit.h.
#include "memory_limit.h"

#include "base/format.h"
#include "base/units.h"
#include "server_config.h"
#include "settings.h"
#include "tier.h"

namespace lunar::redis {
namespace {

bool g_scheduled = false;
uint64_t g_last_set = 0;   // what we set; another value below the ceiling is the user's
constexpr unsigned kCronLoopsBetween = 10;

bool write_maxmemory(Context* context, uint64_t bytes) {
  char digits[32];
  format_to(digits, sizeof(digits), "%llu", static_cast<unsigned long long>(bytes));
  Reply* reply = g_api.Call(context, "CONFIG", "ccc", "SET", "maxmemory", digits);
  if (reply == nullptr) return false;
  bool done = g_api.CallReplyType(reply) == kReplyString;
  g_api.FreeCallReply(reply);
  return done;
}

void enforce(Context* context, bool at_load) {
  uint64_t now = 0, ceiling = memory_limit_ceiling();
  if (ceiling == 0 || !server_config_number(context, "maxmemory", &now)) return;
  bool raise = now == g_last_set && now < ceiling;   // it was ours, and there is room for more now
  if (now != 0 && now <= ceiling && !raise) return;
  if (!write_maxmemory(context, ceiling)) {
    g_api.Log(context, "warning", "maxmemory cannot be set to %s: if data outgrows that, allocations may fail and the server stop; set it",
              format_size(ceiling).text);
    return;
  }
  g_last_set = ceiling;
  const char* half = settings().tier.forks ? "half of a LUN of %s, so that a forked child fits, less an eighth" : "a LUN of %s less an eighth";
  char why[128];
  format_to(why, sizeof(why), half, format_size(tier_stats().lun_capacity_bytes).text);
  if (now == 0)
    g_api.Log(context, at_load ? "notice" : "warning", "maxmemory was 0 (no limit) and is %s now: %s", format_size(ceiling).text, why);
  else if (raise)
    g_api.Log(context, "notice", "maxmemory is %s now: %s", format_size(ceiling).text, why);
  else
    g_api.Log(context, "warning", "maxmemory %s is more than the LUN can take and is %s now: %s; give a larger size to raise it",
              format_size(now).text, format_size(ceiling).text, why);
}

void on_timer(Context* context, void*) {
  g_scheduled = false;
  enforce(context, false);
}

void on_cron(Context* context, Event, uint64_t, void*) {
  static unsigned loops = 0;
  if (++loops % kCronLoopsBetween == 0) enforce(context, false);
}

}  // namespace

uint64_t memory_limit_ceiling() {
  uint64_t capacity = tier_stats().lun_capacity_bytes;
  if (settings().tier.forks) capacity /= 2;
  return capacity / 8 * 7;
}

void memory_limit_start(Context* context) {
  enforce(context, true);
  if (!server_config_watch(context, "maxmemory", memory_limit_recheck))
    (void)g_api.SubscribeToServerEvent(context, kEventCronLoop, on_cron);   // a server that does not tell: look now and then
}

void memory_limit_recheck(Context* context) {
  if (!tier().started() || g_scheduled) return;
  // Not inside the CONFIG SET that changed it.
  g_scheduled = true;
  (void)g_api.CreateTimer(context, 1, on_timer, nullptr);
}

}  // namespace lunar::redis
