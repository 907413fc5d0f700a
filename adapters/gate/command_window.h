// SPDX-License-Identifier: Apache-2.0
// A window of commands that the server will run one after the other, and whose keys the gate looks
// up together: those of an append-only file (aof_ahead.h), and of a master's stream
// (replica_link.h).
//
// The lookups go in waves. A wave takes one step of each lookup that is not done, and requests what
// the steps lack; when that is in DRAM, the next wave begins. The window is bounded by the DRAM
// budget, because pages that wait for their command must not push each other out.
//
// Threading: the main thread, while nothing changes the server's tables. Allocates nothing.
#pragma once
#include <cstdint>

#include "key_lookup.h"

namespace lunar::redis {

struct WindowCommand {
  uint32_t begin = 0, end = 0;  // bytes of the buffer
  uint16_t database = 0;
  uint8_t rounds = 0;
  bool done = false;  // it lacks nothing that the gate shall fetch
};

// The maximum number of commands for this DRAM budget: at least `least`, at most `most`.
unsigned window_commands(unsigned least, unsigned most);

// One step of the lookup. True: the command lacks nothing; else *missing has what it lacks.
[[nodiscard]] bool look_up_in_window(const char* buffer, const WindowCommand& command,
                                     NonresidentRanges* missing);

// One wave over commands[0..count), in order. A command is done after `rounds_max` steps in any
// case. request(missing) requests the pages; if it returns false, or if `bytes_max` bytes are
// requested, the wave ends.
template <class Request>
void look_up_wave(const char* buffer, WindowCommand* commands, unsigned count, unsigned rounds_max,
                  uint64_t bytes_max, Request request) {
  NonresidentRanges missing;
  missing.bytes_max = bytes_max;
  bool more = true;
  for (unsigned i = 0; i < count && more; ++i) {
    WindowCommand& command = commands[i];
    if (command.done) continue;
    command.done = look_up_in_window(buffer, command, &missing) || command.rounds++ == rounds_max;
    if (command.done || !missing.full()) continue;
    more = request(missing) && missing.bytes < missing.bytes_max;
    missing.bytes_max -= missing.bytes;
    missing.clear();
  }
  if (missing.count != 0) (void)request(missing);
}

}  // namespace lunar::redis
