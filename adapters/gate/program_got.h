// SPDX-License-Identifier: Apache-2.0
// Reads and changes the global offset table of the main program, or of a library: the function that it calls by a name.
// Only calls made by that object itself are redirected, not those of others.
//
// Threading: at load, and before the thread concerned calls the function. Allocates nothing itself (the loader may).
#pragma once

#include "base/error.h"

namespace lunar::redis {

// The function that the main program calls as `name`: the value of its slot, or nullptr if it has none. With lazy
// binding a slot that was not used yet holds a stub; then the result is what the loader finds under that name.
void* program_calls(const char* name);

// Makes the main program call `replacement` as `name`; *original is what it called before. All slots or none. -ENOENT:
// the program does not call it; -EACCES: the table cannot be made writable; *why says so.
[[nodiscard]] int program_redirect(const char* name, void* replacement, void** original, ErrorText* why);

// Likewise for the loaded object that contains the address `inside`. Returns the number of slots, or -errno (then they
// may hold either).
[[nodiscard]] int object_redirect(const void* inside, const char* name, void* replacement);
// In the constant data (RELRO) of that object: each word that holds `original` gets `replacement`. How many, or -errno.
[[nodiscard]] int object_replace_words(const void* inside, const void* original, void* replacement);

}  // namespace lunar::redis
