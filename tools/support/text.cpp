// SPDX-License-Identifier: Apache-2.0
// See text.h.
#include "tools/support/text.h"

#include <errno.h>

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstring>

#include "base/format.h"
#include "base/likeness.h"
#include "base/units.h"
#include "tools/support/exit_code.h"

namespace lunar::tools {

std::string text_of(const char* format, ...) {
  va_list args, again;
  va_start(args, format);
  va_copy(again, args);
  int length = vsnprintf(nullptr, 0, format, args);
  va_end(args);
  std::string out(length > 0 ? static_cast<size_t>(length) : 0, '\0');
  if (length > 0) vsnprintf(out.data(), out.size() + 1, format, again);
  va_end(again);
  return out;
}

std::string counted(uint64_t count, const char* noun) {
  return text_of("%llu %s%s", static_cast<unsigned long long>(count), noun, count == 1 ? "" : "s");
}

std::string size_text(uint64_t bytes) { return format_size(bytes).text; }

std::string uuid_text(const uint8_t* bytes) {
  std::string out;
  for (int i = 0; i < 16; ++i)
    out += text_of(i == 4 || i == 6 || i == 8 || i == 10 ? "-%02x" : "%02x", bytes[i]);
  return out;
}

void print_row(const char* name, const std::string& value) {
  printf("%-16s%s\n", name, printable(value).c_str());
}

std::string printable(std::string_view text) {
  std::string out(text.size() * 4 + 1, '\0');
  out.resize(
      format_line_to(out.data(), out.size(), "%.*s", static_cast<int>(text.size()), text.data()));
  return out;
}

void append_wrapped(std::string* out, std::string_view text, size_t column, size_t indent,
                    size_t width) {
  bool line_start = true;
  while (!text.empty()) {
    size_t end = std::min(text.find(' '), text.size());
    std::string_view word = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (!line_start && column + 1 + word.size() > width) {
      *out += '\n';
      out->append(indent, ' ');
      column = indent;
      line_start = true;
    }
    if (!line_start) {
      *out += ' ';
      ++column;
    }
    *out += word;
    column += word.size();
    line_start = false;
  }
  *out += '\n';
}

std::string wrapped_help(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    const size_t first = std::min(line.find_first_not_of(' '), line.size());
    const size_t gap = first == 0 ? line.npos : line.find("  ", first);
    const size_t indent =
        gap == line.npos ? first : std::min(line.find_first_not_of(' ', gap), line.size());
    out += line.substr(0, indent);
    append_wrapped(&out, line.substr(indent), indent, indent);
  }
  return out;
}

std::string nearest_word(std::string_view word, const std::vector<std::string>& candidates) {
  const std::string text(word);
  std::string best_word;
  size_t best = SIZE_MAX;
  for (const std::string& candidate : candidates) {
    const size_t distance = slip_distance(text.c_str(), candidate.c_str());
    if (distance < best) {
      best = distance;
      best_word = candidate;
    }
  }
  return best_word;
}

int finish_output(const char* program, int code) {
  if (fflush(stdout) == 0 && ferror(stdout) == 0) return code;
  if (code != 0) return code;
  fprintf(stderr, "%s: standard output: %s\n", program, strerror(errno));
  return kExitFailed;
}

std::string shell_word(std::string_view word) {
  constexpr std::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./:=,+@%";
  if (!word.empty() && word.find_first_not_of(kPlain) == std::string_view::npos)
    return std::string(word);
  std::string out = "'";
  for (char c : word) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

std::string unknown_text(const std::string& program, const char* kind, const std::string& word,
                         const std::vector<std::string>& known) {
  const std::string near = nearest_word(word, known);
  return text_of("unknown %s %s; ", word[0] == '-' ? "flag" : kind, printable(word).c_str()) +
         (near.empty() ? "`" + program + " --help` lists them" : "did you mean " + near + "?");
}

void say_unknown(const char* program, const char* kind, const char* word,
                 const std::vector<std::string>& known) {
  fprintf(stderr, "%s: %s\n", program, unknown_text(program, kind, word, known).c_str());
}

}  // namespace lunar::tools
