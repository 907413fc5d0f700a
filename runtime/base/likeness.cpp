// SPDX-License-Identifier: Apache-2.0
// See likeness.h.
// Threading: pure functions.
#include "base/likeness.h"

#include <stdint.h>
#include <string.h>

namespace lunar {
namespace {

constexpr size_t kSlipsMax = 2, kShortWord = 4;

// Counts an exchange of two neighbours as one step ("drma" is one step from "dram").
size_t edit_distance(const char* a, size_t length_a, const char* b, size_t length_b) {
  size_t rows[3][kLikeBytesMax];
  for (size_t j = 0; j <= length_b; ++j) rows[0][j] = j;
  for (size_t i = 1; i <= length_a; ++i) {
    size_t* now = rows[i % 3];
    const size_t* before = rows[(i + 2) % 3];
    const size_t* two_before = rows[(i + 1) % 3];
    now[0] = i;
    for (size_t j = 1; j <= length_b; ++j) {
      size_t best = before[j - 1] + (a[i - 1] != b[j - 1]);
      if (before[j] + 1 < best) best = before[j] + 1;
      if (now[j - 1] + 1 < best) best = now[j - 1] + 1;
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] &&
          two_before[j - 2] + 1 < best) {
        best = two_before[j - 2] + 1;
      }
      now[j] = best;
    }
  }
  return rows[length_a % 3][length_b];
}

}  // namespace

size_t slip_distance(const char* word, const char* known) {
  const size_t length = strlen(word), letters = length - strspn(word, "-"),
               known_length = strlen(known);
  if (length >= kLikeBytesMax || known_length >= kLikeBytesMax) return SIZE_MAX;
  const size_t distance = edit_distance(word, length, known, known_length);
  const size_t allowed = letters <= kShortWord ? 1 : kSlipsMax;
  return distance <= allowed && distance < letters ? distance : SIZE_MAX;
}

}  // namespace lunar
