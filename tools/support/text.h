// SPDX-License-Identifier: Apache-2.0
// Text for people: formatted strings, wrapped help, nearest words, words a shell would take as they
// stand. Threading: free functions, no state. May not be used by runtime/ (it allocates).
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace lunar::tools {

// printf into a string.
std::string text_of(const char* format, ...) __attribute__((format(printf, 1, 2)));
// "1 extent", "2 extents".
std::string counted(uint64_t count, const char* noun);
// For a terminal: what is no printable text (names of files and LUNs may hold anything) as \xNN.
std::string printable(std::string_view text);
// Appends `text` to *out, broken at blanks; lines after the first begin with `indent` blanks.
// `column`: the start.
void append_wrapped(std::string* out, std::string_view text, size_t column, size_t indent,
                    size_t width = 100);
// The candidate nearest to `word` (base/likeness.h), or "" when none is near.
std::string nearest_word(std::string_view word, const std::vector<std::string>& candidates);
// "PROGRAM: unknown KIND WORD; ..." on standard error, with the nearest of `known` or where they
// are listed. A word that begins with - is called a flag.
void say_unknown(const char* program, const char* kind, const char* word,
                 const std::vector<std::string>& known);
// Called at the end of main: writes out what standard output holds. Returns `code`. Where that
// fails, prints a line and returns 4 instead of 0 (an I/O error, as of `kv` and `lun`): a full disk
// or closed pipe must not look like success.
int finish_output(const char* program, int code);
// Quoted for a shell when it needs to be, for commands that people paste.
std::string shell_word(std::string_view word);

}  // namespace lunar::tools
