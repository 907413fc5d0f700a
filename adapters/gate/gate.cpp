// SPDX-License-Identifier: Apache-2.0
// The gate's hooks and its waiting: see gate.h, gate_inside.h.
#include "gate.h"

#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <sys/epoll.h>

#include <utility>

#include "ahead.h"
#include "aof_ahead.h"
#include "base/host_guard.h"
#include "elf/program_got.h"
#include "foreground_save.h"
#include "gate_inside.h"
#include "pager/pager.h"
#include "replica_link.h"
#include "save_ahead.h"
#include "stream_lookup.h"
#include "sys/file.h"
#include "sys/log.h"

namespace lunar::redis {
namespace {

constinit Gate g_gate;
constinit ErrorText g_reason;
constexpr unsigned kAttemptsMax = 1000;  // waits of the server before its data is believed not to be found
constinit unsigned g_attempts = 0;
constexpr const char* kUnknownLayout = "this server is laid out in a way that is not known here: ";
constexpr unsigned kKeysLookedAtEvery = 64;  // reads
constinit uint64_t g_round = 0;

void bypass(const char* what, const ErrorText& why) {
  g_reason = why;
  g_gate.state.store(GateState::kBypassed, std::memory_order_release);
  log_warning("input gate stays open, cold keys wait one by one: %s%s", what, why.text);
}

// Redis 8 and Valkey with io-threads: reads may come from these at any time, and what is held here would be passed by.
bool opened_for_io_threads() {
  if (!g_gate.layout.io_threads_may_read()) return false;
  ErrorText why;
  (void)why.set(-ENOTSUP, "io-threads are on");
  bypass("", why);
  return true;
}

// One of them has read. Before the gate watches, that may be all that it ever sees of clients.
void open_for_reading_threads() {
  if (!g_gate.threads_read.load(std::memory_order_acquire)) return;
  ErrorText why;
  (void)why.set(-ENOTSUP, "its io-threads read from clients");
  bypass("", why);
}

// Looks for the server's data, until it is known. Its keys are looked at elsewhere: while the server waits, threads of
// modules may change them.
void look_for_server(int epoll, const epoll_event* events, int events_max) {
  Gate& g = g_gate;
  static bool threads_seen = false;
  if (g.epoll >= 0) {
    if (!threads_seen && pager_active()) {
      threads_seen = true;
      if (opened_for_io_threads()) return;
    }
    return open_for_reading_threads();
  }
  ErrorText why;
  int rc = g.layout.find_data(epoll, events, events_max, &why);
  if (rc == 0 && ++g_attempts < kAttemptsMax) return;
  if (rc == 0) (void)why.set(-ENOTSUP, "its databases were not found");
  if (rc <= 0) return bypass(kUnknownLayout, why);
  g.epoll = epoll;
}

// The pages are in, or the time is up: the server is to read, and what it reads is scanned again.
void release(Connection* c, bool late) {
  c->late = late;
  const uint64_t held = c->state == Hold::kHeld ? sys::now_ns() - c->since_ns : 0;
  if (held > g_gate.longest_hold_ns) g_gate.longest_hold_ns = held;
  g_gate.connections.enter(c, Hold::kReady);
}

void unpark(Connection* c) {
  if (!c->parked && !c->taken_out) return;
  const int mask = g_gate.layout.event_mask(c->fd);
  if (mask != 0)
    (void)sys::epoll_set(g_gate.epoll, c->fd, (mask & 1 ? EPOLLIN : 0u) | (mask & 2 ? EPOLLOUT : 0u), c->taken_out);
  c->parked = c->taken_out = false;
}

// Its events are not told while it is held. A hang-up cannot be masked: the descriptor is taken out.
void park(Connection* c, bool hung_up) {
  const int mask = g_gate.layout.event_mask(c->fd);
  if (!hung_up)
    c->parked = sys::epoll_set(g_gate.epoll, c->fd, mask & 2 ? EPOLLOUT : 0u, false) == 0;
  else
    c->taken_out = sys::epoll_remove(g_gate.epoll, c->fd) == 0;
}

// Clients of users that have less under way again, in order: what they wait for is looked at anew. A few more than
// there is room for may come, and wait again.
void give_turns() {
  Gate& g = g_gate;
  if (g.fetcher.full()) return;
  const uint64_t each = kClientBytesMin / 4, most = user_bytes_max();
  unsigned lookups = g.connections.lookup_bytes() < lookups_bytes_max() ? UINT_MAX
                     : g.connections.leader() == nullptr                ? 1
                                                                        : 0;
  for (Share** at = &g.shares.waiting(); *at != nullptr;) {
    Share* share = *at;
    uint64_t bytes = share->bytes;
    unsigned requests = share->requests;
    for (Connection *c = share->waiting.head, *next; c != nullptr && bytes < most && requests < kUserRequestsMax;
         c = next) {
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

// Wakes the fetchers; the time of what was held since the last wait begins.
void begin_fetching(uint64_t now) {
  Gate& g = g_gate;
  g.fetcher.flush();
  const uint64_t deadline = now + uint64_t{g.options.hold_ms_max} * 1000000;
  for (Connection* c = g.connections.held().tail; c != nullptr && c->hold > g.holds_begun; c = c->previous) {
    if (c->until_ns == 0) c->until_ns = now + kLookupHolds * (deadline - now);
    if (c->deadline_ns == UINT64_MAX) c->deadline_ns = c->cursor.far() ? c->until_ns : deadline;
    if (c->deadline_ns < g.first_deadline_ns) g.first_deadline_ns = c->deadline_ns;
  }
  g.holds_begun = g.holds;
}

// Releases the clients of a list whose time is up; of long lookups, whose faults stop all clients, only the first:
// *lookups may go.
void release_due(ConnectionList& list, bool all, uint64_t now, unsigned* lookups) {
  Gate& g = g_gate;
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
  Gate& g = g_gate;
  const bool all = !g.watching();
  for (Connection* c; (c = g.connections.partial().head) != nullptr && (all || c->deadline_ns <= now);)
    release(c, true);
  if (Connection* link = link_waiting(); link != nullptr && (all || link->deadline_ns <= now)) release(link, true);
  if (!all && now < g.first_deadline_ns) return;
  g.first_deadline_ns = UINT64_MAX;
  unsigned lookups = 1;
  for (Share* share = g.shares.waiting(); share != nullptr; share = share->next_waiting)
    release_due(share->waiting, all, now, &lookups);
  release_due(g.connections.held(), all, now, &lookups);
}

bool server_wants(const Connection* c) { return (g_gate.layout.event_mask(c->fd) & 1) != 0; }

// Milliseconds that may be slept.
int time_to_sleep(int timeout_ms, uint64_t now) {
  Gate& g = g_gate;
  for (Connection* c = g.connections.ready().head; c != nullptr; c = c->next)
    if (server_wants(c)) return 0;
  uint64_t first = g.connections.held_now() != 0 ? g.first_deadline_ns : UINT64_MAX;
  auto sooner = [&](const Connection* c) { first = c != nullptr && c->deadline_ns < first ? c->deadline_ns : first; };
  sooner(g.connections.partial().head);
  sooner(link_waiting());
  if (first == UINT64_MAX) return timeout_ms;
  const uint64_t left = first > now ? (first - now + 999999) / 1000000 : 0;
  return timeout_ms < 0 || static_cast<uint64_t>(timeout_ms) > left ? static_cast<int>(left) : timeout_ms;
}

// Takes out what is not for the server. Returns what is left; *woken: pages came in.
int sift(epoll_event* events, int n, bool* woken) {
  Gate& g = g_gate;
  int left = 0;
  for (int i = 0; i < n; ++i) {
    epoll_event event = events[i];
    if (event.data.fd == g.fetcher.event_fd()) {
      sys::eventfd_clear(g.fetcher.event_fd());
      *woken = true;
      continue;
    }
    Connection* c = g.connections.find(event.data.fd);
    if (c != nullptr && c->state == Hold::kHeld && (event.events & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0) {
      park(c, (event.events & (EPOLLHUP | EPOLLERR)) != 0);
      event.events &= ~static_cast<uint32_t>(EPOLLIN | EPOLLHUP | EPOLLERR);
      if (event.events == 0) continue;
    }
    events[left++] = event;
  }
  return left;
}

// Connections whose bytes may go on count as readable.
int add_ready(epoll_event* events, int n, int max) {
  Gate& g = g_gate;
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

int wait_for_events(int epoll, epoll_event* events, int max, int timeout_ms) {
  Gate& g = g_gate;
  if (g.watching()) open_for_reading_threads();
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

// A module's thread that has the server's lock: our descriptor is none of its events.
int wait_elsewhere(int epoll, epoll_event* events, int max, int timeout_ms) {
  Gate& g = g_gate;
  const int n = g.epoll_wait(epoll, events, max, timeout_ms);
  int left = 0;
  for (int i = 0; i < n; ++i)
    if (events[i].data.fd != g.fetcher.event_fd()) events[left++] = events[i];
  return n < 0 ? n : left;
}

bool on_main_thread() { return pthread_equal(pthread_self(), g_gate.main_thread) != 0; }

// Nothing was ever evicted: all data is in DRAM, and the gate keeps no input, so no command is looked up and none
// waits. Once something was, this stays false.
bool all_in_dram() {
  const Gate& g = g_gate;
  if (!pager_active()) return true;
  return g.watching() && counters().evictions.get() == 0 && !g.threads_read.load(std::memory_order_relaxed);
}

ssize_t hook_read(int fd, void* buffer, size_t bytes) {
  Gate& g = g_gate;
  if (g.epoll < 0 || g.state.load(std::memory_order_relaxed) == GateState::kOff) return g.read(fd, buffer, bytes);
  if (!on_main_thread()) return gate_input_elsewhere({fd, nullptr}, buffer, bytes);
  return all_in_dram() ? g.read(fd, buffer, bytes) : gate_input({fd, nullptr}, buffer, bytes);
}

// OpenSSL's SSL_read, SSL_get_error and SSL_pending. A session to which the gate said "later" wants to read, and has
// nothing.
int hook_tls_read(void* tls, void* buffer, int bytes) {
  Gate& g = g_gate;
  if (g.epoll < 0 || bytes <= 0 || g.state.load(std::memory_order_relaxed) == GateState::kOff)
    return g.tls_read(tls, buffer, bytes);
  const Source from{g.tls_descriptor(tls), tls};
  const auto size = static_cast<size_t>(bytes);
  const bool here = on_main_thread();
  if (here && all_in_dram()) return g.tls_read(tls, buffer, bytes);
  const int got = static_cast<int>(here ? gate_input(from, buffer, size) : gate_input_elsewhere(from, buffer, size));
  if (got > 0) errno = 0;  // the server looks at it first, and SSL_read leaves it so
  if (here) g.tls_deferred = g.deferred ? tls : nullptr;
  return got;
}

int hook_tls_error(const void* tls, int rc) {
  constexpr int kWantRead = 2;  // SSL_ERROR_WANT_READ
  Gate& g = g_gate;
  if (tls == nullptr || tls != g.tls_deferred || !on_main_thread()) return g.tls_error(tls, rc);
  g.tls_deferred = nullptr;
  return kWantRead;
}

int hook_tls_pending(const void* tls) {
  Gate& g = g_gate;
  if (g.fetching && g.state.load(std::memory_order_relaxed) != GateState::kOff && on_main_thread())
    if (const Connection* c = g.connections.find(g.tls_descriptor(tls)); c != nullptr && c->state == Hold::kHeld)
      return 0;
  return g.tls_pending(tls);
}

// How long the main thread has waited for pages since it last waited for events: all clients stood still that long.
void note_stall() {
  Gate& g = g_gate;
  const uint64_t now = pager_watched_read_ns()->load(std::memory_order_relaxed), stall = now - g.read_ns_before;
  if (__builtin_expect(stall == 0, 1) || !on_main_thread()) return;
  g.read_ns_before = now;
  if (stall > g.longest_stall_ns) g.longest_stall_ns = stall;
}

int hook_epoll_wait(int epoll, epoll_event* events, int max, int timeout_ms) {
  Gate& g = g_gate;
  const GateState state = g.state.load(std::memory_order_relaxed);
  note_stall();
  if (state == GateState::kStarting) look_for_server(epoll, events, max);
  if (!g.fetching || epoll != g.epoll || state == GateState::kOff) return g.epoll_wait(epoll, events, max, timeout_ms);
  if (!on_main_thread()) return wait_elsewhere(epoll, events, max, timeout_ms);
  if (all_in_dram()) return g.epoll_wait(epoll, events, max, timeout_ms);
  return wait_for_events(epoll, events, max, timeout_ms);
}

// A write failed because the client has disconnected, while commands that it sent are held. The server would free the
// client, and they would never run; a server that reads them at once runs them even if the replies cannot be sent. So
// the error is deferred until the hold is over.
ssize_t defer_disconnect(int fd, ssize_t rc) {
  Gate& g = g_gate;
  if (__builtin_expect(rc >= 0 || (errno != EPIPE && errno != ECONNRESET), 1) || !g.fetching ||
      g.state.load(std::memory_order_relaxed) == GateState::kOff || !on_main_thread())
    return rc;
  const int error = errno;
  const Connection* c = g.connections.find(fd);
  errno = c != nullptr && c->state != Hold::kPartial && !c->link ? EAGAIN : error;
  return rc;
}

ssize_t hook_write(int fd, const void* data, size_t bytes) {
  return defer_disconnect(fd, g_gate.write(fd, data, bytes));
}

ssize_t hook_writev(int fd, const iovec* parts, int count) {
  return defer_disconnect(fd, g_gate.writev(fd, parts, count));
}

int hook_close(int fd) {
  Gate& g = g_gate;
  if (g.fetching && g.state.load(std::memory_order_relaxed) != GateState::kOff) {
    if (!on_main_thread())
      g.connections.note_closed(fd);
    else if (Connection* c = g.connections.find(fd); c != nullptr)
      g.connections.drop(c);
  }
  return g.close(fd);
}

// A child of a server that runs has no fetcher, and serves no clients: it saves. One that was forked before is the
// server itself (daemonize).
void enter_child() {
  if (g_gate.epoll < 0) return pager_watch_thread(sys::thread_id());
  g_gate.state.store(GateState::kOff, std::memory_order_relaxed);
  if (g_gate.fetching) save_ahead_start(g_gate.layout);
}

// Whether keys may be looked at by a thread of ours while the server itself does not change them. No client may have
// come yet.
bool keys_known() {
  Gate& g = g_gate;
  const GateState state = g.state.load(std::memory_order_relaxed);
  if (g.epoll < 0 || state == GateState::kOff || !pager_active()) return false;
  ErrorText why;
  return g.fetching || (state == GateState::kStarting && g.layout.check_keys(&why) > 0);
}

template <class F>
int redirect(const char* name, F hook, F* original, ErrorText* why) {
  void* before = nullptr;
  // Ours is stored before it can be called; the original is known before that.
  *original = reinterpret_cast<F>(program_calls(name));
  if (*original == nullptr) return why->set(-ENOENT, "the server does not call %s of a shared library", name);
  return program_redirect(name, reinterpret_cast<void*>(hook), &before, why);
}

// A server that was built with TLS. The call that is put off comes last, the others hand through until then.
int redirect_tls(ErrorText* why) {
  Gate& g = g_gate;
  HostGuard guard;
  if (program_calls("SSL_read") == nullptr) return 0;
  g.tls_descriptor = reinterpret_cast<int (*)(const void*)>(dlsym(RTLD_DEFAULT, "SSL_get_fd"));
  if (g.tls_descriptor == nullptr) return why->set(-ENOENT, "the server's OpenSSL has no SSL_get_fd");
  int rc = redirect("SSL_get_error", hook_tls_error, &g.tls_error, why);
  if (rc == 0) rc = redirect("SSL_pending", hook_tls_pending, &g.tls_pending, why);
  return rc == 0 ? redirect("SSL_read", hook_tls_read, &g.tls_read, why) : rc;
}

}  // namespace

Gate& gate() { return g_gate; }

// Threads and the event descriptor, when there is a pager to fetch from and data that is known.
bool gate_start_fetching() {
  Gate& g = g_gate;
  if (g.fetching) return true;
  ErrorText why;
  int rc = g.connections.start() ? g.fetcher.start(g.options.threads) : -ENOMEM;
  if (rc == 0) rc = sys::epoll_set(g.epoll, g.fetcher.event_fd(), EPOLLIN, true);
  if (rc < 0) {
    (void)why.set(rc, "%s", errno_name(rc));
    bypass("its threads cannot be started: ", why);
    return false;
  }
  return g.fetching = true;
}

void gate_take_what_is_done() {
  Gate& g = g_gate;
  for (Request* r = g.fetcher.take_done(); r != nullptr;) {
    Request* next = r->next;
    Connection* c = g.connections.find(r->fd);
    if (c != nullptr && c->hold == r->hold && (!c->link || link_request_done(c)) && c->state == Hold::kHeld)
      release(c, false);
    if (r->ahead != nullptr) ahead_fetched(r->ahead);
    r->share->bytes -= r->pages.bytes;
    --r->share->requests;
    g.fetcher.recycle(r);
    r = next;
  }
}

void look_at_keys(int fd) {
  Gate& g = g_gate;
  static unsigned reads = 0;
  if (!pager_active()) return;
  ErrorText why;
  const bool master = g.layout.master_of(fd) != nullptr;
  if (!master && g.layout.client_of(fd) == nullptr) {
    if (g.layout.foreign_client(fd))
      bypass(kUnknownLayout, ((void)why.set(-ENOTSUP, "its clients look different"), why));
    return;
  }
  // a stream's reads are large, and many commands
  if (reads++ % (master ? kKeysLookedAtEvery / 16 : kKeysLookedAtEvery) != 0) return;
  int rc = g.layout.check_keys(&why);
  if (rc > 0 && rights_check(&why) < 0) rc = -1;
  if (rc > 0) {
    stream_lookup_check();
    g.rehash.start(g.layout);
  }
  if (rc < 0) return bypass(kUnknownLayout, why);
  if (rc <= 0 || opened_for_io_threads() || !gate_start_fetching()) return;
  g.state.store(GateState::kWatching, std::memory_order_release);
  ahead_start();
}

GateOptions gate_options(const Options& options) {
  return {options.gate, static_cast<unsigned>(options.gate_hold_ms), static_cast<unsigned>(options.gate_threads)};
}

bool gate_fits_program() { return dlsym(RTLD_DEFAULT, "readQueryFromClient") != nullptr; }

int gate_start(const GateOptions& options, ErrorText* why) {
  Gate& g = g_gate;
  if (!pager_created()) return why->set(-ENOTSUP, "this library serves no tier here");
  pager_watch_thread(sys::thread_id());
  if (g.state.load() != GateState::kOff) return why->set(-EEXIST, "the input gate is there already");
  if (!g.layout.find_symbols(why) || !rights_find_symbols(g.layout.keyspace() == Keyspace::kTables, why))
    return -ENOENT;
  g.main_thread = pthread_self();
  if (int rc = pthread_atfork(nullptr, nullptr, enter_child); rc != 0) return why->set(-rc, "no fork handler");
  int rc = redirect("read", hook_read, &g.read, why);
  if (rc == 0) rc = redirect("close", hook_close, &g.close, why);
  if (rc == 0) rc = redirect("write", hook_write, &g.write, why);
  if (rc == 0 && program_calls("writev") != nullptr) rc = redirect("writev", hook_writev, &g.writev, why);
  if (rc == 0) rc = redirect_tls(why);
  if (rc == 0) rc = redirect("epoll_wait", hook_epoll_wait, &g.epoll_wait, why);
  if (rc < 0) return rc;  // a hook without the others hands through
  foreground_save_watch(g.layout, keys_known);
  aof_ahead_watch(keys_known);
  g.state.store(GateState::kStarting);
  gate_set(options);
  return 0;
}

void gate_set(const GateOptions& options) {
  Gate& g = g_gate;
  if (g.state.load() == GateState::kOff) return;
  g.options = options;
  if (!options.enabled)
    g.state.store(GateState::kBypassed);
  else if (g.state.load() == GateState::kBypassed && g_reason.text[0] == 0)
    g.state.store(GateState::kStarting);
}

GateState gate_state() { return g_gate.state.load(std::memory_order_relaxed); }
const char* gate_reason() {
  return g_gate.state.load() == GateState::kBypassed ? (g_reason.text[0] != 0 ? g_reason.text : "switched off") : "";
}
GateWorst gate_take_worst() {
  return {std::exchange(g_gate.longest_hold_ns, 0), pager_take_longest_fault_ns(),
          std::exchange(g_gate.longest_stall_ns, 0)};
}
const HoldTimes& gate_hold_times() { return g_gate.hold_times; }
Prefixes& gate_prefixes() { return g_gate.prefixes; }
const std::atomic<uint64_t>* gate_main_reads() { return pager_watched_reads(); }

GateCounters gate_counters() {
  const GateWork& work = g_gate.work;
  GateCounters now;
  now.open = gate_state() != GateState::kWatching;
  now.commands = work.commands.get();
  now.held = work.held.get();
  now.rounds = work.rounds.get();
  now.overlapped_reads = work.ranges.get();
  now.timeouts = work.timeouts.get();
  now.unknown = work.unknown.get();
  now.overflows = work.overflows.get();
  now.refused = work.refused.get();
  now.partial_overflows = work.partial_overflows.get();
  now.turns = work.turns.get();
  now.cut = work.cut.get();
  now.expired = ahead_counters().expired;
  now.expired_cold = ahead_counters().expired_cold;
  now.evictable = ahead_counters().evictable;
  now.held_bytes = g_gate.connections.held_quota().used;
  now.partial_bytes = g_gate.connections.partial_quota().used;
  now.seen = work.seen.get();
  now.seen_cold = work.seen_cold.get();
  now.held_now = g_gate.connections.held_now();
  now.main_reads = pager_watched_reads()->load(std::memory_order_relaxed);
  now.main_read_ns = pager_watched_read_ns()->load(std::memory_order_relaxed);
  return now;
}

}  // namespace lunar::redis
