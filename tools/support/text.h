// SPDX-License-Identifier: Apache-2.0
// Text for people: formatted strings, sizes, wrapped help, nearest words, words quoted for a shell.
// Threading: free functions, no state.
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
std::string size_text(uint64_t bytes);        // "1.5 GiB"
std::string uuid_text(const uint8_t* bytes);  // of 16 bytes
// For a terminal: characters that are not printable (names of files and LUNs may have any) as \xNN.
std::string printable(std::string_view text);
// Prints one line of a list of facts: the name, and the value in a column.
void print_row(const char* name, const std::string& value);
// Appends `text` to *out, broken at blanks; lines after the first begin with `indent` blanks. The
// text begins in column `column`.
void append_wrapped(std::string* out, std::string_view text, size_t column, size_t indent,
                    size_t width = 100);
// Breaks each line of a help text that is too long. The rest of the line begins where the text of
// its entry begins ("  NAME  text"), or below its first word.
std::string wrapped_help(std::string_view text);
// The candidate nearest to `word` (base/likeness.h), or "" if none is near.
std::string nearest_word(std::string_view word, const std::vector<std::string>& candidates);
// "unknown KIND WORD; did you mean NEAREST?", or "...; `PROGRAM --help` lists them" if no word of
// `known` is near. A word that begins with - is called a flag.
std::string unknown_text(const std::string& program, const char* kind, const std::string& word,
                         const std::vector<std::string>& known);
// Prints that to standard error, after "PROGRAM: ".
void say_unknown(const char* program, const char* kind, const char* word,
                 const std::vector<std::string>& known);
// Called at the end of main: writes out the buffer of standard output. Returns `code`. If that
// fails, prints a line and returns kExitFailed instead of 0: a full disk or closed pipe must not
// look like success.
int finish_output(const char* program, int code);
// The word, quoted for a shell if necessary, for commands that people paste.
std::string shell_word(std::string_view word);

}  // namespace lunar::tools
