// SPDX-License-Identifier: Apache-2.0
// See aof_ahead.h.
#include "aof_ahead.h"

#include <stdio.h>

#include <cstring>

#include "ahead.h"
#include "elf/program_got.h"
#include "gate_inside.h"
#include "key_lookup.h"
#include "pager/pager.h"
#include "sys/arena.h"
#include "sys/file.h"
#include "sys/mem.h"

namespace lunar::redis {
namespace {

constexpr size_t kBufferBytes = 512 << 10;
constexpr unsigned kWindowMin = 512, kWindowMax = 2048, kPagesEach = 32;
constexpr unsigned kWavesMax = 12, kRequestsMax = 32;
constexpr unsigned kLookEvery = 16;  // commands
constexpr uint64_t kBudgetPart = 4;  // of the DRAM budget, for a window

struct Item {
  uint32_t begin = 0, end = 0;
  uint16_t database = 0;
  bool done = false;
};

// The window whose pages come while the server is in the one before.
struct Window {
  uint64_t at = 0, end = 0;  // of the file: its first command, and what is behind its last
  unsigned count = 0;        // 0: there is none
  unsigned waves = 0;
  bool done = false;   // no command lacks anything that is to be fetched
  uint64_t asked = 0;  // bytes
  Item items[kWindowMax];
};

struct Loading {
  bool (*known)() = nullptr;
  char* (*fgets)(char*, int, FILE*) = nullptr;
  FILE* file = nullptr;  // the one that the windows and `database` are of
  uint64_t end = 0;      // of the window that the server is in
  unsigned left = 0;     // commands of it that the server has not begun
  int database = 0;      // behind all windows
  char* buffer = nullptr;
  Window next;
  AheadFetch fetch[kRequestsMax];
};
constinit Loading g_loading;

unsigned window() {
  const uint64_t items = pager_budget_pages() / kPagesEach;
  return items < kWindowMin   ? kWindowMin
         : items > kWindowMax ? kWindowMax
                              : static_cast<unsigned>(items);
}

// Lines that begin with '#' (times) are no commands. How far they go.
size_t skip_notes(const char* text, size_t at, size_t bytes) {
  while (at < bytes && text[at] == '#') {
    const auto* end = static_cast<const char*>(memchr(text + at, '\n', bytes - at));
    if (end == nullptr) return bytes;
    at = static_cast<size_t>(end - text) + 1;
  }
  return at;
}

// The commands from `at` of the file on become the next window.
void read_window(int fd, uint64_t at) {
  Loading& l = g_loading;
  Window& w = l.next;
  w.count = w.waves = 0;
  w.done = false;
  w.asked = 0;
  if (l.buffer == nullptr)
    l.buffer = static_cast<char*>(map_private(kBufferBytes, ForkPolicy::kInherit));
  const int64_t got = l.buffer == nullptr ? -1 : sys::read_at(fd, l.buffer, kBufferBytes, at);
  const size_t bytes = got <= 0 ? 0 : static_cast<size_t>(got);
  Command& command = gate().command;
  size_t place = 0;
  for (const unsigned most = window(); w.count < most;) {
    place = skip_notes(l.buffer, place, bytes);
    if (place == bytes ||
        parse_command(l.buffer + place, bytes - place, &command) != Parse::kCommand)
      break;
    const int chosen = chosen_database(command);
    w.items[w.count++] = {static_cast<uint32_t>(place),
                          static_cast<uint32_t>(place + command.bytes),
                          static_cast<uint16_t>(l.database), chosen >= 0};
    if (chosen >= 0) l.database = chosen;
    place += command.bytes;
  }
  w.at = at + (w.count == 0 ? 0 : w.items[0].begin);
  w.end = at + place;
}

// Adds what is missing for an item. True: nothing.
bool look_up(const Item& item, bool first, NonresidentRanges* missing) {
  Gate& g = gate();
  Command& command = g.command;
  const char* text = g_loading.buffer + item.begin;
  if (parse_command(text, item.end - item.begin, &command) != Parse::kCommand || command.kept == 0)
    return true;
  const CommandKeys* keys = find_command_keys(command.argument[0]);
  const DatabaseView* where = g.layout.database(item.database);
  return keys == nullptr || where == nullptr ||
         look_up_command(g.layout, *where, *keys, command, first, nullptr, missing);
}

bool under_way() {
  for (const AheadFetch& fetch : g_loading.fetch)
    if (fetch.under_way) return true;
  return false;
}

// False: nothing more is asked for, for this window.
bool ask(AheadFetch* fetch) {
  Gate& g = gate();
  Window& w = g_loading.next;
  if (!ahead_fetch(fetch)) return false;
  g.work.rounds.add();
  g.work.ranges.add(fetch->missing.count);
  g.fetcher.flush();
  w.asked += fetch->missing.bytes;
  // large values: the rest faults
  return w.asked < pager_budget_pages() * sys::page_bytes() / kBudgetPart;
}

// One step of all lookups of the window that are not done.
void begin_wave() {
  Window& w = g_loading.next;
  AheadFetch* fetch = g_loading.fetch;
  AheadFetch* const end = fetch + kRequestsMax;
  bool more = w.waves != kWavesMax;
  w.done = true;
  fetch->missing.clear();
  for (unsigned i = 0; more && i < w.count && fetch != end; ++i) {
    Item& item = w.items[i];
    if (item.done) continue;
    item.done = look_up(item, w.waves == 0, &fetch->missing);
    w.done &= item.done;
    if (!fetch->missing.full()) continue;
    more = ask(fetch++);
    if (fetch != end) fetch->missing.clear();
  }
  if (more && fetch != end && fetch->missing.count != 0) more = ask(fetch);
  if (!more) w.done = true;
  ++w.waves;
}

// Asks for what the next window lacks once what it lacked is in. The server is between two
// commands. `wait`: until the window is complete.
void go_on(bool wait) {
  Window& w = g_loading.next;
  for (;;) {
    gate_take_what_is_done();
    if (under_way()) {
      if (!wait) return;
      gate().fetcher.help();
      continue;
    }
    if (w.count == 0 || w.done) return;
    begin_wave();
  }
}

// The server begins a command whose first line, of `line` bytes, it has just read from `file`.
void begin_command(FILE* file, size_t line) {
  Loading& l = g_loading;
  if (file == l.file && l.left != 0) {
    if (--l.left % kLookEvery == 0) go_on(false);
    return;
  }
  if (!pager_active() || !l.known() || !gate_start_fetching()) return;
  const off_t behind = ftello(file);
  const int fd = fileno(file);
  if (behind < static_cast<off_t>(line) || fd < 0) return;
  const uint64_t at = static_cast<uint64_t>(behind) - line;
  go_on(true);
  if (file != l.file || at < l.end || at != l.next.at || l.next.count == 0) {
    if (file != l.file || at < l.end)
      l.database = 0;  // another file; what was skipped unseen is no SELECT
    read_window(fd, at);
    go_on(true);
  }
  l.file = file;
  l.left = l.next.count == 0 ? 0 : l.next.count - 1;
  l.end = l.next.end;
  if (l.next.count != 0) read_window(fd, l.end);
  go_on(false);
}

char* hook_fgets(char* buffer, int size, FILE* file) {
  char* line = g_loading.fgets(buffer, size, file);
  if (line != nullptr && line[0] == '*' && file != nullptr &&
      pthread_equal(pthread_self(), gate().main_thread) != 0)
    begin_command(file, strlen(line));
  return line;
}

}  // namespace

void aof_ahead_watch(bool (*known)()) {
  Loading& l = g_loading;
  l.known = known;
  l.fgets = reinterpret_cast<char* (*)(char*, int, FILE*)>(program_calls("fgets"));
  void* before = nullptr;
  ErrorText why;
  if (l.fgets != nullptr)
    (void)program_redirect("fgets", reinterpret_cast<void*>(hook_fgets), &before, &why);
}

}  // namespace lunar::redis
