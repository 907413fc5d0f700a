// SPDX-License-Identifier: Apache-2.0
// See memory_limit.h.
#include "memory_limit.h"

#include <bit>
#include <cstring>

#include "base/format.h"
#include "base/units.h"
#include "compaction.h"
#include "last_resort.h"
#include "module_settings.h"
#include "rates.h"
#include "script_guard.h"
#include "server_config.h"
#include "server_cron.h"
#include "server_limits.h"
#include "slow_replicas.h"
#include "space.h"
#include "sys/thread.h"
#include "tier.h"

namespace lunar::redis {
namespace {

constexpr unsigned kStepsOfMargin = 32;  // a step: committed bytes between two checks
constexpr uint64_t kStepLeast = 64 * kKiB;
constexpr uint64_t kBulkLeast = 1 * kMiB;   // the server accepts no less
constexpr uint64_t kPerClient = 64 * kKiB;  // an ordinary connection may have this in any case
constexpr int64_t kTellAgainNs = 60000000000;
// under `lunar run` committed bytes cost a call: checked once in so many commands
constexpr unsigned kCommandsBetween = 16;

enum class State : uint8_t { kOk, kLow, kHeld, kFull };
const char* const kStateNames[] = {"ok", "low", "held", "full"};

Context* g_context = nullptr;  // for the filter, which is given none
bool g_following = false, g_scheduled = false;
uint64_t g_look_at = 0;      // committed bytes at which the filter checks next
uint64_t g_purged_at = 0;    // the fewest committed bytes since the last purge
uint64_t g_used_then = 0;    // the most used bytes since then
bool g_nearly_full = false;  // the next allocations may find no room
State g_state = State::kOk;
bool g_capped = false;  // logged: the user's maxmemory is above the ceiling

uint64_t ceiling_of(const Space& space) {
  return (settings().forks ? space.capacity / 2 : space.capacity) / 8 * 7;
}

uint64_t step_of(const Space& space) {
  const uint64_t step = (space.end - space.limit) / kStepsOfMargin;
  return step < kStepLeast ? kStepLeast : step;
}

// maxmemory by the user's setting and the size of the LUN alone.
uint64_t base_of(const Space& space) {
  const uint64_t own = limit_own(Limit::kData), ceiling = ceiling_of(space);
  return own != 0 && own < ceiling ? own : ceiling;
}

uint64_t data_limit(const Space& space, uint64_t base) {
  const uint64_t holds = limit_holds(Limit::kData) != 0 ? limit_holds(Limit::kData) : base,
                 step = step_of(space);
  uint64_t wanted = holds;
  if (space.committed <= space.limit) {
    wanted = space.counted + (space.limit - space.committed);
    if (wanted > holds && wanted < holds + step) wanted = holds;
  } else if (space.committed > space.edge) {
    uint64_t excess = space.committed - space.edge + space.margin() / 8;
    wanted = space.counted > excess + kMiB ? space.counted - excess : kMiB;
    if (wanted > holds) wanted = holds;
  }
  // There are always some holes: up to half of the space between limit and edge is left to them.
  return wanted + space.margin() / 4 > base ? base : wanted;
}

// Small differences are ignored, because buffers come and go with every command.
bool worth_it(uint64_t before, uint64_t after) {
  return before == 0 || after < before / 8 * 7 || after > before / 8 * 9;
}

void follow_clients(Context* context, const Space& space) {
  if (!limit_known(Limit::kClients)) return;
  const uint64_t own = limit_own(Limit::kClients),
                 data = space.committed > space.clients ? space.committed - space.clients : 0;
  uint64_t wanted = space.edge > data ? space.edge - data : 0;
  const uint64_t least = space.margin() / 4 + kPerClient * space.connections;
  if (wanted < least) wanted = least;
  if (own != 0 && own < wanted) wanted = own;
  if (worth_it(limit_holds(Limit::kClients), wanted))
    (void)limit_set(context, Limit::kClients, wanted);
}

// The server allocates a value when it has read the length, and copies it when it grows. So old and
// new value exist at once, for two clients.
void follow_bulk(Context* context, const Space& space) {
  if (!limit_known(Limit::kBulk)) return;
  uint64_t wanted = space.capacity / 16 < space.free / 4 ? space.capacity / 16 : space.free / 4;
  wanted = wanted < kBulkLeast ? kBulkLeast : std::bit_floor(wanted);
  if (wanted > limit_own(Limit::kBulk)) wanted = limit_own(Limit::kBulk);
  (void)limit_set(context, Limit::kBulk, wanted);
}

State state_of(const Space& space, uint64_t wanted, uint64_t base) {
  if (space.committed > space.edge) return State::kFull;
  if (wanted < base && space.committed > space.limit / 8 * 7) return State::kHeld;
  // Holes and buffers have taken half of their space before maxmemory must be lowered.
  const uint64_t uncounted = space.committed > space.counted ? space.committed - space.counted : 0,
                 most = ceiling_of(space);
  return space.counted + uncounted > space.limit / 8 * 7 &&
                 uncounted > (most - base) + space.margin() / 4
             ? State::kLow
             : State::kOk;
}

// Logs a line when the state gets worse, and when space is no longer short. A better state counts
// only a minute after the last change.
void tell(Context* context, const Space& space, State state, uint64_t wanted) {
  static State told = State::kOk;
  static int64_t told_ns = 0;
  g_state = state;
  const int64_t now = sys::now_ns();
  if (state == told || (state < told && now < told_ns + kTellAgainNs)) return;
  const bool worse = state > told;
  told = state;
  told_ns = now;
  if (state == State::kOk)
    g_api.Log(context, "notice", "LUN space is no longer short: maxmemory is %s",
              format_size(wanted).text);
  if (!worse) return;
  const char* what = state == State::kLow ? "maxmemory will soon be lowered"
                     : state == State::kHeld
                         ? "maxmemory is lowered"
                         : "maxmemory is lowered further, writes are refused or keys evicted";
  g_api.Log(context, "warning",
            "LUN space runs short: %s committed for %s of data and buffers (the rest are holes), "
            "at %s %s; %s (%s now); give a larger size",
            format_size(space.committed).text, format_size(space.counted).text,
            format_size(space.end).text,
            settings().forks ? "a fork would be refused" : "an allocation would fail", what,
            format_size(wanted).text);
}

Space measure() {
  Space space = space_now(true);
  const uint64_t step = step_of(space);
  if (space.committed < g_purged_at) g_purged_at = space.committed;
  if (space.used > g_used_then) g_used_then = space.used;
  const bool grown = space.committed >= g_purged_at + step,
             freed = space.used + step <= g_used_then;
  if (space.committed <= space.limit / 16 * 15 || !(grown || freed)) return space;
  space_purge();
  space = space_now(true);
  g_purged_at = space.committed;
  g_used_then = space.used;
  return space;
}

void tell_capped(Context* context, const Space& space, bool at_load) {
  const uint64_t own = limit_own(Limit::kData), ceiling = ceiling_of(space);
  const char* half = settings().forks
                         ? "half of a LUN of %s, so that a forked child fits, less an eighth"
                         : "a LUN of %s less an eighth";
  char why[128];
  format_to(why, sizeof(why), half, format_size(space.capacity).text);
  if (own == 0)
    g_api.Log(context, at_load ? "notice" : "warning",
              "maxmemory was 0 (no limit) and is %s now: %s", format_size(ceiling).text, why);
  else
    g_api.Log(context, "warning",
              "maxmemory %s is more than the LUN can take and is %s now: %s; give a larger size to "
              "raise it",
              format_size(own).text, format_size(ceiling).text, why);
}

void follow(Context* context, bool at_load) {
  if (g_following) return;
  g_following = true;
  limits_poll(context);
  const bool was_refused = last_resort_open();
  last_resort_close();
  const Space space = measure();
  g_nearly_full = space.capacity != 0 && (was_refused || space.free < space.margin() / 4);
  if (space.capacity != 0) {
    const uint64_t own = limit_own(Limit::kData), base = base_of(space),
                   wanted = data_limit(space, base);
    const bool capped = own == 0 || own > base;
    if (wanted != limit_holds(Limit::kData) && !limit_set(context, Limit::kData, wanted) && at_load)
      g_api.Log(context, "warning",
                "maxmemory cannot be set to %s: if data outgrows that, allocations may fail and "
                "the server stop; set it",
                format_size(base).text);
    else if (capped && !g_capped)
      tell_capped(context, space, at_load);
    g_capped = capped;
    follow_clients(context, space);
    follow_bulk(context, space);
    tell(context, space, state_of(space, wanted, base), wanted);
    g_look_at = space.committed + step_of(space);
  }
  g_following = false;
}

void on_command(CommandFilterContext* command) {
  rates_on_command();
  if (tier().owner != TierOwner::kModule) {
    static unsigned commands = 0;
    if (++commands % kCommandsBetween != 0) return;
  }
  if (__builtin_expect(space_committed_now() >= g_look_at || last_resort_open(), 0))
    follow(g_context, false);
  if (__builtin_expect(g_nearly_full, 0)) script_guard(g_context, command);
}

// Prevents that data is evicted for the stream of slow replicas: the server does not count it for
// maxmemory, but it lies in the LUN. Not called inside a command, which may be such a replica's.
void end_slow_replicas(Context* context) {
  if (g_state < State::kHeld) return;
  const Space space = space_now(true);
  if (space.streams <= space.margin() || space.committed <= space.limit / 16 * 15) return;
  char policy[32];
  if (!server_config_text(context, "maxmemory-policy", policy, sizeof(policy)) ||
      strcmp(policy, "noeviction") == 0)
    return;
  slow_replicas_end(context, space);
}

void on_cron(Context* context) {
  end_slow_replicas(context);
  follow(context, false);
  static bool packing = false;  // continues until there are few holes
  packing |= g_state != State::kOk;
  if (!packing) return;
  const Space space = space_now(true);
  packing = space.holes() > space.margin() / 2;
  constexpr unsigned kSlices[] = {1, 1, 2, 4};
  if (!packing || space.forked != 0) return;
  if (compaction_run(context, space.holes(), kSlices[static_cast<unsigned>(g_state)]))
    space_purge();
}

void on_timer(Context* context, void*) {
  g_scheduled = false;
  follow(context, false);
}

void user_changed(Context* context) {
  g_capped = false;
  memory_limit_recheck(context);
}

}  // namespace

uint64_t memory_limit_ceiling() { return ceiling_of(space_now(false)); }

const char* memory_limit_state() { return kStateNames[static_cast<unsigned>(g_state)]; }

void memory_limit_start(Context* context) {
  limits_start(context, user_changed);
  follow(context, true);
  g_context = g_api.GetDetachedThreadSafeContext(context);
  constexpr int kNotOwnCalls = 1 << 0;
  const bool filter = g_context != nullptr &&
                      g_api.RegisterCommandFilter(context, on_command, kNotOwnCalls) != nullptr;
  if (!server_cron_add(context, on_cron) || !filter)
    g_api.Log(context, "warning",
              "this server lets modules look at %s only: maxmemory may follow the LUN too late",
              filter ? "commands" : "its cron");
  script_guard_start(context);
}

void memory_limit_recheck(Context* context) {
  if (!tier().started() || g_scheduled) return;
  // By a timer: this may be inside the CONFIG SET that changed the limit.
  g_scheduled = true;
  (void)g_api.CreateTimer(context, 1, on_timer, nullptr);
}

}  // namespace lunar::redis
