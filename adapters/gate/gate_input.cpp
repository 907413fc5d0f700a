// SPDX-License-Identifier: Apache-2.0
// The result of the server's read(): see gate.h. A read goes straight into the server's buffer,
// where the gate scans it (input_look.h); only input that must wait is copied.
#include <errno.h>
#include <limits.h>

#include <algorithm>
#include <cstring>

#include "ahead.h"
#include "gate_inside.h"
#include "input_look.h"
#include "pager/pager.h"
#include "replica_link.h"
#include "sys/mem.h"

namespace lunar::redis {
namespace {

uint64_t budget_bytes() { return pager_budget_pages() * sys::page_bytes(); }

uint64_t part_of_budget(uint64_t part, uint64_t most) {
  return std::clamp(budget_bytes() / part, kClientBytesMin, most);
}

// Whether the long lookup of `c` may request so many bytes more.
bool lookup_may_go_on(Connection* c, uint64_t bytes) {
  Connections& all = gate().connections;
  if (all.leader() == c || all.lookup_bytes() + bytes <= lookups_bytes_max()) return true;
  if (all.leader() != nullptr) return false;
  all.leader() = c;
  return true;
}

// Whether `c` may request the missing pages now. A user's first request may be larger than its
// share.
bool has_turn(Connection* c, const Look& look) {
  const Share& share = *look.share;
  if (gate().fetcher.full()) return false;
  if (share.requests >= kUserRequestsMax) return false;
  if (share.requests != 0 && share.bytes + look.missing.bytes > user_bytes_max()) return false;
  return !look.cursor.far() || lookup_may_go_on(c, look.missing.bytes);
}

// Begins a hold, or its next round. True: the hold begins.
bool begin_round(Connection* c, const Look& look) {
  Gate& g = gate();
  const bool begins = c->since_ns == 0;
  if (begins) {
    g.work.held.add();
    c->since_ns = sys::now_ns();
    c->deadline_ns = UINT64_MAX;
    c->until_ns = 0;
  }
  c->cursor = look.cursor;
  c->hold = ++g.holds;
  return begins;
}

// The look ended early with nothing missing: the next look comes after the other clients' turn.
void look_again(Connection* c, const Look& look) {
  Gate& g = gate();
  if (begin_round(c, look))
    c->until_ns = c->since_ns + kLookupHolds * g.options.hold_ms_max * 1000000;
  ++c->cursor.idle;
  ++c->rounds;
  g.connections.enter(c, Hold::kReady);
}

void wait_for_turn(Connection* c, const Look& look) {
  Gate& g = gate();
  (void)begin_round(c, look);
  g.work.turns.add();
  c->until_ns = 0;
  c->deadline_ns = (look.cursor.far() ? c->since_ns : sys::now_ns()) + kTurnNsMax;
  if (look.cursor.far()) {  // its pages may be evicted while it waits
    c->cursor.key = 0;
    c->cursor.at = 0;
  }
  g.first_deadline_ns = std::min(g.first_deadline_ns, c->deadline_ns);
  g.shares.list(look.share);
  g.connections.enter(c, Hold::kHeld, &look.share->waiting);
}

// False: they cannot be requested.
bool wait_for_pages(Connection* c, const Look& look) {
  Gate& g = gate();
  const uint64_t number = g.holds + 1;  // that begin_round() gives to the hold
  if (!g.fetcher.submit(c->fd, number, look.share, look.missing)) return false;
  (void)begin_round(c, look);
  if (c->until_ns == 0 || look.cursor.far()) c->deadline_ns = UINT64_MAX;
  if (look.cursor.far()) g.connections.count_lookup(c, look.missing.bytes);
  ++c->rounds;
  g.work.rounds.add();
  g.work.overlapped_reads.add(look.missing.count);
  g.connections.enter(c, Hold::kHeld);
  return true;
}

// False: it cannot be held.
bool hold(Connection* c, const Look& look) {
  if (look.share == nullptr) return false;
  if (look.missing.count == 0) return look_again(c, look), true;
  if (!has_turn(c, look)) return wait_for_turn(c, look), true;
  return wait_for_pages(c, look);
}

// Called when some of its input goes on.
void end_hold(Connection* c) {
  Gate& g = gate();
  c->rounds = 0;
  c->late = false;
  if (c->since_ns == 0) return;
  g.hold_times.add(sys::now_ns() - c->since_ns);
  c->since_ns = 0;
  g.connections.end_lookup(c);
}

// False: these bytes cannot be kept.
bool keep(Connection* c, const char* data, size_t bytes, const Look& look) {
  Connections& all = gate().connections;
  const bool cold = look.waits == Look::Waits::kCold;
  if (bytes > kHoldBytesMax || (cold && look.share == nullptr)) return false;
  const bool same = look.good == 0 && bytes == c->size();  // nothing new has come, nothing goes
  if (!same && !all.fill(c, data, bytes, cold ? &all.held_quota() : &all.partial_quota(),
                         cold ? &look.share->held : nullptr))
    return false;
  if (cold) return hold(c, look);
  c->deadline_ns = sys::now_ns() + kPartialNsMax;
  all.enter(c, Hold::kPartial);
  return true;
}

// Keeps the part of the `n` bytes in the server's buffer that must wait. `c`: the connection's
// entry, all of whose bytes are in the buffer, or nullptr. Returns the result of read().
ssize_t pass_good(Connection* c, int fd, const char* buffer, size_t n, Look& look) {
  Gate& g = gate();
  if (look.good != n) {
    if (c == nullptr) c = g.connections.add(fd);
    if (c != nullptr && keep(c, buffer + look.good, n - look.good, look))
      return look.good != 0 ? static_cast<ssize_t>(look.good) : gate_defer();
    (look.waits == Look::Waits::kCold ? g.work.overflows : g.work.partial_overflows).add();
    look.pass_rest();
  }
  if (c != nullptr) g.connections.drop(c);
  return static_cast<ssize_t>(n);
}

Look::Time time_of(const Connection& c) {
  if (c.state == Hold::kPartial) return Look::Time::kFirst;
  const bool idle = c.cursor.idle != 0;
  const bool enough = c.late || c.rounds >= (c.cursor.begun() ? kLookupRoundsMax : kRoundsMax) ||
                      c.cursor.idle > kIdleLooksMax ||
                      (idle && c.until_ns != 0 && sys::now_ns() >= c.until_ns);
  return enough ? Look::Time::kLast : Look::Time::kAgain;
}

// Reads from a connection with kept bytes, which come first.
ssize_t kept_input(Connection* c, Source from, char* buffer, size_t bytes) {
  if (c->state == Hold::kHeld) return gate_defer();
  const size_t kept = std::min(c->size(), bytes);
  memcpy(buffer, c->first(), kept);
  size_t n = kept;
  if (c->state == Hold::kPartial && kept == c->size() && kept < bytes) {
    const ssize_t got = from.read(buffer + kept, bytes - kept);
    if (got <= 0) return got;  // the end of the input: a part of a command does not matter
    n += static_cast<size_t>(got);
  }
  Look look(c->fd, buffer);
  if (c->rounds != 0) look.cursor = c->cursor;
  look.scan(n, time_of(*c));
  const bool all = kept == c->size();
  if (!all && look.good == 0) {
    if (look.waits == Look::Waits::kCold && hold(c, look)) return gate_defer();
    look.pass_rest();
  }
  if (look.good != 0) end_hold(c);
  if (all) return pass_good(c, c->fd, buffer, n, look);
  // The server's buffer takes less than the kept bytes: the rest stays, and is scanned at the next
  // read.
  c->begin += look.good;
  return static_cast<ssize_t>(look.good);
}

ssize_t link_or_kept_input(Connection* c, Source from, char* buffer, size_t bytes) {
  if (!c->link) return kept_input(c, from, buffer, bytes);
  const ssize_t got = link_input(c, buffer, bytes);
  // A master's stream has the writes of a script as a transaction.
  const auto has = [&](const char* word) {
    return memmem(buffer, static_cast<size_t>(got), word, 4) != nullptr;
  };
  gate().few_keys = got > 0 && !has("EXEC") && !has("exec");
  return got;
}

ssize_t input(Source from, char* buffer, size_t bytes) {
  Gate& g = gate();
  if (bytes == 0) return from.read(buffer, bytes);
  if (g.state.load(std::memory_order_relaxed) == GateState::kStarting) look_at_keys(from.fd);
  if (g.fetching) g.rehash.look(g.layout, ahead_works(), &g.fetcher);
  if (Connection* c = g.connections.find(from.fd); c != nullptr)
    return link_or_kept_input(c, from, buffer, bytes);
  Look look(from.fd, buffer);
  ssize_t got;
  if (!look.possible() && g.holding() && from.tls == nullptr &&
      link_begin(from.fd, buffer, bytes, &got))
    return got;
  got = from.read(buffer, bytes);
  if (!look.possible() || got <= 0) return got;
  const auto n = static_cast<size_t>(got);
  look.scan(n, Look::Time::kFirst);
  return pass_good(nullptr, from.fd, buffer, n, look);
}

}  // namespace

// The last piece of a request may exceed it.
uint64_t client_bytes_max() { return part_of_budget(kClientPart, kClientBytesMax); }

uint64_t lookup_bytes_max() { return part_of_budget(kLookupPart, kLookupBytesMax); }

uint64_t lookups_bytes_max() { return budget_bytes() / kLookupsPart; }

uint64_t user_bytes_max() { return budget_bytes() / kUserPart; }

ssize_t gate_defer() {
  gate().deferred = true;
  errno = EAGAIN;
  return -1;
}

ssize_t Source::read(void* buffer, size_t bytes) const {
  const Gate& g = gate();
  if (tls == nullptr) return g.read(fd, buffer, bytes);
  return g.tls_read(tls, buffer, bytes > INT_MAX ? INT_MAX : static_cast<int>(bytes));
}

ssize_t gate_input(Source from, void* buffer, size_t bytes) {
  Gate& g = gate();
  g.deferred = g.few_keys = false;
  ahead_of_commands(from.fd);
  const ssize_t got = input(from, static_cast<char*>(buffer), bytes);
  // Some reads are of files, by the server's cron among others.
  if (g.rehash.pauses() && got > 0 && !g.few_keys &&
      (g.layout.client_of(from.fd) != nullptr || g.layout.master_of(from.fd) != nullptr))
    g.rehash.lift(g.layout);
  return got;
}

// The caller is an I/O thread of the server (the gate is then bypassed), or a module's thread that
// handles events while it has the server's lock. Kept bytes come first, also those of a TLS session
// that is held, because only the main thread can defer a TLS session.
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
  const size_t kept = std::min(c->size(), bytes);
  memcpy(buffer, c->first(), kept);
  c->begin += kept;  // the main thread drops an empty entry
  return static_cast<ssize_t>(kept);
}

}  // namespace lunar::redis
