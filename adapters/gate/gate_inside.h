// SPDX-License-Identifier: Apache-2.0
// Declarations that the parts of the gate share: hooks (gate.cpp), the result of a read
// (gate_input.cpp, input_look.h), and waiting (gate_wait.cpp).
// Threading: as gate.h.
#pragma once
#include <pthread.h>
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

// a string takes five: slot, entry, key, object, value; chains and several keys take more
constexpr unsigned kRoundsMax = 24;
constexpr unsigned kLookupRoundsMax = 1024;  // of a command that goes through whole values
// of these rounds, looks that ended early with nothing missing: some 20 ms of the main thread
constexpr unsigned kIdleLooksMax = 128;
constexpr uint64_t kLookupHolds = 10;      // such a command may wait this many times hold_ms_max
constexpr size_t kPartialMax = 32 * 1024;  // the start of a longer command is passed at once
constexpr size_t kHoldBytesMax = 1 << 20;  // held input of one client
constexpr unsigned kLookAhead = 256;       // commands after a cold one that are also looked up
// longest wait of the start of a command for the rest
constexpr uint64_t kPartialNsMax = 20'000'000;
constexpr uint64_t kTurnNsMax = 1'000'000'000;  // longest wait of a client for its user's turn
// Parts of the DRAM budget that a user may have in progress from the LUN, and that one client may
// request at once.
constexpr uint64_t kUserPart = 4, kClientPart = 16, kClientBytesMin = 256 << 10,
                   kClientBytesMax = 4 << 20;
// Limit for the values of one command over all rounds. Beyond it, its pages would evict each other
// before it runs. For all such commands together the limit is half of the budget: beyond it only
// one of them continues, and the others wait for their turn.
constexpr uint64_t kLookupPart = 4, kLookupBytesMax = 64 << 20, kLookupsPart = 2;
constexpr unsigned kUserRequestsMax = Fetcher::kRequestsMax / 2;

// The source of input: a socket, or the TLS session on it. read() is the program's call from before
// the gate.
struct Source {
  int fd;
  void* tls;  // SSL*, or nullptr
  ssize_t read(void* buffer, size_t bytes) const;
};

struct GateWork {
#define LUNAR_GATE_COUNTER(name, info) Counter name;
#define LUNAR_GATE_FIGURE(name, info, value)
#include "gate_counters.def"
#undef LUNAR_GATE_COUNTER
#undef LUNAR_GATE_FIGURE
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
  Command command;  // the command being looked up (too large for a stack)
  pthread_t main_thread{};
  uint64_t longest_hold_ns = 0;
  // read_ns_before: pager_watched_read_ns() at the last wait for events
  uint64_t longest_stall_ns = 0, read_ns_before = 0;
  HoldTimes hold_times;
  Prefixes prefixes;
  // numbers of the last hold, and of the last hold whose time has begun
  uint64_t holds = 0, holds_begun = 0;
  uint64_t first_deadline_ns = UINT64_MAX;  // no hold ends before this
  int epoll = -1;

  // the commands passed by the last gate_input() add no more keys than they have arguments
  bool few_keys = false;
  bool deferred = false;         // the last gate_input() returned the gate's own EAGAIN
  void* tls_deferred = nullptr;  // the session whose last SSL_read returned that

  // The functions that the program called before the gate.
  ssize_t (*read)(int, void*, size_t) = nullptr;
  int (*epoll_wait)(int, epoll_event*, int, int) = nullptr;
  int (*close)(int) = nullptr;
  ssize_t (*write)(int, const void*, size_t) = nullptr;
  ssize_t (*writev)(int, const iovec*, int) = nullptr;
  int (*tls_read)(void*, void*, int) = nullptr;
  int (*tls_error)(const void*, int) = nullptr;
  int (*tls_pending)(const void*) = nullptr;
  int (*tls_descriptor)(const void*) = nullptr;

  bool on_main_thread() const { return pthread_equal(pthread_self(), main_thread) != 0; }
  bool watching() const { return state.load(std::memory_order_relaxed) == GateState::kWatching; }
  // Before the first eviction, reads go past the gate, so it may keep no input.
  bool holding() const { return watching() && counters().evictions.get() != 0; }
};
Gate& gate();

// Starts the fetcher's threads unless they run. Needs an active pager and known data. False: the
// gate stays bypassed.
bool gate_start_fetching();
// Passes completed requests of the fetcher back to the code that made them.
void gate_take_what_is_done();

// epoll_wait() of the main thread, and of a module's thread that has the server's lock.
int gate_wait(int epoll, epoll_event* events, int max, int timeout_ms);
int gate_wait_elsewhere(int epoll, epoll_event* events, int max, int timeout_ms);

// read() or SSL_read() of the main thread, and of other threads.
ssize_t gate_input(Source from, void* buffer, size_t bytes);
ssize_t gate_input_elsewhere(Source from, void* buffer, size_t bytes);
// Their result while the client waits: the gate's own EAGAIN.
ssize_t gate_defer();
// Maximum bytes in progress for a user, and that a client may request at once.
uint64_t user_bytes_max();
uint64_t client_bytes_max();
// Maximum bytes that the values of one command may take, in all its rounds.
uint64_t lookup_bytes_max();
// Maximum bytes that long lookups may have requested together, for commands that have not run.
uint64_t lookups_bytes_max();
// Called inside read() while the server's data are known but its keys are not checked yet. Checks
// them if `fd` is a client's, and then begins to watch.
void look_at_keys(int fd);

}  // namespace lunar::redis
