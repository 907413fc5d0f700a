// SPDX-License-Identifier: Apache-2.0
// See replica_link.h.
#include "replica_link.h"

#include <errno.h>

#include <cstring>

#include "command_window.h"

namespace lunar::redis {
namespace {

constexpr size_t kBufferBytes = 1 << 20;
constexpr size_t kLeftBytesMax = 64 << 10;      // the server's part of a command
constexpr size_t kCommandBytesMax = 256 << 10;  // a larger one is passed as it comes
constexpr size_t kRoomMin = 64 << 10;  // with less room, the rest moves to the front before a read
constexpr unsigned kWindowMin = 256, kWindowMax = 4096;
constexpr unsigned kRequestsMax = 32;  // of a wave

struct Link {
  int fd = -1;
  WindowCommand items[kWindowMax];  // commands of the stream, and bytes that are passed like one
  unsigned first = 0, count = 0;    // items that the server has not been given
  size_t parsed = 0;                // end of the bytes that are items, or were
  int database = 0;                 // chosen at `parsed`
  unsigned outstanding = 0;         // requests of the wave
  // bytes given to the server since the start; the same when the wait for the first command began
  uint64_t given = 0, held_at = 0;
  bool held = false;
  bool ended = false;   // the socket has no more: its end comes when all bytes are gone
  bool leave = false;   // bytes after the items are no command: they are passed, and the entry ends
  ConnectionList list;  // the entry, unless it is ready
};
constinit Link g_link;

void push(size_t end, bool done) {
  Link& l = g_link;
  l.items[l.first + l.count++] = {static_cast<uint32_t>(l.parsed), static_cast<uint32_t>(end),
                                  static_cast<uint16_t>(l.database), 0, done};
  l.parsed = end;
}

// Removes items and bytes that the server has been given.
void move_to_front(Connection* c) {
  Link& l = g_link;
  memmove(l.items, l.items + l.first, l.count * sizeof(WindowCommand));
  l.first = 0;
  // Moves bytes only if half of the buffer is free, so that they move seldom.
  if (kBufferBytes - c->end >= kRoomMin || c->begin < kBufferBytes / 2) return;
  const size_t by = c->begin;
  memmove(c->data, c->data + by, c->size());
  for (unsigned i = 0; i < l.count; ++i) {
    l.items[i].begin = l.items[i].begin < by ? 0 : l.items[i].begin - static_cast<uint32_t>(by);
    l.items[i].end -= static_cast<uint32_t>(by);
  }
  c->begin = 0;
  c->end -= by;
  l.parsed -= by;
}

void read_ahead(Connection* c) {
  Link& l = g_link;
  const size_t room = kBufferBytes - c->end;
  if (l.ended || l.leave || room < kRoomMin) return;
  const ssize_t got = gate().read(c->fd, c->data + c->end, room);
  if (got > 0)
    c->end += static_cast<size_t>(got);
  else
    l.ended = got == 0 || (errno != EAGAIN && errno != EINTR);
}

// Parses the first command, of which the server's part lies at the start of the buffer.
Parse parse_first(const Connection& c, const Progress& progress, Command* out) {
  if (progress.left == 0) return parse_command(c.data, c.end, out);
  return parse_rest(c.data, c.end, progress.taken, progress.left, progress.bulk, out);
}

// Passes the rest unparsed; the next read determines the server's position again.
void pass_the_rest(const Connection& c) {
  Link& l = g_link;
  if (l.parsed < c.end) push(c.end, true);
  l.leave = true;
}

void parse_items(const Connection& c) {
  Link& l = g_link;
  Command& command = gate().command;
  for (const unsigned most = window_commands(kWindowMin, kWindowMax);
       l.count + 1 < most && l.parsed < c.end && !l.leave;) {
    const Parse parse = parse_command(c.data + l.parsed, c.end - l.parsed, &command);
    if (parse == Parse::kMore && command.bytes <= kCommandBytesMax && !l.ended && l.count != 0)
      return;
    if (parse != Parse::kCommand)
      return pass_the_rest(c);  // also the start of a command if there is nothing else
    const int chosen = chosen_database(command);
    push(l.parsed + command.bytes, command.kept == 0 || chosen >= 0);
    if (chosen >= 0) l.database = chosen;
  }
}

void begin_wave(Connection* c, uint64_t bytes_max) {
  Gate& g = gate();
  Link& l = g_link;
  Share* share = g.shares.of(&g_link);
  c->hold = ++g.holds;
  look_up_wave(c->data, l.items + l.first, l.count, kRoundsMax, bytes_max,
               [&](const NonresidentRanges& missing) {
                 if (share == nullptr || !g.fetcher.submit(c->fd, c->hold, share, missing))
                   return false;
                 g.work.rounds.add();
                 g.work.overlapped_reads.add(missing.count);
                 return ++l.outstanding < kRequestsMax;
               });
  if (l.outstanding != 0)
    g.fetcher.flush();
  else if (l.count != 0)
    l.items[l.first].done = true;  // no request is in progress that would end its wait
}

// Gives the server whole commands, as many as fit; if the first does not fit, a part of it.
size_t pass_done(Connection* c, void* buffer, size_t bytes) {
  Link& l = g_link;
  size_t end = c->begin;
  while (l.count != 0 && l.items[l.first].done) {
    const WindowCommand& item = l.items[l.first];
    if (item.end - c->begin > bytes) {
      if (end == c->begin) end = c->begin + bytes;
      break;
    }
    end = item.end;
    ++l.first;
    --l.count;
  }
  const size_t n = end - c->begin;
  memcpy(buffer, c->first(), n);
  c->begin = end;
  l.given += n;
  return n;
}

// Whether a complete command follows the window that was passed on. If so, the gate must not wait
// for the socket.
bool more_to_scan(const Connection& c) {
  const Link& l = g_link;
  return l.parsed < c.end &&
         parse_command(c.data + l.parsed, c.end - l.parsed, &gate().command) != Parse::kMore;
}

// Sets the entry's state after a read.
void settle(Connection* c) {
  Gate& g = gate();
  Link& l = g_link;
  if (l.count != 0 && l.items[l.first].done) return g.connections.enter(c, Hold::kReady);
  if (l.count == 0) {  // waits for the socket
    l.held = false;
    if (l.leave || (l.ended && c->size() == 0) || !g.watching())
      g.connections.drop(c);
    else if (more_to_scan(*c))
      g.connections.enter(c, Hold::kReady);
    else
      g.connections.enter(c, Hold::kPartial, &l.list);
    return;
  }
  if (!l.held || l.held_at != l.given) {
    l.held = true;
    l.held_at = l.given;
    c->since_ns = sys::now_ns();
    c->deadline_ns = c->since_ns + uint64_t{g.options.hold_ms_max} * 1000000;
    g.work.held.add();
  }
  c->late = false;
  g.connections.enter(c, Hold::kHeld, &l.list);
}

// Skips bytes that a thread of a module has read in the main thread's place, with the server's
// lock.
void skip_what_was_taken(const Connection& c) {
  Link& l = g_link;
  while (l.count != 0 && l.items[l.first].end <= c.begin) ++l.first, --l.count;
  if (l.count != 0 && l.items[l.first].begin < c.begin) l.items[l.first].done = true;
  if (l.parsed < c.begin) l.parsed = c.begin;
}

// Bytes up to the end of the argument that the server is reading; 0: it is between two arguments.
uint64_t rest_of_argument(const Progress& progress) {
  const uint64_t end = progress.bulk < 0 ? 0 : static_cast<uint64_t>(progress.bulk) + 2;
  return end > progress.bytes ? end - progress.bytes : 0;
}

// Makes an entry that begins with the server's part of its command. nullptr: no memory.
Connection* make_entry(int fd, int database, const Progress& progress) {
  Gate& g = gate();
  Link& l = g_link;
  Connection* c = g.connections.add(fd);
  if (c == nullptr || !g.connections.reserve(c, kBufferBytes)) {
    if (c != nullptr) g.connections.drop(c);
    return nullptr;
  }
  c->link = true;
  l.fd = fd;
  l.first = l.count = 0;
  l.outstanding = 0;
  l.held = l.ended = l.leave = false;
  l.database = database;
  memcpy(c->data, progress.text, progress.bytes);
  c->begin = c->end = l.parsed = progress.bytes;
  g.connections.enter(c, Hold::kPartial, &l.list);
  return c;
}

// Passes the rest of the command of which the server has a part.
void pass_begun_command(Connection* c, const Progress& progress) {
  Gate& g = gate();
  Link& l = g_link;
  read_ahead(c);
  l.parsed = 0;
  for (bool first = true; l.parsed < progress.bytes || (first && progress.left != 0);
       first = false) {
    const Parse parse = l.parsed == c->end ? Parse::kMore
                        : first            ? parse_first(*c, progress, &g.command)
                                : parse_command(c->data + l.parsed, c->end - l.parsed, &g.command);
    if (parse != Parse::kCommand) {
      l.parsed = progress.bytes;
      pass_the_rest(*c);
      return;
    }
    l.parsed += g.command.bytes;
    if (l.parsed <= progress.bytes) continue;
    const size_t end = l.parsed;
    l.parsed = progress.bytes;
    push(end, true);
  }
}

}  // namespace

ssize_t link_input(Connection* c, void* buffer, size_t bytes) {
  Gate& g = gate();
  Link& l = g_link;
  if (c->state == Hold::kHeld) return gate_defer();
  skip_what_was_taken(*c);
  move_to_front(c);
  if (!g.watching()) {  // all kept bytes go on
    for (unsigned i = 0; i < l.count; ++i) l.items[i].done = true;
    pass_the_rest(*c);
  } else {
    if (c->late && l.count != 0 && !l.items[l.first].done) {
      g.work.timeouts.add();
      l.items[l.first].done = true;
    }
    read_ahead(c);
    parse_items(*c);
    if (l.outstanding == 0 && l.count != 0) begin_wave(c, client_bytes_max());
  }
  const size_t n = pass_done(c, buffer, bytes);
  const bool over = n == 0 && l.count == 0 && (l.leave || l.ended);
  const int fd = c->fd;
  settle(c);
  if (n != 0) return static_cast<ssize_t>(n);
  if (over) return g.read(fd, buffer, bytes);
  g.deferred = true;
  errno = EAGAIN;
  return -1;
}

bool link_begin(int fd, void* buffer, size_t bytes, ssize_t* got) {
  Gate& g = gate();
  const Link& l = g_link;
  const ClientView* master = g.layout.master_of(fd);
  Progress progress;
  // there is a link already
  if (const Connection* other = l.fd >= 0 ? g.connections.find(l.fd) : nullptr;
      other != nullptr && other->link)
    return false;
  if (master == nullptr || !g.layout.progress_of_master(*master, buffer, &progress)) return false;
  if (const uint64_t rest = rest_of_argument(progress); rest > kLeftBytesMax) {
    *got = g.read(fd, buffer, bytes < rest ? bytes : rest);
    return true;
  }
  if (progress.bytes > kLeftBytesMax) return false;
  Connection* c = make_entry(fd, g.layout.database_of(*master), progress);
  if (c == nullptr) return false;
  if (progress.bytes != 0 || progress.left != 0) pass_begun_command(c, progress);
  *got = link_input(c, buffer, bytes);
  return true;
}

bool link_request_done(Connection*) { return g_link.outstanding != 0 && --g_link.outstanding == 0; }

Connection* link_waiting() {
  Connection* c = g_link.list.head;
  return c != nullptr && c->state == Hold::kHeld ? c : nullptr;
}

}  // namespace lunar::redis
