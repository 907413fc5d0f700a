// SPDX-License-Identifier: Apache-2.0
// The bounded formatter against snprintf, and where it differs on purpose. ErrorText and the errno
// tables use it.
#include <errno.h>
#include <limits.h>

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>

#include "base/error.h"
#include "base/format.h"
#include "tests/catch.h"

using namespace lunar;

// Same text and, unless cut, the same length as snprintf.
#define SAME(...)                                              \
  do {                                                         \
    char ours[128], theirs[128];                               \
    size_t length = format_to(ours, sizeof ours, __VA_ARGS__); \
    int wanted = snprintf(theirs, sizeof theirs, __VA_ARGS__); \
    CHECK(std::string(ours) == theirs);                        \
    CHECK(length == static_cast<size_t>(wanted));              \
  } while (0)

TEST_CASE("format_to prints as snprintf does") {
  SAME("plain");
  SAME("%d %i %u", INT_MIN, INT_MAX, UINT_MAX);
  SAME("%ld %lu %lx", LONG_MIN, ULONG_MAX, ULONG_MAX);
  SAME("%lld %llu %llx", LLONG_MIN, ULLONG_MAX, 0xabcdefULL);
  SAME("%zu %zd %zx", SIZE_MAX, static_cast<ssize_t>(-5), SIZE_MAX);
  SAME("%ju %jd", UINTMAX_MAX, INTMAX_MIN);
  SAME("%5d|%-5d|%05d|%05d", 42, 42, 42, -42);
  SAME("%8s|%-8s|%.3s|%8.2s|", "word", "word", "word", "word");
  SAME("%.*s|%*d", 2, "word", 6, 7);
  SAME("%c%c %%", 'o', 'k');
  SAME("%08x|%-8x|%8x", 0xbeefu, 0xbeefu, 0xbeefu);
  SAME("%p", reinterpret_cast<void*>(0x1234));
}

TEST_CASE("format_to never writes past its buffer and always ends it") {
  char buffer[8];
  for (size_t size = 0; size <= sizeof buffer; ++size) {
    memset(buffer, '#', sizeof buffer);
    size_t length = format_to(buffer, size, "%s %d", "abcdef", 123456);
    if (size == 0) {
      CHECK(length == 0);
      CHECK(buffer[0] == '#');
      continue;
    }
    CHECK(length == size - 1);
    CHECK(buffer[size - 1] == '\0');
    for (size_t i = size; i < sizeof buffer; ++i) CHECK(buffer[i] == '#');
  }
}

TEST_CASE("format_to survives a null string and an unterminated one with a precision") {
  char buffer[32];
  const char* nothing = nullptr;
  format_to(buffer, sizeof buffer, "<%s>", nothing);
  CHECK(std::string(buffer) == "<(null)>");
  char raw[3] = {'a', 'b', 'c'};
  format_to(buffer, sizeof buffer, "<%.3s>", raw);
  CHECK(std::string(buffer) == "<abc>");
}

TEST_CASE("an unknown directive is copied together with what follows") {
  char buffer[64];
  const char* format = "%d then %f and %s";
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
#pragma GCC diagnostic ignored "-Wformat-security"
  format_to(buffer, sizeof buffer, format, 1, 2.0, "x");
#pragma GCC diagnostic pop
  CHECK(std::string(buffer) == "1 then %f and %s");
}

TEST_CASE("ErrorText gives its error back and cuts long lines") {
  ErrorText why;
  CHECK(why.set(-ENOSPC, "%s: full", "/x") == -ENOSPC);
  CHECK(std::string(why.text) == "/x: full");
  std::string long_text(2000, 'y');
  CHECK(why.set(-EIO, "%s", long_text.c_str()) == -EIO);
  CHECK(strlen(why.text) == sizeof why.text - 1);
}

TEST_CASE("errno names and texts take either sign") {
  CHECK(std::string(errno_name(ENOMEM)) == "ENOMEM");
  CHECK(std::string(errno_name(-ENOMEM)) == "ENOMEM");
  CHECK(std::string(errno_text(-ENOSPC)) == "no space left on device");
  CHECK(std::string(errno_name(EXDEV)) == "EXDEV");  // from the C library's table
  CHECK(std::string(errno_text(99999)) == "unknown error");
  CHECK(std::string(errno_name(INT_MIN + 1)) == "unknown errno");
}

namespace {
std::string line_of(const char* name) {
  char out[128];
  format_line_to(out, sizeof out, "<%s>\n", name);
  return out;
}
}  // namespace

TEST_CASE("a line of the log takes no control characters from names") {
  CHECK(line_of("plain name.txt") == "<plain name.txt>\n");
  CHECK(line_of("a\nlunar: FATAL: b") == "<a\\x0alunar: FATAL: b>\n");
  CHECK(line_of("\x1b[2J\r\t\x7f") == "<\\x1b[2J\\x0d\\x09\\x7f>\n");
  CHECK(line_of("gr\xc3\xbc\xc3\x9f \xe2\x82\xac \xf0\x9f\x98\x80") ==
        "<gr\xc3\xbc\xc3\x9f \xe2\x82\xac \xf0\x9f\x98\x80>\n");
  CHECK(line_of("\xc2\x9b"
                "31m") == "<\\xc2\\x9b31m>\n");  // a C1 control
  CHECK(line_of("\xe2\x80\xae"
                "txt") == "<\\xe2\\x80\\xaetxt>\n");  // right to left
  CHECK(line_of("\xff\xc3") == "<\\xff\\xc3>\n");     // no UTF-8, cut UTF-8
  CHECK(line_of("\xc0\x8a \xed\xa0\x80") ==
        "<\\xc0\\x8a \\xed\\xa0\\x80>\n");  // overlong, a surrogate
  char tight[6];
  CHECK(format_line_to(tight, sizeof tight, "%s", "\n\n") == 5);
  CHECK(std::string(tight) == "\\x0a\\");
  ErrorText why;
  (void)why.set(-1, "config file %s: no", "x\ny");
  CHECK(std::string(why.text) == "config file x\\x0ay: no");
  ErrorText again;
  (void)again.set(-1, "%s", why.text);
  CHECK(std::string(again.text) == why.text);
}
