// SPDX-License-Identifier: Apache-2.0
// Sizes: what people may type, what is refused, what is printed. No threads, no state.
#include <errno.h>

#include <string>

#include "base/units.h"
#include "tests/catch.h"

using namespace lunar;

namespace {
uint64_t parsed(const char* text) {
  uint64_t bytes = 0;
  int rc = parse_size(text, &bytes);
  INFO(text);
  CHECK(rc == 0);
  return bytes;
}
int refused(const char* text) {
  uint64_t bytes = 4711;
  int rc = parse_size(text, &bytes);
  INFO(text);
  CHECK(bytes == 4711);  // untouched
  return rc;
}
}  // namespace

TEST_CASE("parse_size takes powers of 1024 in any case") {
  CHECK(parsed("0") == 0);
  CHECK(parsed("512") == 512);
  CHECK(parsed("512b") == 512);
  CHECK(parsed("64k") == 64 * kKiB);
  CHECK(parsed("256M") == 256 * kMiB);
  CHECK(parsed("256MB") == 256 * kMiB);
  CHECK(parsed("256MiB") == 256 * kMiB);
  CHECK(parsed("2t") == 2 * kTiB);
  CHECK(parsed("1.5g") == kGiB + kGiB / 2);
  CHECK(parsed("0.25k") == 256);
  CHECK(parsed("9223372036854775807") == INT64_MAX);
}

TEST_CASE("parse_size refuses what is no size") {
  for (const char* text : {"", " ", "k", "-1", "+1", " 1", "1 ", "1.m", ".5m", "1.5", "1.5b", "1x",
                           "1kk", "1ki", "1ib", "1e3", "0x10", "1p"}) {
    CHECK(refused(text) == -EINVAL);
  }
  CHECK(refused(nullptr) == -EINVAL);
}

TEST_CASE("parse_size tells too large from malformed") {
  CHECK(refused("9223372036854775808") == -ERANGE);
  CHECK(refused("8388608t") == -ERANGE);
  CHECK(refused("99999999999999999999999999999999999999999999999999") == -ERANGE);
}

TEST_CASE("parse_numbers takes so many numbers, and nothing else") {
  uint64_t out[3];
  CHECK((lunar::parse_numbers("700:1:18446744073709551615", out, 3) && out[0] == 700 &&
         out[1] == 1 && out[2] == UINT64_MAX));
  CHECK((lunar::parse_numbers("0", out, 1) && out[0] == 0));
  for (const char* text : {"", "700", "700:1", "700:1:", ":1:2", "700::2", "700:1:2:3", "700:1:2 ",
                           "-7:1:2", "700:1:18446744073709551616"})
    CHECK_FALSE(lunar::parse_numbers(text, out, 3));
  CHECK_FALSE(lunar::parse_numbers(nullptr, out, 1));
}

TEST_CASE("format_size rounds to a tenth and stays within 12 characters") {
  auto text = [](uint64_t bytes) { return std::string(format_size(bytes).text); };
  CHECK(text(0) == "0 B");
  CHECK(text(1023) == "1023 B");
  CHECK(text(kKiB) == "1 KiB");
  CHECK(text(kGiB + kGiB / 2) == "1.5 GiB");
  CHECK(text(kMiB - 1) == "1.0 MiB");
  CHECK(text(1023 * kMiB + 512 * kKiB) == "1023.5 MiB");
  CHECK(text(UINT64_MAX) == "16777215 TiB");
  for (uint64_t bytes = 1; bytes < UINT64_MAX / 3; bytes = bytes * 3 + 1)
    CHECK(text(bytes).size() <= 12);
}

TEST_CASE("format_size and parse_size agree on exact sizes") {
  for (uint64_t bytes : {uint64_t{1}, 16 * kMiB, 3 * kGiB, 7 * kTiB}) {
    std::string text = format_size(bytes).text;
    text.erase(text.find(' '), 1);
    CHECK(parsed(text.c_str()) == bytes);
  }
}

TEST_CASE("rounding goes to multiples") {
  CHECK(round_up(1, 4096) == 4096);
  CHECK(round_up(4096, 4096) == 4096);
  CHECK(round_down(4097, 4096) == 4096);
}
