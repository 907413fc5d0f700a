// SPDX-License-Identifier: Apache-2.0
// See aof_ahead.h.
#include "aof_ahead.h"

#include <pthread.h>
#include <stdio.h>

#include <cstring>

#include "key_lookup.h"
#include "pager/pager.h"
#include "program_got.h"
#include "sys/arena.h"
#include "sys/file.h"

namespace lunar::redis {
namespace {

constexpr size_t kBufferBytes = 512 << 10;
constexpr unsigned kWindowMin = 256, kWindowMax = 2048, kPagesEach = 32;
constexpr unsigned kRoundsMax = 12;
constexpr unsigned kBatchRanges = 1024;
constexpr uint64_t kBudgetPart = 4;

struct Item {
  uint32_t begin = 0, end = 0;
  uint16_t database = 0;
  bool done = false;
};

struct Loading {
  const ServerLayout* layout = nullptr;
  bool (*known)() = nullptr;
  pthread_t main_thread{};
  char* (*fgets)(char*, int, FILE*) = nullptr;
  FILE* file = nullptr;  // the one that `left` and `database` are of
  uint64_t next = 0;     // where the window ends in it
  unsigned left = 0;     // commands of the window that the server has not begun
  int database = 0;      // behind the window
  char* buffer = nullptr;
  uint64_t asked = 0;  // bytes, for this window
  unsigned range_count = 0;
  lunar_range ranges[kBatchRanges] = {};
  Command command;
  Item items[kWindowMax];
};
constinit Loading g_loading;

unsigned window() {
  const uint64_t items = pager_budget_pages() / kPagesEach;
  return items < kWindowMin ? kWindowMin : items > kWindowMax ? kWindowMax : static_cast<unsigned>(items);
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

// Commands of the window that begins at `at` of the file.
unsigned parse_window(size_t bytes, uint64_t at) {
  Loading& l = g_loading;
  unsigned count = 0;
  size_t place = 0;
  for (const unsigned most = window(); count < most;) {
    place = skip_notes(l.buffer, place, bytes);
    if (place == bytes || parse_command(l.buffer + place, bytes - place, &l.command) != Parse::kCommand) break;
    const int chosen =
        l.command.kept == 2 && same_word(l.command.argument[0], "SELECT") ? small_number(l.command.argument[1]) : -1;
    l.items[count++] = {static_cast<uint32_t>(place), static_cast<uint32_t>(place + l.command.bytes),
                        static_cast<uint16_t>(l.database), chosen >= 0};
    if (chosen >= 0) l.database = chosen;
    place += l.command.bytes;
  }
  l.next = at + place;
  return count;
}

// Adds what is missing for an item. True: nothing.
bool look_up(const Item& item, bool first, NonresidentRanges* missing) {
  Loading& l = g_loading;
  if (parse_command(l.buffer + item.begin, item.end - item.begin, &l.command) != Parse::kCommand || l.command.kept == 0)
    return true;
  const CommandKeys* keys = find_command_keys(l.command.argument[0]);
  const DatabaseView* where = l.layout->database(item.database);
  return keys == nullptr || where == nullptr ||
         look_up_command(*l.layout, *where, *keys, l.command, first, nullptr, missing);
}

// Ranges for one call at the device's queue depth: each call waits for its last read.
void fetch(NonresidentRanges* missing, bool all) {
  Loading& l = g_loading;
  for (unsigned i = 0; i < missing->count; ++i) l.ranges[l.range_count++] = missing->range[i];
  l.asked += missing->bytes;
  missing->clear();
  if (l.range_count == 0 || (!all && l.range_count + kRangesMax <= kBatchRanges)) return;
  (void)pager_prefetch(l.ranges, l.range_count);
  l.range_count = 0;
}

void bring_in(unsigned count) {
  Loading& l = g_loading;
  NonresidentRanges missing{};
  const uint64_t asked_max = pager_budget_pages() * page_bytes() / kBudgetPart;  // large values: the rest faults
  bool again = true;
  l.asked = 0;
  for (unsigned round = 0; again && round < kRoundsMax && l.asked < asked_max; ++round) {
    again = false;
    for (unsigned i = 0; i < count && l.asked + missing.bytes < asked_max; ++i) {
      if (l.items[i].done) continue;
      l.items[i].done = look_up(l.items[i], round == 0, &missing);
      again |= !l.items[i].done;
      if (missing.full()) fetch(&missing, false);
    }
    fetch(&missing, true);
  }
}

// The server begins a command whose first line, of `line` bytes, it has just read from `file`.
void begin_command(FILE* file, size_t line) {
  Loading& l = g_loading;
  if (file == l.file && l.left != 0) {
    --l.left;
    return;
  }
  if (!pager_active() || !l.known()) return;
  const off_t behind = ftello(file);
  const int fd = fileno(file);
  if (behind < static_cast<off_t>(line) || fd < 0) return;
  const uint64_t at = static_cast<uint64_t>(behind) - line;
  if (file != l.file || at < l.next) l.database = 0;  // another file; what was skipped unseen is no SELECT
  l.file = file;
  if (l.buffer == nullptr) l.buffer = static_cast<char*>(map_private(kBufferBytes, ForkPolicy::kInherit));
  const int64_t got = l.buffer == nullptr ? -1 : sys::read_at(fd, l.buffer, kBufferBytes, at);
  const unsigned count = got <= 0 ? 0 : parse_window(static_cast<size_t>(got), at);
  l.left = count == 0 ? 0 : count - 1;
  bring_in(count);
}

char* hook_fgets(char* buffer, int size, FILE* file) {
  Loading& l = g_loading;
  char* line = l.fgets(buffer, size, file);
  if (line != nullptr && line[0] == '*' && file != nullptr && pthread_equal(pthread_self(), l.main_thread) != 0)
    begin_command(file, strlen(line));
  return line;
}

}  // namespace

void aof_ahead_watch(const ServerLayout& layout, bool (*known)()) {
  Loading& l = g_loading;
  l.layout = &layout;
  l.known = known;
  l.main_thread = pthread_self();
  l.fgets = reinterpret_cast<char* (*)(char*, int, FILE*)>(program_calls("fgets"));
  void* before = nullptr;
  ErrorText why;
  if (l.fgets != nullptr) (void)program_redirect("fgets", reinterpret_cast<void*>(hook_fgets), &before, &why);
}

}  // namespace lunar::redis
