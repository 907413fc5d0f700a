// SPDX-License-Identifier: Apache-2.0
// What the two halves of the gate share: input (gate_input.cpp: what a read gives) and events (gate.cpp: hooks,
// waiting, time).
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

constexpr unsigned kRoundsMax = 24;          // slot, entry, key, object, value; chains and several keys take more
constexpr unsigned kLookupRoundsMax = 1024;  // of a command that goes through whole values
// of these, looks that found nothing missing and were too short: some 20 ms of the main thread
constexpr unsigned kIdleLooksMax = 128;
constexpr uint64_t kLookupHolds = 10;           // it may wait so many times hold_ms_max
constexpr size_t kPartialMax = 32 * 1024;       // a command that needs more is passed as it comes
constexpr size_t kHoldBytesMax = 1 << 20;       // more than that is not kept from the server
constexpr unsigned kLookAhead = 256;            // commands behind a cold one that are looked at too
constexpr uint64_t kPartialNsMax = 20'000'000;  // the start of a command waits no longer for the rest
constexpr uint64_t kTurnNsMax = 1'000'000'000;  // and a client for its user's turn
// Parts of the DRAM budget that may be under way from the LUN for a user, and that one client asks for at once.
constexpr uint64_t kUserPart = 4, kClientPart = 16, kClientBytesMin = 256 << 10, kClientBytesMax = 4 << 20;
// And for the values of one command in all, round after round: more would push each other out before the command runs.
// So would those of many: beyond half of the budget only one of them goes on, the others wait for their turn.
constexpr uint64_t kLookupPart = 4, kLookupBytesMax = 64 << 20, kLookupsPart = 2;
constexpr unsigned kUserRequestsMax = Fetcher::kRequestsMax / 2;

// Where input comes from: a socket, or the TLS session on it. read() is what the program called before the gate.
struct Source {
  int fd;
  void* tls;  // SSL*, or nullptr
  ssize_t read(void* buffer, size_t bytes) const;
};

struct GateWork {
  // as in GateCounters
  Counter commands, held, rounds, ranges, timeouts, unknown, overflows, refused, partial_overflows, turns, cut, seen,
      seen_cold;
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
  Command command;      // the one being looked at (too large for a stack)
  LookupCursor cursor;  // of the first cold command of the input being looked at
  pthread_t main_thread{};
  uint64_t longest_hold_ns = 0;
  uint64_t longest_stall_ns = 0, read_ns_before = 0;  // of the main thread, before it last waited for events
  HoldTimes hold_times;
  Prefixes prefixes;
  uint64_t holds = 0, holds_begun = 0;      // numbers: of the last one, of the last whose time has begun
  uint64_t first_deadline_ns = UINT64_MAX;  // no hold ends before
  int epoll = -1;

  bool few_keys = false;         // what the last gate_input() gives adds no more keys than it has arguments
  bool deferred = false;         // the last gate_input() ended in an EAGAIN of ours
  void* tls_deferred = nullptr;  // the session to whose last SSL_read that happened

  // What the program called before.
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
};
Gate& gate();

// The fetcher's threads, if they are not there yet. False: the gate stays open.
bool gate_start_fetching();
// Requests that the fetcher has done go back to the code that made them.
void gate_take_what_is_done();

// read(), or SSL_read(): the main thread's, and that of the server's other threads.
ssize_t gate_input(Source from, void* buffer, size_t bytes);
ssize_t gate_input_elsewhere(Source from, void* buffer, size_t bytes);
// Bytes that may be under way for a user; that a client asks for at once.
uint64_t user_bytes_max();
uint64_t client_bytes_max();
// That long lookups may have asked for together, of commands that have not run.
uint64_t lookups_bytes_max();
// The server's data is known, but its keys have not been checked yet: while a client's input is read they may be looked
// at.
void look_at_keys(int fd);

}  // namespace lunar::redis
