// SPDX-License-Identifier: Apache-2.0
// The gate's hooks, its start, and its figures: see gate.h, gate_inside.h.
#include "gate.h"

#include <dlfcn.h>
#include <errno.h>
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
#include "save_ahead.h"
#include "stream_lookup.h"
#include "sys/file.h"
#include "sys/log.h"

namespace lunar::redis {
namespace {

constinit Gate g_gate;
constinit ErrorText g_reason;
// after so many calls of epoll_wait the gate gives up looking for the server's data
constexpr unsigned kAttemptsMax = 1000;
constinit unsigned g_attempts = 0;
constexpr const char* kUnknownLayout = "this server is laid out in a way that is not known here: ";
constexpr unsigned kKeysLookedAtEvery = 64;  // reads

void bypass(const char* what, const ErrorText& why) {
  g_reason = why;
  g_gate.state.store(GateState::kBypassed, std::memory_order_release);
  log_warning("input gate stays open, cold keys wait one by one: %s%s", what, why.text);
}

// Redis 8 and Valkey with io-threads: those threads may read at any time, and would overtake input
// that is held here.
bool opened_for_io_threads() {
  if (!g_gate.layout.io_threads_may_read()) return false;
  ErrorText why;
  (void)why.set(-ENOTSUP, "io-threads are on");
  bypass("", why);
  return true;
}

// An I/O thread has read from a client. If this happens before the gate watches, the gate may never
// see a client itself.
void open_for_reading_threads() {
  if (!g_gate.threads_read.load(std::memory_order_acquire)) return;
  ErrorText why;
  (void)why.set(-ENOTSUP, "its io-threads read from clients");
  bypass("", why);
}

// Looks for the server's data until it is known. look_at_keys() checks the keys inside read(),
// because threads of modules may change them while the server waits.
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

// Whether nothing was ever evicted: then all data is in DRAM, and the gate keeps no input, so it
// looks up no command. After the first eviction this stays false.
bool all_in_dram() {
  const Gate& g = g_gate;
  if (!pager_active()) return true;
  return g.watching() && counters().evictions.get() == 0 &&
         !g.threads_read.load(std::memory_order_relaxed);
}

ssize_t hook_read(int fd, void* buffer, size_t bytes) {
  Gate& g = g_gate;
  if (g.epoll < 0 || g.state.load(std::memory_order_relaxed) == GateState::kOff)
    return g.read(fd, buffer, bytes);
  if (!g.on_main_thread()) return gate_input_elsewhere({fd, nullptr}, buffer, bytes);
  return all_in_dram() ? g.read(fd, buffer, bytes) : gate_input({fd, nullptr}, buffer, bytes);
}

// OpenSSL's SSL_read, SSL_get_error and SSL_pending. For a session that the gate has deferred,
// SSL_get_error says that it wants to read, and SSL_pending that it has nothing.
int hook_tls_read(void* tls, void* buffer, int bytes) {
  Gate& g = g_gate;
  if (g.epoll < 0 || bytes <= 0 || g.state.load(std::memory_order_relaxed) == GateState::kOff)
    return g.tls_read(tls, buffer, bytes);
  const Source from{g.tls_descriptor(tls), tls};
  const auto size = static_cast<size_t>(bytes);
  const bool here = g.on_main_thread();
  if (here && all_in_dram()) return g.tls_read(tls, buffer, bytes);
  const int got = static_cast<int>(here ? gate_input(from, buffer, size)
                                        : gate_input_elsewhere(from, buffer, size));
  if (got > 0) errno = 0;  // as SSL_read leaves it: the server checks errno first
  if (here) g.tls_deferred = g.deferred ? tls : nullptr;
  return got;
}

int hook_tls_error(const void* tls, int rc) {
  constexpr int kWantRead = 2;  // SSL_ERROR_WANT_READ
  Gate& g = g_gate;
  if (tls == nullptr || tls != g.tls_deferred || !g.on_main_thread()) return g.tls_error(tls, rc);
  g.tls_deferred = nullptr;
  return kWantRead;
}

int hook_tls_pending(const void* tls) {
  Gate& g = g_gate;
  if (g.fetching && g.state.load(std::memory_order_relaxed) != GateState::kOff &&
      g.on_main_thread())
    if (const Connection* c = g.connections.find(g.tls_descriptor(tls));
        c != nullptr && c->state == Hold::kHeld)
      return 0;
  return g.tls_pending(tls);
}

// Notes how long the main thread has waited for pages since it last waited for events, which
// stopped all clients.
void note_stall() {
  Gate& g = g_gate;
  const uint64_t now = pager_watched_read_ns()->load(std::memory_order_relaxed),
                 stall = now - g.read_ns_before;
  if (__builtin_expect(stall == 0, 1) || !g.on_main_thread()) return;
  g.read_ns_before = now;
  if (stall > g.longest_stall_ns) g.longest_stall_ns = stall;
}

int hook_epoll_wait(int epoll, epoll_event* events, int max, int timeout_ms) {
  Gate& g = g_gate;
  const GateState state = g.state.load(std::memory_order_relaxed);
  note_stall();
  if (state == GateState::kStarting) look_for_server(epoll, events, max);
  if (!g.fetching || epoll != g.epoll || state == GateState::kOff)
    return g.epoll_wait(epoll, events, max, timeout_ms);
  if (!g.on_main_thread()) return gate_wait_elsewhere(epoll, events, max, timeout_ms);
  if (all_in_dram()) return g.epoll_wait(epoll, events, max, timeout_ms);
  if (g.watching()) open_for_reading_threads();
  return gate_wait(epoll, events, max, timeout_ms);
}

// Defers the error of a write to a client that has disconnected while its commands are held. The
// server would free the client, and the commands would never run; without the gate it would have
// read and run them, even if the replies cannot be sent. So the error is deferred until the hold is
// over.
ssize_t defer_disconnect(int fd, ssize_t rc) {
  Gate& g = g_gate;
  if (__builtin_expect(rc >= 0 || (errno != EPIPE && errno != ECONNRESET), 1) || !g.fetching ||
      g.state.load(std::memory_order_relaxed) == GateState::kOff || !g.on_main_thread())
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
    if (!g.on_main_thread())
      g.connections.note_closed(fd);
    else if (Connection* c = g.connections.find(fd); c != nullptr)
      g.connections.drop(c);
  }
  return g.close(fd);
}

// A child of a running server has no fetcher, and serves no clients: it saves. A child that was
// forked before the server runs is the server itself (daemonize).
void enter_child() {
  if (g_gate.epoll < 0) return pager_watch_thread(sys::thread_id());
  g_gate.state.store(GateState::kOff, std::memory_order_relaxed);
  if (g_gate.fetching) save_ahead_start(g_gate.layout);
}

// Whether the gate may look at keys while the server itself does not change them, even if no client
// has come yet.
bool keys_known() {
  Gate& g = g_gate;
  const GateState state = g.state.load(std::memory_order_relaxed);
  if (g.epoll < 0 || state == GateState::kOff || !pager_active()) return false;
  ErrorText why;
  return g.fetching || (state == GateState::kStarting && g.layout.check_keys(&why) > 0);
}

// For a server that was built with TLS. SSL_read comes last: until then the other hooks change
// nothing.
int redirect_tls(ErrorText* why) {
  Gate& g = g_gate;
  HostGuard guard;
  if (program_calls("SSL_read") == nullptr) return 0;
  g.tls_descriptor = reinterpret_cast<int (*)(const void*)>(dlsym(RTLD_DEFAULT, "SSL_get_fd"));
  if (g.tls_descriptor == nullptr)
    return why->set(-ENOENT, "the server's OpenSSL has no SSL_get_fd");
  int rc = program_redirect("SSL_get_error", hook_tls_error, &g.tls_error, why);
  if (rc == 0) rc = program_redirect("SSL_pending", hook_tls_pending, &g.tls_pending, why);
  return rc == 0 ? program_redirect("SSL_read", hook_tls_read, &g.tls_read, why) : rc;
}

}  // namespace

