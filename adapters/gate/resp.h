// SPDX-License-Identifier: Apache-2.0
// A parser of RESP: finds whole commands in a client's bytes, as redis-server would (multibulk and
// inline).
//
// The parser keeps no state. It gets the bytes from the start of a command, and returns the
// command's end, or that more bytes are needed, or that the command is not for the gate. It copies
// nothing and allocates nothing; arguments point into the bytes. A caller with part of a command
// parses again when more has arrived; the number of arguments present bounds the cost of one call.
//
// Threading: none. kBad is not an error to report: the server sees the same bytes and gives its own
// answer.
#pragma once
#include <cstddef>
#include <cstdint>

namespace lunar::redis {

struct Slice {
  const char* data = nullptr;
  size_t bytes = 0;
};

// further arguments are counted, but not kept
constexpr unsigned kArgumentsKept = 4096;
constexpr size_t kInlineMax = 16 * 1024;      // a longer line is kBad
constexpr size_t kHeaderMax = 32;             // "*1234\r\n": a longer one is kBad
constexpr uint64_t kArgumentsMax = 1u << 20;  // a command that announces more is kBad
constexpr uint64_t kBulkMax = 1u << 29;       // the same for the bytes of one argument

enum class Parse {
  kCommand,  // `bytes` are one command
  kMore,     // the start of one: at least `bytes` are needed in all
  kBad,      // malformed, hostile, or quoted inline: leave it to the server
};

struct Command {
  // of the whole command; for kMore: the bytes needed at least (more than there are)
  size_t bytes = 0;
  uint64_t count = 0;  // arguments, with the name; 0: an empty line
  unsigned kept = 0;   // arguments in `argument`
  Slice argument[kArgumentsKept];
};

// pre: bytes > 0
[[nodiscard]] Parse parse_command(const char* data, size_t bytes, Command* out);
// Parses the rest of a command whose first `taken` arguments are elsewhere: `left` arguments
// follow, the first with `bulk` bytes and without a header, or with its header (-1). Bytes count
// from here. The `taken` arguments count as kept, up to kArgumentsKept, and the caller fills them
// in.
[[nodiscard]] Parse parse_rest(const char* data, size_t bytes, unsigned taken, unsigned left,
                               int64_t bulk, Command* out);

}  // namespace lunar::redis
