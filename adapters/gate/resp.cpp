// SPDX-License-Identifier: Apache-2.0
// See resp.h.
#include "resp.h"

#include <cstring>

namespace lunar::redis {
namespace {

// "<mark>digits\r\n" at `data`. kCommand: *value and *length of the line are set.
Parse parse_header(const char* data, size_t bytes, char mark, uint64_t limit, uint64_t* value,
                   size_t* length) {
  if (bytes == 0) return Parse::kMore;
  if (data[0] != mark) return Parse::kBad;
  uint64_t number = 0;
  size_t at = 1;
  for (;; ++at) {
    if (at == bytes) return Parse::kMore;
    if (at == kHeaderMax) return Parse::kBad;
    const char c = data[at];
    if (c == '\r') break;
    if (c < '0' || c > '9' || (at > 1 && number == 0))
      return Parse::kBad;  // signs and leading zeros are left to the server
    number = number * 10 + static_cast<uint64_t>(c - '0');
    if (number > limit) return Parse::kBad;
  }
  if (at == 1) return Parse::kBad;
  if (at + 1 == bytes) return Parse::kMore;
  if (data[at + 1] != '\n') return Parse::kBad;
  *value = number;
  *length = at + 2;
  return Parse::kCommand;
}

Parse more(Command* out, size_t needed) {
  out->bytes = needed;
  return Parse::kMore;
}

// `count` arguments from `at` on; the first of `bulk` bytes without a header, unless -1.
Parse parse_arguments(const char* data, size_t bytes, size_t at, uint64_t count, int64_t bulk,
                      Command* out) {
  for (uint64_t i = 0; i < count; ++i) {
    uint64_t length = static_cast<uint64_t>(bulk);
    size_t line = 0;
    if (i != 0 || bulk < 0) {
      const Parse header = parse_header(data + at, bytes - at, '$', kBulkMax, &length, &line);
      if (header != Parse::kCommand) return header == Parse::kMore ? more(out, bytes + 1) : header;
    }
    at += line;
    if (bytes - at < length + 2) return more(out, at + length + 2);
    if (out->kept < kArgumentsKept) out->argument[out->kept++] = {data + at, length};
    at += length + 2;  // like the server, this ignores the two bytes after an argument
  }
  out->bytes = at;
  return Parse::kCommand;
}

Parse parse_multibulk(const char* data, size_t bytes, Command* out) {
  uint64_t count = 0;
  size_t at = 0;
  const Parse header = parse_header(data, bytes, '*', kArgumentsMax, &count, &at);
  if (header != Parse::kCommand) return header == Parse::kMore ? more(out, bytes + 1) : header;
  out->count = count;
  return parse_arguments(data, bytes, at, count, -1, out);
}

bool is_blank(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

Parse parse_inline(const char* data, size_t bytes, Command* out) {
  const size_t window = bytes < kInlineMax ? bytes : kInlineMax;
  const auto* end = static_cast<const char*>(memchr(data, '\n', window));
  if (end == nullptr) return bytes >= kInlineMax ? Parse::kBad : more(out, bytes + 1);
  const auto line = static_cast<size_t>(end - data);
  for (size_t i = 0; i < line;) {
    if (data[i] == '"' || data[i] == '\'' || data[i] == 0) return Parse::kBad;
    if (is_blank(data[i])) {
      ++i;
      continue;
    }
    size_t start = i;
    while (i < line && !is_blank(data[i])) {
      if (data[i] == '"' || data[i] == '\'' || data[i] == 0) return Parse::kBad;
      ++i;
    }
    if (out->kept < kArgumentsKept) out->argument[out->kept++] = {data + start, i - start};
    ++out->count;
  }
  out->bytes = line + 1;
  return Parse::kCommand;
}

}  // namespace

Parse parse_command(const char* data, size_t bytes, Command* out) {
  out->bytes = 0;
  out->count = 0;
  out->kept = 0;
  return data[0] == '*' ? parse_multibulk(data, bytes, out) : parse_inline(data, bytes, out);
}

Parse parse_rest(const char* data, size_t bytes, unsigned taken, unsigned left, int64_t bulk,
                 Command* out) {
  out->bytes = 0;
  out->count = uint64_t{taken} + left;
  out->kept = taken < kArgumentsKept ? taken : kArgumentsKept;
  return parse_arguments(data, bytes, 0, left, bulk, out);
}

}  // namespace lunar::redis