Gate& gate() { return g_gate; }

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
  // a master's stream is checked more often: its reads are large
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
  return {options.gate, static_cast<unsigned>(options.gate_hold_ms),
          static_cast<unsigned>(options.gate_threads)};
}

bool gate_fits_program() { return dlsym(RTLD_DEFAULT, "readQueryFromClient") != nullptr; }

int gate_start(const GateOptions& options, ErrorText* why) {
  Gate& g = g_gate;
  if (!pager_created()) return why->set(-ENOTSUP, "this library serves no tier here");
  pager_watch_thread(sys::thread_id());
  if (g.state.load() != GateState::kOff)
    return why->set(-EEXIST, "the input gate is there already");
  if (!g.layout.find_symbols(why) ||
      !rights_find_symbols(g.layout.keyspace() == Keyspace::kTables, why))
    return -ENOENT;
  g.main_thread = pthread_self();
  if (int rc = pthread_atfork(nullptr, nullptr, enter_child); rc != 0)
    return why->set(-rc, "no fork handler");
  int rc = program_redirect("read", hook_read, &g.read, why);
  if (rc == 0) rc = program_redirect("close", hook_close, &g.close, why);
  if (rc == 0) rc = program_redirect("write", hook_write, &g.write, why);
  if (rc == 0 && program_calls("writev") != nullptr)
    rc = program_redirect("writev", hook_writev, &g.writev, why);
  if (rc == 0) rc = redirect_tls(why);
  if (rc == 0) rc = program_redirect("epoll_wait", hook_epoll_wait, &g.epoll_wait, why);
  if (rc < 0) return rc;  // hooks that are in place change nothing alone
  foreground_save_watch(keys_known);
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
  return g_gate.state.load() == GateState::kBypassed
             ? (g_reason.text[0] != 0 ? g_reason.text : "switched off")
             : "";
}
GateWorst gate_take_worst() {
  return {std::exchange(g_gate.longest_hold_ns, 0), pager_take_longest_fault_ns(),
          std::exchange(g_gate.longest_stall_ns, 0)};
}
const HoldTimes& gate_hold_times() { return g_gate.hold_times; }
Prefixes& gate_prefixes() { return g_gate.prefixes; }
const std::atomic<uint64_t>* gate_main_reads() { return pager_watched_reads(); }

GateCounters gate_counters() {
  GateCounters now;
#define LUNAR_GATE_COUNTER(name, info) now.name = g_gate.work.name.get();
#define LUNAR_GATE_FIGURE(name, info, value) now.name = value;
#include "gate_counters.def"
#undef LUNAR_GATE_COUNTER
#undef LUNAR_GATE_FIGURE
  now.main_reads = pager_watched_reads()->load(std::memory_order_relaxed);
  now.main_read_ns = pager_watched_read_ns()->load(std::memory_order_relaxed);
  return now;
}

}  // namespace lunar::redis
