// SPDX-License-Identifier: Apache-2.0
// The result of the server's read(): see gate.h. A read goes straight into the server's buffer, where the gate scans
// it; only input that must wait is copied.
#include <errno.h>
#include <limits.h>

#include <cstring>
#include <initializer_list>

#include "ahead.h"
#include "eviction.h"
#include "expiry.h"
#include "gate_inside.h"
#include "key_lookup.h"
#include "pager/pager.h"
#include "replica_link.h"

namespace lunar::redis {
namespace {

// An eligible client (one whose input can be scanned), and the server's place in its input.
struct Input {
  const ClientView* client = nullptr;
  Progress progress;
};

struct ScanResult {
  size_t good = 0;    // bytes from the start that may go to the server
  bool cold = false;  // what follows waits for pages; else it is part of a command
};

// Commands that came in one read behind more cold ones than are looked at stay uncounted, whatever their keys.
void note_first_look(const CommandKeys& keys, const Command& command, bool cold) {
  Gate& g = gate();
  unsigned key = 0;
  if (keys.form == KeyForm::kRange)
    key = static_cast<unsigned>(keys.first);
  else
    for_each_key(keys, command, [&](unsigned i) { key = key == 0 ? i : key; });
  if (key == 0 || key >= command.kept) return;
  g.work.seen.add();
  if (cold) g.work.seen_cold.add();
  g.prefixes.note(command.argument[key], cold);
}

uint64_t budget_bytes() { return pager_budget_pages() * page_bytes(); }

uint64_t part_of_budget(uint64_t part, uint64_t most) {
  const uint64_t bytes = budget_bytes() / part;
  return bytes < kClientBytesMin ? kClientBytesMin : bytes > most ? most : bytes;
}

uint64_t lookup_bytes_max() { return part_of_budget(kLookupPart, kLookupBytesMax); }

// A command without keys: what it changes for those behind it, and for the gate, if its client may run it.
void follow(const Command& command, int* database, Rights* rights) {
  Gate& g = gate();
  const int chosen = chosen_database(command);
  const bool wish = command.count == 3 && same_word(command.argument[0], "DEBUG") &&
                    same_word(command.argument[1], "SET-ACTIVE-EXPIRE") && expiry_takes_wishes();
  if (chosen < 0 && !wish) return g.work.unknown.add();
  if (!rights_allow(rights, nullptr, command)) return g.work.refused.add();
  if (wish)
    expiry_wished(small_number(command.argument[2]) == 1);
  else
    *database = chosen;
}

// One command of a client on `*database`; `keys`: as the table has it, or nullptr. True: nothing is missing for it, or
// it is none of the client's business. cursor: as look_up_command.
bool look_up(const Command& command, const CommandKeys* keys, int* database, Rights* rights, bool first_look,
             LookupCursor* cursor, NonresidentRanges* missing) {
  Gate& g = gate();
  if (command.kept == 0) return true;
  g.work.commands.add();
  if (keys == nullptr) {
    follow(command, database, rights);
    return true;
  }
  if (!rights_allow(rights, keys, command)) {
    g.work.refused.add();
    return true;
  }
  const DatabaseView* where = g.layout.database(*database);
  if (where == nullptr) return true;
  const uint64_t missed = missing->bytes;
  const bool there = look_up_command(g.layout, *where, *keys, command, first_look, cursor, missing);
  const bool cold = !there && (missing->bytes != missed || missing->full());
  if (first_look)
    note_first_look(*keys, command, cold);
  else if (cold && cursor != nullptr && !cursor->counted && cursor->idle != 0)
    g.work.seen_cold.add();  // what was looked at first was there
  if (cold && cursor != nullptr) cursor->counted = true;
  return eviction_has_victim(command.bytes, missing) && there;
}

// Scripts and transactions may add any number, as commands may that are not known here.
bool adds_few_keys(const Command& command, const CommandKeys* keys) {
  if (command.kept == 0) return true;
  const Slice name = command.argument[0];
  if (keys != nullptr)
    return command.kept == command.count && strncmp(keys->name, "EVAL", 4) != 0 && strncmp(keys->name, "FCALL", 5) != 0;
  for (const char* known : {"PING", "ECHO", "SELECT", "INFO", "MULTI", "DBSIZE", "CLIENT", "CONFIG", "TIME", "PUBLISH",
                            "SCAN", "RANDOMKEY", "HELLO", "COMMAND"})
    if (same_word(name, known)) return true;
  return false;
}

// The command at `at` of `text`: the first one may have begun in what the server has. *cold: what the server has of its
// arguments has left DRAM since, and is in *missing; the command is not known yet.
Parse parse_at(const Input& input, const char* text, size_t at, size_t bytes, Command* out, bool* cold,
               NonresidentRanges* missing) {
  const Progress& progress = input.progress;
  *cold = false;
  if (at != 0 || progress.left == 0) return parse_command(text + at, bytes - at, out);
  const Parse parse = parse_rest(text, bytes, progress.taken, progress.left, progress.bulk, out);
  if (parse != Parse::kCommand) return parse;
  const Arguments taken = gate().layout.arguments_taken(*input.client, progress, out, missing);
  *cold = taken == Arguments::kCold;
  return taken == Arguments::kUnknown ? Parse::kBad : parse;
}

// Looks at the whole commands of `text`, what the server has of the first one included.
// `first_look`: nothing of it has been held; `late`: the first command has waited enough. The start of a command is
// kept only behind others: when it is all there is, the server's own rules for it (errors, idle clients) are to hold.
ScanResult scan_commands(const Input& input, const char* text, size_t bytes, bool first_look, bool late, Rights* rights,
                         NonresidentRanges* missing) {
  Gate& g = gate();
  ScanResult result;
  int database = g.layout.database_of(*input.client);
  unsigned behind = 0;
  bool few = true;
  const auto pass_cold = [&] {
    g.work.timeouts.add();
    missing->count = 0;
    missing->bytes = 0;
  };
  for (size_t at = 0; at < bytes;) {
    bool arguments_cold;
    const Parse parse = parse_at(input, text, at, bytes, &g.command, &arguments_cold, missing);
    const bool first = at == 0;
    // What the server has is not a whole command, or it waits for something else than input.
    const bool unexpected = parse == Parse::kCommand && first && g.command.bytes <= input.progress.bytes;
    if (parse != Parse::kCommand || unexpected) {
      const bool leave = parse == Parse::kBad || unexpected || g.command.bytes > kPartialMax || first;
      if (leave && !result.cold) {
        result.good = bytes;
        few = false;
      }
      break;
    }
    if (arguments_cold) {
      result.cold = !late;
      if (late) {  // and with it what is behind it: which user that runs as is not known
        pass_cold();
        result.good = bytes;
        few = false;
      }
      break;
    }
    at += g.command.bytes;
    const CommandKeys* keys = g.command.kept == 0 ? nullptr : find_command_keys(g.command.argument[0]);
    // which user the rest runs as is not known yet
    if (keys == nullptr && g.command.kept != 0 && changes_rights(g.command)) {
      if (!result.cold) {
        result.good = bytes;
        few = false;
      }
      break;
    }
    if (!first && !result.cold) {  // that before goes on
      result.cold = missing->units == 0;
      g.cursor = {.bytes_max = lookup_bytes_max(), .counted = result.cold};
    }
    if (!first && missing->units == 0) break;  // those before it were enough for one look
    if (!look_up(g.command, keys, &database, rights, first_look, result.cold ? nullptr : &g.cursor, missing)) {
      if (first && late)
        pass_cold();
      else
        result.cold = true;
    }
    if (!result.cold) {
      result.good = at;
      few = few && adds_few_keys(g.command, keys);
    } else if (missing->full() || ++behind > kLookAhead)
      break;
  }
  g.few_keys = few;
  return result;
}

// Of the `n` bytes that come behind what the server has.
ScanResult scan(const Input& input, size_t n, bool first_look, bool late, NonresidentRanges* missing, Share** share) {
  Gate& g = gate();
  Rights rights;
  rights_of(g.layout, *input.client, &rights);
  if (rights.none()) {
    g.work.refused.add();
    return {n, false};
  }
  const size_t there = input.progress.bytes;
  ScanResult result = scan_commands(input, input.progress.text, there + n, first_look, late, &rights, missing);
  result.good = result.good < there ? 0 : result.good - there;
  if (result.cold) {
    if (missing->bytes >= missing->bytes_max) g.work.cut.add();
    *share = g.shares.of(rights.user);
  }
  return result;
}

ssize_t again() {
  gate().deferred = true;
  errno = EAGAIN;
  return -1;
}

void ask_for(Connection* c, Request* request, const NonresidentRanges& missing, Share* share) {
  Gate& g = gate();
  request->fd = c->fd;
  request->hold = c->hold;
  request->pages = missing;
  request->share = share;
  share->bytes += missing.bytes;
  ++share->requests;
  g.work.rounds.add();
  g.work.ranges.add(missing.count);
  g.fetcher.submit(request);
  ++c->rounds;
}

// One look was too short, and nothing is missing: the next one comes after the others' turn.
bool look_again(Connection* c, bool anew) {
  Gate& g = gate();
  if (anew) {
    g.work.held.add();
    c->rounds = 0;
    c->late = false;
  }
  if (anew || c->since_ns == 0) {
    c->since_ns = sys::now_ns();
    c->until_ns = c->since_ns + kLookupHolds * g.options.hold_ms_max * 1000000;
    c->deadline_ns = UINT64_MAX;  // of a later wait: its time begins when the fetchers are woken
  }
  c->waited = false;
  c->cursor = g.cursor;
  ++c->cursor.idle;
  ++c->rounds;
  c->hold = ++g.holds;
  g.connections.enter(c, Hold::kReady);
  return true;
}

// Whether `c` may ask for more of its values.
bool lookup_may_go_on(Connection* c, uint64_t bytes) {
  Connections& all = gate().connections;
  if (all.leader() == c || all.lookup_bytes() + bytes <= lookups_bytes_max()) return true;
  if (all.leader() != nullptr) return false;
  all.leader() = c;
  return true;
}

// `c` waits for its pages, or for its user's turn to ask for them. `anew`: for a command that has not waited yet.
// False: it cannot be held.
bool hold(Connection* c, const NonresidentRanges& missing, Share* share, bool anew) {
  Gate& g = gate();
  if (missing.count == 0) return look_again(c, anew);
  if (anew) g.connections.end_lookup(c);
  const bool turn = !g.fetcher.full() &&
                    (share->requests == 0 ||
                     (share->bytes + missing.bytes <= user_bytes_max() && share->requests < kUserRequestsMax)) &&
                    (!g.cursor.far() || lookup_may_go_on(c, missing.bytes));
  Request* request = turn ? g.fetcher.spare() : nullptr;
  if (turn && request == nullptr) return false;
  const bool begins = anew || c->since_ns == 0;
  const uint64_t now = begins || !turn ? sys::now_ns() : 0;
  if (anew) {
    g.work.held.add();
    c->rounds = 0;
    c->late = false;
  }
  if (begins) c->since_ns = now;
  if (begins || c->waited) c->until_ns = 0;
  // its time begins when the fetchers are woken: gate.cpp
  if (anew || c->waited || g.cursor.far()) c->deadline_ns = UINT64_MAX;
  c->waited = !turn;
  c->cursor = g.cursor;
  c->hold = ++g.holds;
  if (turn) {
    if (g.cursor.far()) g.connections.count_lookup(c, missing.bytes);
    ask_for(c, request, missing, share);
    g.connections.enter(c, Hold::kHeld);
    return true;
  }
  g.work.turns.add();
  c->deadline_ns = (g.cursor.far() ? c->since_ns : now) + kTurnNsMax;
  if (g.cursor.far()) {  // what it had may be gone then
    c->cursor.key = 0;
    c->cursor.at = 0;
  }
  if (c->deadline_ns < g.first_deadline_ns) g.first_deadline_ns = c->deadline_ns;
  g.shares.list(share);
  g.connections.enter(c, Hold::kHeld, &share->waiting);
  return true;
}

// Keeps what the server does not get of the `n` bytes in its buffer. `c`: the connection's entry, all of whose bytes
// are in the buffer, or nullptr. What read() returns.
ssize_t keep(Connection* c, int fd, const char* buffer, size_t n, ScanResult result, const NonresidentRanges& missing,
             Share* share) {
  Gate& g = gate();
  const size_t rest = n - result.good;
  if (rest == 0) {
    if (c != nullptr) g.connections.drop(c);
    return static_cast<ssize_t>(n);
  }
  const bool same = c != nullptr && result.good == 0 && n == c->size();  // nothing new has come, nothing goes
  const bool anew = result.good != 0 || c == nullptr || c->state == Hold::kPartial;
  if (c == nullptr) c = g.connections.add(fd);
  bool kept = c != nullptr && rest <= kHoldBytesMax && (!result.cold || share != nullptr);
  if (kept && !same)
    kept = result.cold ? g.connections.fill(c, buffer + result.good, rest, &g.connections.held_quota(), &share->held)
                       : g.connections.fill(c, buffer + result.good, rest, &g.connections.partial_quota(), nullptr);
  if (kept && result.cold) {
    kept = hold(c, missing, share, anew);
  } else if (kept) {
    c->deadline_ns = sys::now_ns() + kPartialNsMax;
    g.connections.enter(c, Hold::kPartial);
  }
  if (!kept) {
    g.few_keys = false;
    (result.cold ? g.work.overflows : g.work.partial_overflows).add();
    if (c != nullptr) g.connections.drop(c);
    return static_cast<ssize_t>(n);
  }
  return result.good != 0 ? static_cast<ssize_t>(result.good) : again();
}

// False: what the client sends next cannot be scanned.
bool may_scan(int fd, const void* buffer, Input* out) {
  Gate& g = gate();
  if (!g.watching()) return false;
  out->client = g.layout.client_of(fd);
  return out->client != nullptr && g.layout.progress_of(*out->client, buffer, &out->progress);
}

bool enough_waited(const Connection& c) {
  if (c.late || c.rounds >= (c.cursor.begun() ? kLookupRoundsMax : kRoundsMax) || c.cursor.idle > kIdleLooksMax)
    return true;
  return c.cursor.idle != 0 && c.until_ns != 0 && static_cast<uint64_t>(sys::now_ns()) >= c.until_ns;
}

// Bytes that were kept come first.
ssize_t input_from(Connection* c, Source from, void* buffer, size_t bytes) {
  if (c->state == Hold::kHeld) return again();
  const int fd = c->fd;
  auto* text = static_cast<char*>(buffer);
  const size_t kept = c->size() < bytes ? c->size() : bytes;
  memcpy(text, c->first(), kept);
  size_t n = kept;
  if (c->state == Hold::kPartial && kept == c->size() && kept < bytes) {
    const ssize_t got = from.read(text + kept, bytes - kept);
    if (got <= 0) return got;  // the end: half a command is nothing to the server
    n += static_cast<size_t>(got);
  }
  NonresidentRanges missing;
  missing.bytes_max = client_bytes_max();
  missing.units = kLookUnits;
  Share* share = nullptr;
  ScanResult result{n, false};
  Gate& g = gate();
  g.cursor = c->rounds != 0 ? c->cursor : LookupCursor{.bytes_max = lookup_bytes_max()};
  const bool waited = c->state == Hold::kReady && c->since_ns != 0;
  const bool late = c->state == Hold::kReady && enough_waited(*c);
  Input input;
  if (may_scan(fd, buffer, &input)) result = scan(input, n, c->state == Hold::kPartial, late, &missing, &share);
  if (waited && result.good != 0) {  // the hold is over
    gate().hold_times.add(static_cast<uint64_t>(sys::now_ns()) - c->since_ns);
    c->since_ns = 0;
    g.connections.end_lookup(c);
  }
  if (kept == c->size()) return keep(c, fd, text, n, result, missing, share);
  // The server asked for less than there is: what it does not take stays where it is, and is looked at when its turn
  // comes.
  if (result.good == 0 && result.cold && share != nullptr && hold(c, missing, share, false)) return again();
  if (result.good == 0) {
    result.good = n;
    g.few_keys = false;
  }
  c->begin += result.good;
  c->rounds = 0;
  c->late = false;
  return static_cast<ssize_t>(result.good);
}

}  // namespace

// The last piece may pass it.
uint64_t client_bytes_max() { return part_of_budget(kClientPart, kClientBytesMax); }

uint64_t lookups_bytes_max() { return budget_bytes() / kLookupsPart; }

uint64_t user_bytes_max() { return budget_bytes() / kUserPart; }

ssize_t Source::read(void* buffer, size_t bytes) const {
  const Gate& g = gate();
  if (tls == nullptr) return g.read(fd, buffer, bytes);
  return g.tls_read(tls, buffer, bytes > INT_MAX ? INT_MAX : static_cast<int>(bytes));
}

namespace {

// A master's stream has what scripts did as a transaction.
bool has_exec(const char* text, size_t bytes) {
  return memmem(text, bytes, "EXEC", 4) != nullptr || memmem(text, bytes, "exec", 4) != nullptr;
}

ssize_t input(Source from, void* buffer, size_t bytes) {
  Gate& g = gate();
  const int fd = from.fd;
  if (bytes == 0) return from.read(buffer, bytes);
  if (g.state.load(std::memory_order_relaxed) == GateState::kStarting) look_at_keys(fd);
  if (g.fetching) g.rehash.look(g.layout, ahead_works(), &g.fetcher);
  if (Connection* c = g.connections.find(fd); c != nullptr) {
    if (!c->link) return input_from(c, from, buffer, bytes);
    const ssize_t got = link_input(c, buffer, bytes);
    g.few_keys = got > 0 && !has_exec(static_cast<const char*>(buffer), static_cast<size_t>(got));
    return got;
  }
  Input input;
  const bool evicted = counters().evictions.get() != 0, scanned = evicted && may_scan(fd, buffer, &input);
  ssize_t got;
  if (evicted && !scanned && g.watching() && from.tls == nullptr && link_begin(fd, buffer, bytes, &got)) return got;
  got = from.read(buffer, bytes);
  if (!scanned || got <= 0) return got;
  NonresidentRanges missing;
  missing.bytes_max = client_bytes_max();
  missing.units = kLookUnits;
  g.cursor = {.bytes_max = lookup_bytes_max()};
  Share* share = nullptr;
  const auto n = static_cast<size_t>(got);
  const ScanResult result = scan(input, n, true, false, &missing, &share);
  return result.good == n ? got : keep(nullptr, fd, static_cast<char*>(buffer), n, result, missing, share);
}

}  // namespace

ssize_t gate_input(Source from, void* buffer, size_t bytes) {
  Gate& g = gate();
  g.deferred = g.few_keys = false;
  ahead_of_commands(from.fd);
  const ssize_t got = input(from, buffer, bytes);
  // Files, too, are read, by the server's cron among others.
  if (g.rehash.pauses() && got > 0 && !g.few_keys &&
      (g.layout.client_of(from.fd) != nullptr || g.layout.master_of(from.fd) != nullptr))
    g.rehash.lift(g.layout);
  return got;
}

// A thread of the server that reads for it: the gate is bypassed. Or a module's that handles events while it has the
// server's lock. Bytes that are here already go first, also those of a TLS session that waits: to put that off is for
// the main thread only.
ssize_t gate_input_elsewhere(Source from, void* buffer, size_t bytes) {
  Gate& g = gate();
  if (!g.threads_read.load(std::memory_order_relaxed) && g.layout.io_thread_reads())
    g.threads_read.store(true, std::memory_order_release);
  Connection* c = g.connections.find_elsewhere(from.fd);
  if (c == nullptr || c->size() == 0) return from.read(buffer, bytes);
  if (c->state == Hold::kHeld && from.tls == nullptr) {
    errno = EAGAIN;
    return -1;
  }
  const size_t kept = c->size() < bytes ? c->size() : bytes;
  memcpy(buffer, c->first(), kept);
  c->begin += kept;  // an empty entry is dropped by the main thread
  return static_cast<ssize_t>(kept);
}

}  // namespace lunar::redis
