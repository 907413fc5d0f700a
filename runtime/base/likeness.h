// SPDX-License-Identifier: Apache-2.0
// Whether a word is a misspelling of another one: the rule behind every "did you mean".
// Threading: pure functions. No memory but the stack: the preload library uses this before the
// host's main().
#pragma once
#include <cstddef>

namespace lunar {

constexpr size_t kLikeBytesMax = 64;  // words of this length or longer match nothing

// Edits that turn one word into the other: a letter changed, added or left out, or two neighbours
// exchanged. SIZE_MAX if the word is not a misspelling: more than 2 edits, or more than 1 in a word
// of up to 4 letters, or as many as it has letters (leading dashes are not letters).
size_t slip_distance(const char* word, const char* known);

}  // namespace lunar
