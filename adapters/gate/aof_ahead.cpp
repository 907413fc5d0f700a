// SPDX-License-Identifier: Apache-2.0
// See aof_ahead.h.
#include "aof_ahead.h"

#include <stdio.h>

#include <cstring>

#include "ahead.h"
#include "command_window.h"
#include "elf/program_got.h"
#include "gate_inside.h"
#include "pager/pager.h"
#include "sys/arena.h"
#include "sys/file.h"
#include "sys/mem.h"

namespace lunar::redis {
namespace {

constexpr size_t kBufferBytes = 512 << 10;
constexpr unsigned kWindowMin = 512, kWindowMax = 2048;
constexpr unsigned kStepsMax = 12;     // of a lookup
constexpr unsigned kRequestsMax = 32;  // of a wave
constexpr unsigned kLookEvery = 16;    // commands
constexpr uint64_t kBudgetPart = 4;    // of the DRAM budget, for a window

// The window whose pages are fetched while the server is in the window before it.
struct Window {
  uint64_t at = 0, end = 0;  // positions in the file: its first command, and the end of its last
  unsigned count = 0;        // 0: there is none
  bool done = false;         // nothing more is requested for it
  uint64_t requested = 0;    // bytes
  WindowCommand commands[kWindowMax];
};

struct Loading {
  bool (*known)() = nullptr;
  char* (*fgets)(char*, int, FILE*) = nullptr;
  FILE* file = nullptr;  // the file of the windows and of `database`
  uint64_t end = 0;      // of the window that the server is in
  unsigned left = 0;     // commands of that window that the server has not begun
  int database = 0;      // chosen after all windows
  char* buffer = nullptr;
  Window next;
  AheadFetch fetch[kRequestsMax];
};
constinit Loading g_loading;

// The end of the lines at `at` that begin with '#' (times), which are no commands.
size_t skip_notes(const char* text, size_t at, size_t bytes) {
  while (at < bytes && text[at] == '#') {
    const auto* end = static_cast<const char*>(memchr(text + at, '\n', bytes - at));
    if (end == nullptr) return bytes;
    at = static_cast<size_t>(end - text) + 1;
  }
  return at;
}

// Makes the commands from position `at` of the file on the next window.
void read_window(int fd, uint64_t at) {
  Loading& l = g_loading;
  Window& w = l.next;
  w.count = 0;
  w.done = false;
  w.requested = 0;
  if (l.buffer == nullptr)
    l.buffer = static_cast<char*>(map_private(kBufferBytes, ForkPolicy::kInherit));
  const int64_t got = l.buffer == nullptr ? -1 : sys::read_at(fd, l.buffer, kBufferBytes, at);
  const size_t bytes = got <= 0 ? 0 : static_cast<size_t>(got);
  Command& command = gate().command;
  size_t place = 0;
  for (const unsigned most = window_commands(kWindowMin, kWindowMax); w.count < most;) {
    place = skip_notes(l.buffer, place, bytes);
    if (place == bytes ||
        parse_command(l.buffer + place, bytes - place, &command) != Parse::kCommand)
      break;
    const int chosen = chosen_database(command);
    w.commands[w.count++] = {static_cast<uint32_t>(place),
                             static_cast<uint32_t>(place + command.bytes),
                             static_cast<uint16_t>(l.database), 0, chosen >= 0};
    if (chosen >= 0) l.database = chosen;
    place += command.bytes;
  }
  w.at = at + (w.count == 0 ? 0 : w.commands[0].begin);
  w.end = at + place;
}

bool under_way() {
  for (const AheadFetch& fetch : g_loading.fetch)
    if (fetch.under_way) return true;
  return false;
}

// The window is done when a wave requests nothing, or when all waves together have requested their
// part of the budget: the rest, of large values, faults.
void begin_wave() {
  Gate& g = gate();
  Window& w = g_loading.next;
  const uint64_t before = w.requested,
                 most = pager_budget_pages() * sys::page_bytes() / kBudgetPart;
  AheadFetch* fetch = g_loading.fetch;
  AheadFetch* const end = fetch + kRequestsMax;
  look_up_wave(g_loading.buffer, w.commands, w.count, kStepsMax, most - before,
               [&](const NonresidentRanges& missing) {
                 if (fetch == end) return false;
                 fetch->missing = missing;
                 if (!ahead_fetch(fetch++)) return false;
                 g.work.rounds.add();
                 g.work.overlapped_reads.add(missing.count);
                 w.requested += missing.bytes;
                 return true;
               });
  g.fetcher.flush();
  w.done = w.requested == before || w.requested >= most;
}

// Begins the next wave of the next window when the pages of the last wave are in DRAM. Called
// between two commands of the server. `wait`: waits until the window is complete.
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
    // Not if a later place in the same file was reached unseen: there was no SELECT on the way.
    if (file != l.file || at < l.end) l.database = 0;
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
  if (line != nullptr && line[0] == '*' && file != nullptr && gate().on_main_thread())
    begin_command(file, strlen(line));
  return line;
}

}  // namespace

void aof_ahead_watch(bool (*known)()) {
  Loading& l = g_loading;
  l.known = known;
  ErrorText why;
  (void)program_redirect("fgets", hook_fgets, &l.fgets, &why);
}

}  // namespace lunar::redis
