// SPDX-License-Identifier: Apache-2.0
// The input gate: a client waits for its cold key without stopping a single-threaded server, and
// the server's rules stay the same. The gate holds the client's *bytes*, not the command:
//
//   read()  ── whole commands, all keys resident ─────────────────────────────► the server's buffer
//              └─ a cold key: input before it goes on; the rest stays here, EAGAIN ─► fetcher
//   epoll_wait()  ◄── pages are in DRAM: the descriptor counts as readable again, and read()
//                     returns the bytes
//
// To the server it looks as if the client had sent more slowly. The gate redirects calls of the
// main program (program_got.h): read, epoll_wait, close, and OpenSSL's SSL_read (with SSL_get_error
// and SSL_pending, so that the session agrees). It holds input for at most `hold_ms_max` and
// kRoundsMax rounds, then passes it as it is: the command takes faults, and its reply is the same.
//
// A command that goes through whole values (value_lookup.h), or through many keys, is held for up
// to kLookupHolds times as long and kLookupRoundsMax rounds: passed cold, it would stop all clients
// for hundreds of faults. The gate bounds the bytes that one such command may request
// (kLookupPart), and those that all of them have brought in (kLookupsPart). Beyond that, one
// command continues and the others wait for their turn, like clients of a user with too much in
// progress. If the time of several such commands is up, only one is passed between two waits for
// events.
//
// One look takes at most kLookUnits of work. The rest of the input, or of a value, follows after
// the other clients' turn.
//
// The gate looks up, fetches and holds nothing for a client that has not authenticated, or whose
// user may not run the command on its keys (client_rights.h): such a client learns nothing about
// the LUN or the budget from the time that a refusal takes. The only exception is that client's own
// input, if the server already had a part of it that has left DRAM. For all clients, input held and
// reads in progress are bounded per client and per user (user_share.h).
//
// Pages that a command needs in order to free something count as pages that it reads: the old value
// of a SET, a deleted value (freed_lookup.h), and at maxmemory the victims that it will evict
// (eviction.h). Active expiry runs in turns of its own on keys whose pages are in DRAM (expiry.h).
//
// The gate reads ahead of a replica's link to its master: replica_link.h.
//
// The gate passes this input at once, without lookup: everything but sockets of clients (other
// replication links, pipes, files); a command's start that comes alone (the rest is scanned
// together with the server's part); commands not in the table of command_keys.h. It passes all
// input while nothing was ever evicted, if it does not know the server's layout (one line in the
// log), and for good once threads of the server read for it (io-threads-do-reads).
//
// When the server doubles a hash table, the gate moves the entries as they come into DRAM
// (rehash_ahead.h).
//
// Part of the Redis module and of the preload library; if both are loaded, the preload's gate
// serves and the module asks it (GateCalls).
//
// Threading: installed once. Hooks do their work on the thread that runs the event loop; calls of
// other threads go straight to libc, except for bytes that are kept for them. A forked child has no
// gate. Memory comes from sys/arena only, except that the server's own checks allocate for a user
// with less than all rights (client_rights.h).
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
  kBypassed,  // passes everything; gate_reason says why
  kWatching,  // holds input for cold keys
};

struct GateCounters {
#define LUNAR_GATE_COUNTER(name, info) uint64_t name = 0;
#define LUNAR_GATE_FIGURE(name, info, value) uint64_t name = 0;
#include "gate_counters.def"
#undef LUNAR_GATE_COUNTER
#undef LUNAR_GATE_FIGURE
  uint64_t main_reads = 0, main_read_ns = 0;  // faults of the main thread that waited for the LUN
};

// The longest times since the last gate_take_worst: the hold of a command; one fault of the main
// thread; all its faults from the LUN between two waits for events.
struct GateWorst {
  uint64_t hold_ns = 0, fault_ns = 0, stall_ns = 0;
};

// Redirects the calls. Called once, on the main thread, before the program waits for input; the
// gate then looks for the server's data. 0, or -errno with *why: the gate stays off. -ENOTSUP: this
// library has created no pager.
[[nodiscard]] int gate_start(const GateOptions& options, ErrorText* why);
// Whether the program is a redis-server or a derivative, of known layout or not. Costs one symbol
// lookup.
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

// The same calls, of the library whose gate serves. The module and the preload library may be of
// different versions: they share the structures below only if all sizes are the same.
struct GateCalls {
  size_t struct_bytes = sizeof(GateCalls), counters_bytes = sizeof(GateCounters),
         hold_times_bytes = sizeof(HoldTimes), prefixes_bytes = sizeof(Prefixes);
  bool same_version() const {
    const GateCalls here;
    return struct_bytes == here.struct_bytes && counters_bytes == here.counters_bytes &&
           hold_times_bytes == here.hold_times_bytes && prefixes_bytes == here.prefixes_bytes;
  }
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
