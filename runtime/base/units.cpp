// SPDX-License-Identifier: Apache-2.0
// Sizes to and from text, in integers only (no locale, no floating point).
// Threading: no state. May be used anywhere.
#include "base/units.h"

#include <errno.h>
#include <string.h>

#include "base/format.h"

namespace lunar {
namespace {

char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }

// The factor of "", "b", "k", "kb", "kib", ...; 0 if `text` is not a unit.
uint64_t unit_of(const char* text) {
  uint64_t factor = 1;
  switch (lower(*text)) {
    case 'k':
      factor = kKiB;
      break;
    case 'm':
      factor = kMiB;
      break;
    case 'g':
      factor = kGiB;
      break;
    case 't':
      factor = kTiB;
      break;
    default:
      break;
  }
  if (factor != 1) {
    ++text;
    if (lower(*text) == 'i') {
      ++text;
      if (lower(*text) != 'b') return 0;
    }
  }
  if (lower(*text) == 'b') ++text;
  return *text ? 0 : factor;
}

}  // namespace

int parse_size(const char* text, uint64_t* bytes) {
  __extension__ typedef unsigned __int128 Wide;
  constexpr Wide kMax = INT64_MAX;
  if (!text || !is_digit(*text)) return -EINVAL;
  Wide whole = 0;
  bool too_big = false;
  for (; is_digit(*text); ++text) {
    whole = whole * 10 + static_cast<unsigned>(*text - '0');
    if (whole > kMax) {
      too_big = true;
      whole = kMax;
    }
  }
  Wide fraction = 0, scale = 1;
  bool has_fraction = *text == '.';
  if (has_fraction) {
    ++text;
    if (!is_digit(*text)) return -EINVAL;
    for (; is_digit(*text); ++text) {
      if (scale >= 1000000000) continue;  // further places are ignored
      fraction = fraction * 10 + static_cast<unsigned>(*text - '0');
      scale *= 10;
    }
  }
  uint64_t unit = unit_of(text);
  if (unit == 0 || (has_fraction && unit == 1)) return -EINVAL;
  Wide total = whole * unit + fraction * unit / scale;
  if (too_big || total > kMax) return -ERANGE;
  *bytes = static_cast<uint64_t>(total);
  return 0;
}

int parse_size(const char* text, size_t length, uint64_t* bytes) {
  char copy[32] = {};
  if (length >= sizeof copy) return -EINVAL;
  memcpy(copy, text, length);
  return parse_size(copy, bytes);
}

const char* parse_digits(const char* p, uint64_t* out) {
  if (*p < '0' || *p > '9') return nullptr;
  for (*out = 0; *p >= '0' && *p <= '9'; ++p)
    if (__builtin_mul_overflow(*out, 10, out) ||
        __builtin_add_overflow(*out, static_cast<uint64_t>(*p - '0'), out))
      return nullptr;
  return p;
}

bool parse_numbers(const char* text, uint64_t* out, unsigned count) {
  for (unsigned i = 0; i < count && text != nullptr; ++i) {
    if (i > 0 && *text++ != ':') return false;
    text = parse_digits(text, &out[i]);
  }
  return text != nullptr && *text == 0;
}

SizeText format_size(uint64_t bytes) {
  static const char* const kNames[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  unsigned shift = 0, index = 0;
  while (index < 4 && (bytes >> shift) >= 1024) shift += 10, ++index;
  uint64_t whole = bytes >> shift;
  uint64_t rest = bytes - (whole << shift);
  SizeText out;
  if (rest == 0 || whole >= 10000) {
    format_to(out.text, sizeof out.text, "%llu %s", static_cast<unsigned long long>(whole),
              kNames[index]);
    return out;
  }
  // Tenths, rounded to nearest; 1023.96 KiB must not become "1024.0 KiB".
  uint64_t tenths = whole * 10 + ((rest >> (shift - 10)) * 10 + 512) / 1024;
  if (tenths >= 10240 && index < 4) {
    tenths = 10;
    ++index;
  }
  format_to(out.text, sizeof out.text, "%llu.%llu %s", static_cast<unsigned long long>(tenths / 10),
            static_cast<unsigned long long>(tenths % 10), kNames[index]);
  return out;
}

}  // namespace lunar
