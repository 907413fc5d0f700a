// SPDX-License-Identifier: Apache-2.0
// What the server's read() gets: see gate.h. A read goes straight into the server's buffer and is judged there; only what must
// wait is copied.
#include <errno.h>

#include <cstring>

#include "gate_inside.h"
#include "walk.h"

namespace lunar::redis {
namespace {

struct Verdict {
  size_t good = 0;     // bytes from the start that may go to the server
  bool cold = false;   // what follows waits for pages; else it is part of a command
};

// One command of a client on `*database`. True: nothing is missing for it.
bool look_up(const Command& command, int* database, Missing* missing) {
  Gate& g = gate();
  if (command.kept == 0) return true;
  g.work.commands.add();
  if (command.kept == 2 && same_word(command.argument[0], "SELECT")) {
    const int chosen = small_number(command.argument[1]);
    if (chosen >= 0) *database = chosen;
    return true;
  }
  const CommandKeys* keys = find_command_keys(command.argument[0]);
  if (keys == nullptr) {
    g.work.unknown.add();
    return true;
  }
  const DatabaseView* where = g.layout.database(*database);
  return where == nullptr || walk_command(g.layout, *where, *keys, command, missing);
}

// Looks at whole commands from the start. `full`: the server's buffer has no room for more, so what begins here cannot be completed.
Verdict judge(const ClientView& client, const char* data, size_t bytes, bool full, Missing* missing) {
  Gate& g = gate();
  Verdict verdict;
  int database = client.database->id;
  unsigned behind = 0;
  for (size_t at = 0; at < bytes;) {
    const Parse parse = parse_command(data + at, bytes - at, &g.command);
    if (parse != Parse::kCommand) {
      const bool leave = parse == Parse::kBad || g.command.bytes > kPartialMax || (full && at == 0);
      if (leave && !verdict.cold) verdict.good = bytes;
      break;
    }
    at += g.command.bytes;
    if (!look_up(g.command, &database, missing)) verdict.cold = true;
    if (!verdict.cold) verdict.good = at;
    else if (missing->full() || ++behind > kLookAhead) break;
  }
  return verdict;
}

bool ask(Connection* c, const Missing& missing) {
  Gate& g = gate();
  Request* request = g.fetcher.spare();
  if (request == nullptr) return false;
  request->fd = c->fd;
  request->generation = c->generation;
  request->pages = missing;
  g.work.rounds.add();
  g.work.ranges.add(missing.count);
  g.fetcher.submit(request);
  return true;
}

ssize_t again() {
  errno = EAGAIN;
  return -1;
}

// Keeps [good, n) of the server's buffer. `c` may be nullptr, or have bytes that are all in the buffer. What the server gets.
ssize_t keep(Connection* c, int fd, const char* buffer, size_t n, Verdict verdict, const Missing& missing) {
  Gate& g = gate();
  const size_t rest = n - verdict.good;
  if (rest == 0) {
    if (c != nullptr) g.connections.drop(c);
    return static_cast<ssize_t>(n);
  }
  if (c == nullptr) c = g.connections.add(fd);
  if (c == nullptr || rest > kHoldBytesMax || !g.connections.fill(c, buffer + verdict.good, rest)) {
    g.work.overflows.add();
    if (c != nullptr) g.connections.drop(c);
    return static_cast<ssize_t>(n);
  }
  c->cleared = 0;
  if (!verdict.cold) {
    g.connections.enter(c, Hold::kPartial);
  } else if (!ask(c, missing)) {
    g.work.overflows.add();
    g.connections.drop(c);
    return static_cast<ssize_t>(n);
  } else {
    g.work.held.add();
    c->rounds = 1;
    c->deadline_ns = sys::now_ns() + uint64_t{g.options.hold_ms_max} * 1000000;
    g.connections.enter(c, Hold::kHeld);
  }
  return verdict.good != 0 ? static_cast<ssize_t>(verdict.good) : again();
}

// The client, when what it sends next can be judged.
const ClientView* judged_client(int fd, const void* buffer) {
  Gate& g = gate();
  if (!g.watching()) return nullptr;
  const ClientView* client = g.layout.client_of(fd);
  if (client == nullptr || !g.layout.reads_into(*client, buffer) || !ServerLayout::at_command_start(*client)) return nullptr;
  return client;
}

// Bytes that were kept come first.
ssize_t input_from(Connection* c, void* buffer, size_t bytes) {
  Gate& g = gate();
  if (c->state == Hold::kHeld) return again();
  const int fd = c->fd;
  const size_t kept = c->size() < bytes ? c->size() : bytes;
  memcpy(buffer, c->first(), kept);
  size_t n = kept, cleared = c->cleared < kept ? c->cleared : kept;
  if (c->state == Hold::kPartial && kept == c->size() && kept < bytes) {
    const ssize_t got = g.read(fd, static_cast<char*>(buffer) + kept, bytes - kept);
    if (got <= 0) return got;   // the end: half a command is nothing to the server
    n += static_cast<size_t>(got);
    cleared = 0;
  }
  auto* text = static_cast<char*>(buffer);
  Missing missing;
  Verdict verdict{n, false};
  if (const ClientView* client = judged_client(fd, buffer); client != nullptr && cleared < n) {
    verdict = judge(*client, text + cleared, n - cleared, n == bytes && cleared == 0, &missing);
    verdict.good += cleared;
  }
  if (kept == c->size()) return keep(c, fd, text, n, verdict, missing);
  // The server asked for less than there is: what it does not take stays where it is, and is looked at when its turn comes.
  if (verdict.good == 0 && !verdict.cold) verdict.good = n;
  c->begin += verdict.good;
  c->cleared = 0;
  if (!verdict.cold) return static_cast<ssize_t>(verdict.good);
  if (verdict.good != 0) return static_cast<ssize_t>(verdict.good);   // ready still: the next read meets the cold one first
  if (!ask(c, missing)) {
    c->begin += n;
    g.work.overflows.add();
    return static_cast<ssize_t>(n);
  }
  g.work.held.add();
  c->rounds = 1;
  c->deadline_ns = sys::now_ns() + uint64_t{g.options.hold_ms_max} * 1000000;
  g.connections.enter(c, Hold::kHeld);
  return again();
}

}  // namespace

ssize_t gate_input(int fd, void* buffer, size_t bytes) {
  Gate& g = gate();
  if (bytes == 0) return g.read(fd, buffer, bytes);
  if (Connection* c = g.connections.find(fd); c != nullptr) return input_from(c, buffer, bytes);
  const ClientView* client = counters().evictions.get() != 0 ? judged_client(fd, buffer) : nullptr;
  const ssize_t got = g.read(fd, buffer, bytes);
  if (client == nullptr || got <= 0) return got;
  Missing missing;
  const auto n = static_cast<size_t>(got);
  const Verdict verdict = judge(*client, static_cast<char*>(buffer), n, n == bytes, &missing);
  return verdict.good == n ? got : keep(nullptr, fd, static_cast<char*>(buffer), n, verdict, missing);
}

// A thread of the server that reads for it. The gate opens for good; bytes that are here already go first.
ssize_t gate_input_elsewhere(int fd, void* buffer, size_t bytes) {
  Gate& g = gate();
  if (!g.watching() || !g.layout.io_threads_reading()) return g.read(fd, buffer, bytes);
  g.threads_read.store(true, std::memory_order_release);
  Connection* c = g.connections.find(fd);
  if (c == nullptr || c->size() == 0) return g.read(fd, buffer, bytes);
  if (c->state == Hold::kHeld) return again();
  const size_t kept = c->size() < bytes ? c->size() : bytes;
  memcpy(buffer, c->first(), kept);
  c->begin += kept;   // an empty entry is dropped by the main thread
  return static_cast<ssize_t>(kept);
}

void gate_release(Connection* c, size_t cleared) {
  c->cleared = cleared;
  gate().connections.enter(c, Hold::kReady);
}

void gate_look_again(Connection* c, bool late) {
  Gate& g = gate();
  const ClientView* client = g.watching() ? g.layout.client_of(c->fd) : nullptr;
  if (client == nullptr || !ServerLayout::at_command_start(*client)) return gate_release(c, c->size());
  Missing missing;
  const Verdict verdict = judge(*client, c->first(), c->size(), false, &missing);
  if (verdict.good != 0) return gate_release(c, verdict.good);
  if (!late && c->rounds < kRoundsMax && verdict.cold) {
    ++c->rounds;
    if (ask(c, missing)) return;
  }
  g.work.timeouts.add();
  const bool whole = parse_command(c->first(), c->size(), &g.command) == Parse::kCommand;
  gate_release(c, whole ? g.command.bytes : c->size());
}

}  // namespace lunar::redis
