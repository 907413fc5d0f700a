// SPDX-License-Identifier: Apache-2.0
// The input gate: lets one cold key wait without stopping a single-threaded server, and without
// changing one of its rules. It holds the client's *bytes*, not the command:
//
//   read()  ── whole commands, all keys resident ─────────────────────────────► the server's buffer
//              └─ a cold key: what comes before it goes on; the rest stays here, EAGAIN ─► fetcher
//   epoll_wait()  ◄── pages are in DRAM: the descriptor counts as readable again, and read()
//                     returns the bytes
//
// To the server it looks as if the client had sent more slowly. The gate redirects calls of the
// main program (program_got.h): read, epoll_wait, close, and OpenSSL's SSL_read (with SSL_get_error
// and SSL_pending, so that the session agrees). It holds input for at most `hold_ms_max` and
// kRoundsMax rounds, then passes it as it is: the command takes faults, and its reply is right.
//
// A command that goes through whole values (value_lookup.h), or many, is held for up to
// kLookupHolds times as long and kLookupRoundsMax rounds: passed cold, it would stop all clients
// for hundreds of faults. The gate bounds what one command may request (kLookupPart), and what all
// of these have brought in (kLookupsPart): beyond that one continues and the others wait for their
// turn, together with what a user has in progress. Of commands whose time is up, one is passed
// between two waits for events.
//
// One look takes kLookUnits of work. The rest of the same input, or of a value, follows after the
// other clients' turn.
//
// The gate looks up, fetches and holds nothing for a client that has not authenticated, or whose
// user may not run the command on its keys (client_rights.h), except that client's own input, where
// the server had a part of it that has left DRAM: such a client learns nothing from the LUN, the
// budget, or the time that a refusal takes. What other clients may have in progress or held is
// bounded, per client and per user (user_share.h).
//
// Pages that a command needs in order to free something count as pages that it reads: the old value
// of a SET, a deleted value (freed_lookup.h), and at maxmemory the victims that it will evict
// (eviction.h). Active expiry, which no client commands, runs in turns on keys whose pages are in
// DRAM (expiry.h).
//
// The gate reads ahead of a replica's link to its master: replica_link.h.
//
// Passed at once, without lookup: everything but sockets of clients (other replication links,
// pipes, files); a command's start that comes alone (the rest is scanned with what the server has
// of it); commands not in the table of command_keys.h; everything while nothing was ever evicted or
// the server's layout is not known (one line in the log), and permanently once threads of the
// server read for it (io-threads-do-reads).
//
// The gate moves the entries of hash tables that the server doubles, as they come in
// (rehash_ahead.h).
//
// Part of the Redis module and of the preload library; if both are loaded, the preload's gate
// serves and the module asks it (GateCalls).
//
// Threading: installed once. Hooks do their work on the thread that runs the event loop; other
// threads go straight to libc (but for bytes that wait for them). A forked child has no gate. No
// allocation but sys/arena, and what the server's own checks allocate for a user with less than all
// rights (client_rights.h).
#pragma once
#include <atomic>
#include <cstdint>

#include "base/error.h"
#include "config/options.h"
#include "hold_times.h"
#include "prefixes.h"

namespace lunar::redis {

struct GateOptions {
  bool enabled = true;
  unsigned hold_ms_max = 100;  // 1..10000
  unsigned threads = 2;        // 1..8
};
GateOptions gate_options(const Options& options);

enum class GateState : uint8_t {
  kOff,       // not installed, or a forked child
  kStarting,  // the server's data is not known yet
  kBypassed,  // passes everything: see gate_reason
  kWatching,  // holds what is cold
};

// Since the start.
struct GateCounters {
  bool open = true;               // passes everything now
  uint64_t commands = 0;          // looked up
  uint64_t held = 0;              // times that a client had to wait
  uint64_t rounds = 0;            // requests for pages
  uint64_t overlapped_reads = 0;  // pieces of memory asked for
  uint64_t timeouts = 0;          // passed cold: too long, or too many rounds
  uint64_t unknown = 0;           // commands without keys, or not in the table
  // passed cold: no memory to hold them, or too much held, in all or of one user
  uint64_t overflows = 0;
  // not looked up: the client has not authenticated, or may not run the command on its keys
  uint64_t refused = 0;
  uint64_t partial_overflows = 0;  // starts of commands passed on: too many kept
  uint64_t turns = 0;  // times that a client waited because its user had the maximum in progress
  uint64_t cut = 0;    // requests cut to the maximum that one client may request at once
  // keys that expired in the gate's turns (ahead.h); of these, those not in DRAM after many rounds
  uint64_t expired = 0, expired_cold = 0;
  uint64_t evictable = 0;                      // candidates of eviction that were fetched
  uint64_t held_bytes = 0, partial_bytes = 0;  // buffers in use now
  // commands with keys when they arrived (each counted once); of these, those for which something
  // was not in DRAM
  uint64_t seen = 0, seen_cold = 0;
  uint64_t held_now = 0;                      // clients
  uint64_t main_reads = 0, main_read_ns = 0;  // faults of the main thread that waited for the LUN
};

// The longest times since they were last taken: a command's wait at the gate, a fault of the main
// thread, and all its faults together that were answered by reads between two waits for events.
struct GateWorst {
  uint64_t hold_ns = 0, fault_ns = 0, stall_ns = 0;
};

// Redirects the calls. Called once, on the main thread, before the program waits for input; the
// gate then looks for the server's data. 0, or -errno with *why: nothing was changed. -ENOTSUP:
// this library created no pager.
[[nodiscard]] int gate_start(const GateOptions& options, ErrorText* why);
// Whether the program is a redis-server or a derivative, of known layout or not: one symbol lookup.
bool gate_fits_program();
// Changes the options at run time; main thread. If the gate is switched off, held input is passed.
// Does nothing if the gate was not started.
void gate_set(const GateOptions& options);
GateState gate_state();
const char* gate_reason();  // why it is bypassed, or ""
GateCounters gate_counters();
GateWorst gate_take_worst();  // works even if the gate could not be started
const HoldTimes& gate_hold_times();
Prefixes& gate_prefixes();
const std::atomic<uint64_t>* gate_main_reads();  // GateCounters::main_reads, for frequent readers

// The same calls, of the library whose gate serves.
struct GateCalls {
  // others: a library of another version
  size_t struct_bytes = sizeof(GateCalls), counters_bytes = sizeof(GateCounters);
  void (*set)(const GateOptions&) = gate_set;
  GateState (*state)() = gate_state;
  const char* (*reason)() = gate_reason;
  GateCounters (*counters)() = gate_counters;
  GateWorst (*take_worst)() = gate_take_worst;
  const HoldTimes& (*hold_times)() = gate_hold_times;
  Prefixes& (*prefixes)() = gate_prefixes;
  const std::atomic<uint64_t>* (*main_reads)() = gate_main_reads;
};
// The preload library exports `extern "C" const GateCalls* lunar_gate_calls()`, which returns
// nullptr if its gate was not started.
constexpr const char* kGateCallsSymbol = "lunar_gate_calls";

}  // namespace lunar::redis
