// SPDX-License-Identifier: Apache-2.0
// What the parts of the gate share: hooks (gate.cpp), the result of a read (gate_input.cpp,
// input_look.h), and waiting (gate_wait.cpp).
// Threading: as gate.h.
#pragma once
#include <sys/types.h>

#include "client_rights.h"
#include "connections.h"
#include "fetcher.h"
#include "gate.h"
#include "layout.h"
#include "rehash_ahead.h"
#include "stats/counters.h"

struct epoll_event;
struct iovec;

namespace lunar::redis {

// slot, entry, key, object, value; chains and several keys take more
constexpr unsigned kRoundsMax = 24;
constexpr unsigned kLookupRoundsMax = 1024;  // of a command that goes through whole values
// of these, looks that found nothing missing and were too short: some 20 ms of the main thread
constexpr unsigned kIdleLooksMax = 128;
constexpr uint64_t kLookupHolds = 10;      // it may wait this many times hold_ms_max
constexpr size_t kPartialMax = 32 * 1024;  // a command that needs more is passed at once
constexpr size_t kHoldBytesMax = 1 << 20;  // no more than this is held
constexpr unsigned kLookAhead = 256;       // commands after a cold one that are looked up too
// longest wait of the start of a command for the rest
constexpr uint64_t kPartialNsMax = 20'000'000;
constexpr uint64_t kTurnNsMax = 1'000'000'000;  // longest wait of a client for its user's turn
// Parts of the DRAM budget that a user may have in progress from the LUN, and that one client may
// request at once.
constexpr uint64_t kUserPart = 4, kClientPart = 16, kClientBytesMin = 256 << 10,
                   kClientBytesMax = 4 << 20;
// And that the values of one command may take in all rounds together: more would push each other
// out before the command runs. So would those of many: beyond half of the budget only one of them
// continues, and the others wait for their turn.
constexpr uint64_t kLookupPart = 4, kLookupBytesMax = 64 << 20, kLookupsPart = 2;
constexpr unsigned kUserRequestsMax = Fetcher::kRequestsMax / 2;

// Where input comes from: a socket, or the TLS session on it. read() is what the program called
// before the gate.
struct Source {
  int fd;
  void* tls;  // SSL*, or nullptr
  ssize_t read(void* buffer, size_t bytes) const;
};

struct GateWork {
  // as in GateCounters
  Counter commands, held, rounds, ranges, timeouts, unknown, overflows, refused, partial_overflows,
      turns, cut, seen, seen_cold;
};

struct Gate {
  GateOptions options;
  std::atomic<GateState> state{GateState::kOff};
  std::atomic<bool> threads_read{false};  // the server's I/O threads read from clients
  bool fetching = false;                  // threads are started
  ServerLayout layout;
  Connections connections;
  Fetcher fetcher;
  Shares shares;
  RehashAhead rehash;
  GateWork work;
  Command command;  // the one being looked up (too large for a stack)
  pthread_t main_thread{};
  uint64_t longest_hold_ns = 0;
  // of the main thread, before it last waited for events
  uint64_t longest_stall_ns = 0, read_ns_before = 0;
  HoldTimes hold_times;
  Prefixes prefixes;
  // numbers of the last hold, and of the last whose time has begun
  uint64_t holds = 0, holds_begun = 0;
  uint64_t first_deadline_ns = UINT64_MAX;  // no hold ends before this
  int epoll = -1;

  // the result of the last gate_input() adds no more keys than it has arguments
  bool few_keys = false;
  bool deferred = false;         // the last gate_input() returned the gate's own EAGAIN
  void* tls_deferred = nullptr;  // the session whose last SSL_read did

  // The functions that the program called before.
  ssize_t (*read)(int, void*, size_t) = nullptr;
  int (*epoll_wait)(int, epoll_event*, int, int) = nullptr;
  int (*close)(int) = nullptr;
  ssize_t (*write)(int, const void*, size_t) = nullptr;
  ssize_t (*writev)(int, const iovec*, int) = nullptr;
  int (*tls_read)(void*, void*, int) = nullptr;
  int (*tls_error)(const void*, int) = nullptr;
  int (*tls_pending)(const void*) = nullptr;
  int (*tls_descriptor)(const void*) = nullptr;

  bool watching() const { return state.load(std::memory_order_relaxed) == GateState::kWatching; }
  // Before anything was evicted, reads go past the gate: nothing may be kept.
  bool holding() const { return watching() && counters().evictions.get() != 0; }
};
Gate& gate();

// Starts the fetcher's threads, if they do not run yet. False: the gate stays bypassed.
bool gate_start_fetching();
// Gives requests that the fetcher has completed back to the code that made them.
void gate_take_what_is_done();

// epoll_wait() of the main thread, and of a module's thread that has the server's lock.
int gate_wait(int epoll, epoll_event* events, int max, int timeout_ms);
int gate_wait_elsewhere(int epoll, epoll_event* events, int max, int timeout_ms);

// read(), or SSL_read(), of the main thread, and of the server's other threads.
ssize_t gate_input(Source from, void* buffer, size_t bytes);
ssize_t gate_input_elsewhere(Source from, void* buffer, size_t bytes);
// Their result when the client is to wait: the gate's own EAGAIN.
ssize_t gate_defer();
// Maximum bytes in progress for a user, and that a client may request at once.
uint64_t user_bytes_max();
uint64_t client_bytes_max();
// Maximum bytes that the values of one command may take, in all its rounds.
uint64_t lookup_bytes_max();
// Maximum bytes that long lookups may have requested together, for commands that have not run.
uint64_t lookups_bytes_max();
// Called when the server's data are known but its keys were not checked yet: while a client's input
// is read they may be looked at.
void look_at_keys(int fd);

}  // namespace lunar::redis
