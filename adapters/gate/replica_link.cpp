// SPDX-License-Identifier: Apache-2.0
// See replica_link.h.
#include "replica_link.h"

#include <errno.h>

#include <cstring>

#include "key_lookup.h"
#include "pager/pager.h"

namespace lunar::redis {
namespace {

constexpr size_t kBufferBytes = 1 << 20;
constexpr size_t kLeftBytesMax = 64 << 10;      // of a command that the server has a part of
constexpr size_t kCommandBytesMax = 256 << 10;  // a larger one is passed as it comes
constexpr size_t kRoomMin = 64 << 10;  // less is not read into: the rest moves to the front first
constexpr unsigned kWindowMin = 256, kWindowMax = 4096, kPagesEach = 32;
constexpr unsigned kRequestsMax = 32;  // of a wave

// A command of the stream, or what is passed like one; [begin, end) of the buffer.
struct Item {
  uint32_t begin = 0, end = 0;
  uint16_t database = 0;
  uint8_t rounds = 0;
  bool done = false;
};

struct Link {
  int fd = -1;
  Item items[kWindowMax];
  unsigned first = 0, count = 0;  // items that the server has not been given
  size_t parsed = 0;              // bytes that are items, or have been
  int database = 0;               // behind them
  unsigned outstanding = 0;       // requests of the wave
  // bytes, since the start; when the wait for the first command began
  uint64_t given = 0, held_at = 0;
  bool held = false;
  bool ended = false;   // the socket has no more: its end comes when all bytes are gone
  bool leave = false;   // behind the items lies what is no command: passed, and the entry given up
  ConnectionList list;  // the entry, when it neither is ready nor anything else waits for it
};
constinit Link g_link;

unsigned window() {
  const uint64_t items = pager_budget_pages() / kPagesEach;
  return items < kWindowMin   ? kWindowMin
         : items > kWindowMax ? kWindowMax
                              : static_cast<unsigned>(items);
}

void push(size_t end, bool done) {
  Link& l = g_link;
  l.items[l.first + l.count++] = {static_cast<uint32_t>(l.parsed), static_cast<uint32_t>(end),
                                  static_cast<uint16_t>(l.database), 0, done};
  l.parsed = end;
}

// Items and bytes that the server has been given make room.
void move_to_front(Connection* c) {
  Link& l = g_link;
  memmove(l.items, l.items + l.first, l.count * sizeof(Item));
  l.first = 0;
  // seldom: else most of it moves for each window
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

// What the server has of the first command lies at the start of the buffer. Where that command
// ends.
Parse parse_first(const Connection& c, const Progress& progress, Command* out) {
  if (progress.left == 0) return parse_command(c.data, c.end, out);
  return parse_rest(c.data, c.end, progress.taken, progress.left, progress.bulk, out);
}

// What comes behind the items is passed as one, and the server is asked anew where it is.
void pass_the_rest(const Connection& c) {
  Link& l = g_link;
  if (l.parsed < c.end) push(c.end, true);
  l.leave = true;
}

void parse_items(const Connection& c) {
  Link& l = g_link;
  Command& command = gate().command;
  for (const unsigned most = window(); l.count + 1 < most && l.parsed < c.end && !l.leave;) {
    const Parse parse = parse_command(c.data + l.parsed, c.end - l.parsed, &command);
    if (parse == Parse::kMore && command.bytes <= kCommandBytesMax && !l.ended && l.count != 0)
      return;
    if (parse != Parse::kCommand)
      return pass_the_rest(c);  // the start of a command, too, when it is all there is
    const int chosen = chosen_database(command);
    push(l.parsed + command.bytes, command.kept == 0 || chosen >= 0);
    if (chosen >= 0) l.database = chosen;
  }
}

// Notes what is missing. True: nothing.
bool look_up(const Connection& c, Item& item, NonresidentRanges* missing) {
  Gate& g = gate();
  if (parse_command(c.data + item.begin, item.end - item.begin, &g.command) != Parse::kCommand)
    return true;
  if (item.rounds == 0) g.work.commands.add();
  const CommandKeys* keys = find_command_keys(g.command.argument[0]);
  if (keys == nullptr) {
    g.work.unknown.add();
    return true;
  }
  const DatabaseView* where = g.layout.database(item.database);
  return where == nullptr ||
         look_up_command(g.layout, *where, *keys, g.command, item.rounds == 0, nullptr, missing);
}

// Nothing may be asked for: the rest waits for a wave, or faults.
bool ask(Connection* c, Share* share, const NonresidentRanges& missing) {
  Gate& g = gate();
  Request* request = share == nullptr ? nullptr : g.fetcher.spare();
  if (request == nullptr) return false;
  request->fd = c->fd;
  request->hold = c->hold;
  request->pages = missing;
  request->share = share;
  share->bytes += missing.bytes;
  ++share->requests;
  g.work.rounds.add();
  g.work.ranges.add(missing.count);
  g.fetcher.submit(request);
  ++g_link.outstanding;
  return true;
}

// One step of all lookups that are not done, in order, as far as a wave may go.
void begin_wave(Connection* c, uint64_t bytes_max) {
  Gate& g = gate();
  Link& l = g_link;
  Share* share = g.shares.of(&g_link);
  NonresidentRanges missing{};
  c->hold = ++g.holds;
  uint64_t bytes = 0;
  bool more = true;
  for (unsigned i = l.first; i < l.first + l.count && more; ++i) {
    Item& item = l.items[i];
    if (item.done) continue;
    missing.bytes_max = bytes_max - bytes;
    if (look_up(*c, item, &missing) || item.rounds == kRoundsMax) {
      item.done = true;
      continue;
    }
    ++item.rounds;
    if (!missing.full()) continue;
    more = ask(c, share, missing) && l.outstanding < kRequestsMax &&
           (bytes += missing.bytes) < bytes_max;
    missing.clear();
  }
  if (missing.count != 0) (void)ask(c, share, missing);
  if (l.outstanding != 0)
    g.fetcher.flush();
  else if (l.count != 0)
    l.items[l.first].done = true;  // nothing is under way that would end its wait
}

// Whole commands, as many as fit; of one that does not, a part.
size_t give(Connection* c, void* buffer, size_t bytes) {
  Link& l = g_link;
  size_t end = c->begin;
  while (l.count != 0 && l.items[l.first].done) {
    const Item& item = l.items[l.first];
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

// Behind a window that the server has been given there is more than the start of a command: the
// socket may stay silent.
bool more_to_scan(const Connection& c) {
  const Link& l = g_link;
  return l.parsed < c.end &&
         parse_command(c.data + l.parsed, c.end - l.parsed, &gate().command) != Parse::kMore;
}

// What the entry waits for, after a read.
void settle(Connection* c) {
  Gate& g = gate();
  Link& l = g_link;
  if (l.count != 0 && l.items[l.first].done) return g.connections.enter(c, Hold::kReady);
  if (l.count == 0) {  // the socket tells when there is more
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

// Bytes that a thread of a module took in our place, with the server's lock.
void skip_what_was_taken(const Connection& c) {
  Link& l = g_link;
  while (l.count != 0 && l.items[l.first].end <= c.begin) ++l.first, --l.count;
  if (l.count != 0 && l.items[l.first].begin < c.begin) l.items[l.first].done = true;
  if (l.parsed < c.begin) l.parsed = c.begin;
}

}  // namespace

ssize_t link_input(Connection* c, void* buffer, size_t bytes) {
  Gate& g = gate();
  Link& l = g_link;
  if (c->state == Hold::kHeld) return gate_defer();
  skip_what_was_taken(*c);
  move_to_front(c);
  if (!g.watching()) {  // all that is here goes on
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
  const size_t n = give(c, buffer, bytes);
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
  Link& l = g_link;
  const ClientView* master = g.layout.master_of(fd);
  Progress progress;
  // there is one
  if (const Connection* other = l.fd >= 0 ? g.connections.find(l.fd) : nullptr;
      other != nullptr && other->link)
    return false;
  if (master == nullptr || !g.layout.progress_of_master(*master, buffer, &progress)) return false;
  if (progress.bulk >= 0 && progress.bytes < static_cast<uint64_t>(progress.bulk) + 2 &&
      static_cast<uint64_t>(progress.bulk) + 2 - progress.bytes >
          kLeftBytesMax) {  // in a large argument: up to its end
    const uint64_t rest = static_cast<uint64_t>(progress.bulk) + 2 - progress.bytes;
    *got = g.read(fd, buffer, bytes < rest ? bytes : rest);
    return true;
  }
  if (progress.bytes > kLeftBytesMax) return false;
  Connection* c = g.connections.add(fd);
  if (c == nullptr || !g.connections.reserve(c, kBufferBytes)) {
    if (c != nullptr) g.connections.drop(c);
    return false;
  }
  c->link = true;
  l.fd = fd;
  l.first = l.count = 0;
  l.outstanding = 0;
  l.held = l.ended = l.leave = false;
  l.database = g.layout.database_of(*master);
  memcpy(c->data, progress.text, progress.bytes);
  c->begin = c->end = l.parsed = progress.bytes;
  g.connections.enter(c, Hold::kPartial, &l.list);
  if (progress.bytes != 0 || progress.left != 0) {  // the rest of what the server is in is passed
    read_ahead(c);
    l.parsed = 0;
    for (bool first = true; l.parsed < progress.bytes || (first && progress.left != 0);
         first = false) {
      const Parse parse = l.parsed == c->end ? Parse::kMore
                          : first
                              ? parse_first(*c, progress, &g.command)
                              : parse_command(c->data + l.parsed, c->end - l.parsed, &g.command);
      if (parse != Parse::kCommand) {
        l.parsed = progress.bytes;
        pass_the_rest(*c);
        break;
      }
      l.parsed += g.command.bytes;
      if (l.parsed <= progress.bytes) continue;
      const size_t end = l.parsed;
      l.parsed = progress.bytes;
      push(end, true);
    }
  }
  *got = link_input(c, buffer, bytes);
  return true;
}

bool link_request_done(Connection*) { return g_link.outstanding != 0 && --g_link.outstanding == 0; }

Connection* link_waiting() {
  Connection* c = g_link.list.head;
  return c != nullptr && c->state == Hold::kHeld ? c : nullptr;
}

}  // namespace lunar::redis
