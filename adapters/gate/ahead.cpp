// SPDX-License-Identifier: Apache-2.0
// See ahead.h.
#include "ahead.h"

#include <sys/epoll.h>

#include "eviction.h"
#include "expiry.h"
#include "gate_inside.h"
#include "server_fields.h"
#include "sys/file.h"
#include "sys/log.h"

namespace lunar::redis {
namespace {

struct Ahead {
  int fd = -1;                   // -1: not started
  const int* blocked = nullptr;  // not 0: the server handles events inside a command, so no turns
  // the server's lock, which threads of modules may take while the server waits
  size_t (*modules)() = nullptr;
  int (*try_lock)() = nullptr;
  void (*unlock)() = nullptr;
  bool wanted = false;  // a turn: there is work, or pages came in
  uint64_t not_before = 0, looked = 0;
  Share share;  // counts requests in progress, which belong to no client's user
  AheadCounters counters;
};

constinit Ahead g_ahead;
constexpr uint64_t kRehashNs = 2'000'000;

bool turn_due(uint64_t now) {
  return ahead_due(now) || now >= g_ahead.looked + kLookNs || eviction_near();
}

void restore_settings() {
  expiry_open();
  gate().rehash.open_cron();
}

// The last event of a round: the commands have run, and this thread has the server's lock.
void turn(void*, int, void*, int) {
  Ahead& a = g_ahead;
  if (*a.blocked == 0) {
    (void)expiry_shut();
    gate().rehash.shut_cron();
  }
  if (ahead_works()) gate().rehash.pause_again(gate().layout);
  const uint64_t now = sys::now_ns();
  if (!turn_due(now)) return;
  a.looked = now;
  a.wanted = false;
  if (*a.blocked != 0 || counters().evictions.get() == 0) return;
  const bool more = expiry_turn(now);
  const uint64_t end = sys::now_ns();
  a.not_before = end + 2 * (end - now);
  a.wanted = eviction_turn(end) || more;
  Gate& g = gate();
  g.rehash.look(g.layout, ahead_works(), &g.fetcher);
  g.rehash.shut_cron();                 // for a move that has just begun
  if (g.rehash.moves() && !a.wanted) {  // also when no client sends anything
    a.wanted = true;
    if (a.not_before < end + kRehashNs) a.not_before = end + kRehashNs;
  }
}

}  // namespace

void ahead_start() {
  Ahead& a = g_ahead;
  if (a.fd >= 0) return;
  using Handler = void (*)(void*, int, void*, int);
  int (*create)(void*, int, int, Handler, void*) = nullptr;
  if (!find_export("aeCreateFileEvent", &create) ||
      !find_export("ProcessingEventsWhileBlocked", &a.blocked) ||
      !find_export("moduleCount", &a.modules) || !find_export("moduleTryAcquireGIL", &a.try_lock) ||
      !find_export("moduleReleaseGIL", &a.unlock))
    return;
  const bool expires = expiry_start(), evicts = eviction_start();
  if (!expires && !evicts) return;
  const int fd = sys::make_eventfd();
  if (fd < 0) return;
  if (create(gate().layout.event_loop(), fd, 1, turn, nullptr) != 0) return (void)gate().close(fd);
  a.fd = fd;
}

bool ahead_works() {
  return g_ahead.fd >= 0 && *g_ahead.blocked == 0 && gate().watching() &&
         counters().evictions.get() != 0;
}

bool ahead_due(uint64_t now) {
  return g_ahead.fd >= 0 && g_ahead.wanted && now >= g_ahead.not_before;
}

int ahead_sleep(int timeout_ms, uint64_t now) {
  const Ahead& a = g_ahead;
  if (a.fd < 0 || !a.wanted) return timeout_ms;
  const uint64_t left = a.not_before > now ? (a.not_before - now + 999999) / 1000000 : 0;
  return timeout_ms < 0 || static_cast<uint64_t>(timeout_ms) > left ? static_cast<int>(left)
                                                                    : timeout_ms;
}

int ahead_add_event(epoll_event* events, int n, int max) {
  const Ahead& a = g_ahead;
  if (a.fd < 0 || n >= max) return n;
  const uint64_t now = sys::now_ns();
  const RehashAhead& rehash = gate().rehash;
  if (!turn_due(now) && !expiry_works() && !rehash.shuts_cron() && !rehash.lifted()) return n;
  events[n] = epoll_event{};
  events[n].events = EPOLLIN;
  events[n].data.fd = a.fd;
  return n + 1;
}

void ahead_before_wait() {
  const Ahead& a = g_ahead;
  RehashAhead& rehash = gate().rehash;
  if (a.fd < 0 || (!expiry_is_shut() && !rehash.cron_is_shut() && !rehash.to_lift())) return;
  const bool given = *a.blocked == 0 && a.modules() != 0;
  if (given && a.try_lock() != 0)
    return;  // a thread has the lock: nothing changes until the next round
  restore_settings();
  rehash.lift(gate().layout);
  if (given) a.unlock();
}

// Reads of files may come from within a command, or from the server's cron; reads from clients do
// not.
void ahead_of_commands(int fd) {
  const Gate& g = gate();
  const bool shut = expiry_is_shut() || g.rehash.cron_is_shut();
  if (!shut && !eviction_near()) return;
  const bool client = g.layout.client_of(fd) != nullptr;
  if (shut && (client || g.layout.master_of(fd) != nullptr)) restore_settings();
  if (client && eviction_near() && *g_ahead.blocked == 0) eviction_offer();
}

AheadCounters& ahead_counters() { return g_ahead.counters; }

bool ahead_fetch(AheadFetch* fetch) {
  if (!gate().fetcher.submit(-1, 0, &g_ahead.share, fetch->missing, fetch)) return false;
  return fetch->under_way = true;
}

void ahead_fetched(AheadFetch* fetch) {
  fetch->under_way = false;
  g_ahead.wanted = true;
}

}  // namespace lunar::redis
