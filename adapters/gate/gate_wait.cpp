// SPDX-License-Identifier: Apache-2.0
// The gate's work while the server waits for events: it fetches, and releases clients when their
// pages are in DRAM or their time is up. See gate.h, gate_inside.h.
#include <limits.h>
#include <sys/epoll.h>

#include "ahead.h"
#include "gate_inside.h"
#include "replica_link.h"
#include "sys/file.h"

namespace lunar::redis {
namespace {

constinit uint64_t g_round = 0;

// Ends a wait, because the pages are in DRAM or the time is up (late): the server reads again, and
// the gate scans the input again.
void release(Connection* c, bool late) {
  c->late = late;
  const uint64_t held = c->state == Hold::kHeld ? sys::now_ns() - c->since_ns : 0;
  if (held > gate().longest_hold_ns) gate().longest_hold_ns = held;
  gate().connections.enter(c, Hold::kReady);
}

void unpark(Connection* c) {
  if (!c->parked && !c->taken_out) return;
  const int mask = gate().layout.event_mask(c->fd);
  if (mask != 0)
    (void)sys::epoll_set(gate().epoll, c->fd,
                         (mask & 1 ? EPOLLIN : 0u) | (mask & 2 ? EPOLLOUT : 0u), c->taken_out);
  c->parked = c->taken_out = false;
}

// The server does not see its events while it is held. A hang-up cannot be masked, so the
// descriptor is removed from epoll.
void park(Connection* c, bool hung_up) {
  const int mask = gate().layout.event_mask(c->fd);
  if (!hung_up)
    c->parked = sys::epoll_set(gate().epoll, c->fd, mask & 2 ? EPOLLOUT : 0u, false) == 0;
  else
    c->taken_out = sys::epoll_remove(gate().epoll, c->fd) == 0;
}

// Releases, in order, clients whose user is below its limit again; their input is looked up anew. A
// few more than there is room for may be released, and wait again.
void give_turns() {
  Gate& g = gate();
  if (g.fetcher.full()) return;
  const uint64_t each = kClientBytesMin / 4, most = user_bytes_max();
  unsigned lookups = g.connections.lookup_bytes() < lookups_bytes_max() ? UINT_MAX
                     : g.connections.leader() == nullptr                ? 1
                                                                        : 0;
  for (Share** at = &g.shares.waiting(); *at != nullptr;) {
    Share* share = *at;
    uint64_t bytes = share->bytes;
    unsigned requests = share->requests;
    for (Connection *c = share->waiting.head, *next;
         c != nullptr && bytes < most && requests < kUserRequestsMax; c = next) {
      next = c->next;
      if (c->cursor.far() && lookups == 0) continue;
      if (c->cursor.far()) --lookups;
      release(c, false);
      bytes += each;
      ++requests;
    }
    if (share->waiting.head != nullptr) {
      at = &share->next_waiting;
      continue;
    }
    *at = share->next_waiting;
    share->listed = false;
  }
}

// Wakes the fetchers, and starts the time of all holds since the last wait.
void begin_fetching(uint64_t now) {
  Gate& g = gate();
  g.fetcher.flush();
  const uint64_t deadline = now + uint64_t{g.options.hold_ms_max} * 1000000;
  for (Connection* c = g.connections.held().tail; c != nullptr && c->hold > g.holds_begun;
       c = c->previous) {
    if (c->until_ns == 0) c->until_ns = now + kLookupHolds * (deadline - now);
    if (c->deadline_ns == UINT64_MAX) c->deadline_ns = c->cursor.far() ? c->until_ns : deadline;
    if (c->deadline_ns < g.first_deadline_ns) g.first_deadline_ns = c->deadline_ns;
  }
  g.holds_begun = g.holds;
}

// Releases the clients of a list whose time is up, but only *lookups long lookups, because their
// faults stop all clients.
void release_due(ConnectionList& list, bool all, uint64_t now, unsigned* lookups) {
  Gate& g = gate();
  for (Connection *c = list.head, *next; c != nullptr; c = next) {
    next = c->next;
    const bool due = all || c->deadline_ns <= now, long_lookup = c->cursor.far() && !all;
    if (due && (!long_lookup || *lookups != 0)) {
      if (long_lookup) --*lookups;
      release(c, true);
    } else if (c->deadline_ns < g.first_deadline_ns) {
      g.first_deadline_ns = c->deadline_ns;
    }
  }
}

void release_late(uint64_t now) {
  Gate& g = gate();
  const bool all = !g.watching();
  for (Connection* c;
       (c = g.connections.partial().head) != nullptr && (all || c->deadline_ns <= now);)
    release(c, true);
  if (Connection* link = link_waiting(); link != nullptr && (all || link->deadline_ns <= now))
    release(link, true);
  if (!all && now < g.first_deadline_ns) return;
  g.first_deadline_ns = UINT64_MAX;
  unsigned lookups = 1;
  for (Share* share = g.shares.waiting(); share != nullptr; share = share->next_waiting)
    release_due(share->waiting, all, now, &lookups);
  release_due(g.connections.held(), all, now, &lookups);
}

bool server_wants(const Connection* c) { return (gate().layout.event_mask(c->fd) & 1) != 0; }

// The milliseconds that the server may sleep.
int time_to_sleep(int timeout_ms, uint64_t now) {
  Gate& g = gate();
  for (Connection* c = g.connections.ready().head; c != nullptr; c = c->next)
    if (server_wants(c)) return 0;
  uint64_t first = g.connections.held_now() != 0 ? g.first_deadline_ns : UINT64_MAX;
  auto sooner = [&](const Connection* c) {
    first = c != nullptr && c->deadline_ns < first ? c->deadline_ns : first;
  };
  sooner(g.connections.partial().head);
  sooner(link_waiting());
  if (first == UINT64_MAX) return timeout_ms;
  const uint64_t left = first > now ? (first - now + 999999) / 1000000 : 0;
  return timeout_ms < 0 || static_cast<uint64_t>(timeout_ms) > left ? static_cast<int>(left)
                                                                    : timeout_ms;
}

// Removes events that are not for the server. Returns the number of the others. *woken: pages came
// in.
int sift(epoll_event* events, int n, bool* woken) {
  Gate& g = gate();
  int left = 0;
  for (int i = 0; i < n; ++i) {
    epoll_event event = events[i];
    if (event.data.fd == g.fetcher.event_fd()) {
      sys::eventfd_clear(g.fetcher.event_fd());
      *woken = true;
      continue;
    }
    Connection* c = g.connections.find(event.data.fd);
    if (c != nullptr && c->state == Hold::kHeld &&
        (event.events & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0) {
      park(c, (event.events & (EPOLLHUP | EPOLLERR)) != 0);
      event.events &= ~static_cast<uint32_t>(EPOLLIN | EPOLLHUP | EPOLLERR);
      if (event.events == 0) continue;
    }
    events[left++] = event;
  }
  return left;
}

// Adds the connections whose bytes may go on, as readable.
int add_ready(epoll_event* events, int n, int max) {
  Gate& g = gate();
  if (g.connections.ready().head == nullptr) return n;
  ++g_round;
  for (int i = 0; i < n; ++i) {
    Connection* c = g.connections.find(events[i].data.fd);
    if (c == nullptr || c->state != Hold::kReady) continue;
    if (server_wants(c)) events[i].events |= EPOLLIN;
    c->seen = g_round;
  }
  for (Connection *c = g.connections.ready().head, *next; c != nullptr && n < max; c = next) {
    next = c->next;
    unpark(c);
    if (c->size() == 0) {  // taken by another thread
      g.connections.drop(c);
      continue;
    }
    if (c->seen == g_round || !server_wants(c)) continue;
    events[n] = epoll_event{};
    events[n].events = EPOLLIN;
    events[n++].data.fd = c->fd;
  }
  return n;
}

}  // namespace

void gate_take_what_is_done() {
  Gate& g = gate();
  for (Request* r = g.fetcher.take_done(); r != nullptr;) {
    Request* next = r->next;
    Connection* c = g.connections.find(r->fd);
    if (c != nullptr && c->hold == r->hold && (!c->link || link_request_done(c)) &&
        c->state == Hold::kHeld)
      release(c, false);
    if (r->ahead != nullptr) ahead_fetched(r->ahead);
    g.fetcher.recycle(r);
    r = next;
  }
}

int gate_wait(int epoll, epoll_event* events, int max, int timeout_ms) {
  Gate& g = gate();
  const uint64_t started = sys::now_ns();
  int left = timeout_ms;
  for (bool first = true;; first = false) {
    gate_take_what_is_done();
    give_turns();
    const uint64_t now = first ? started : sys::now_ns();
    begin_fetching(now);
    release_late(now);
    int sleep = ahead_sleep(time_to_sleep(left, now), now);
    if (sleep != 0 && g.fetcher.begin_sleep()) sleep = 0;
    ahead_before_wait();
    int n = g.epoll_wait(epoll, events, max, sleep);
    g.fetcher.end_sleep();
    if (n < 0) return n;
    bool woken = false;
    n = sift(events, n, &woken);
    gate_take_what_is_done();
    give_turns();
    n = add_ready(events, n, max);
    const uint64_t after = sys::now_ns();
    if (n != 0 || left == 0 || ahead_due(after)) return ahead_add_event(events, n, max);
    if (timeout_ms >= 0) {
      const auto passed = static_cast<int64_t>((after - started) / 1000000);
      if (passed >= timeout_ms) return ahead_add_event(events, 0, max);
      left = timeout_ms - static_cast<int>(passed);
    }
  }
}

// For a module's thread that has the server's lock: removes the event of the gate's descriptor.
int gate_wait_elsewhere(int epoll, epoll_event* events, int max, int timeout_ms) {
  Gate& g = gate();
  const int n = g.epoll_wait(epoll, events, max, timeout_ms);
  int left = 0;
  for (int i = 0; i < n; ++i)
    if (events[i].data.fd != g.fetcher.event_fd()) events[left++] = events[i];
  return n < 0 ? n : left;
}

}  // namespace lunar::redis
