// SPDX-License-Identifier: Apache-2.0
// Whether a word is another one with a slip in it: the rule behind every "did you mean".
// Threading: pure functions. No memory but the stack: the preload library asks before the host's main().
#pragma once
#include <cstddef>

namespace lunar {

constexpr size_t kLikeBytesMax = 64;  // longer words are like nothing

// Steps from one word to the other: a letter changed, added or left out, or two neighbours exchanged. SIZE_MAX where it
// is more than a slip: more than 2, or more than 1 of a word of up to 4 letters (leading dashes do not count).
size_t slip_distance(const char* word, const char* known);

}  // namespace lunar
