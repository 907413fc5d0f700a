// SPDX-License-Identifier: Apache-2.0
// Reads and changes the global offset table of the main program, or of a library: the function that
// it calls by a name. Only calls made by that object itself are redirected, not those of others.
//
// Threading: at load, and before the thread concerned calls the function. Allocates nothing itself
// (the loader may).
#pragma once

#include <cstddef>

#include "base/error.h"

namespace lunar {

// The function that the main program calls as `name`: the value of its slot, or nullptr if it has
// none. A slot that was not used yet (lazy binding) holds a stub of the program; one for the
// address of a function, in a program linked to a fixed address, the program's own jump through the
// other slot. Then the result is that of function_called.
void* program_calls(const char* name);

// Makes the main program call `replacement` as `name`; *original is what it called before. All
// slots or none. -ENOENT: the program does not call it; -EACCES: the table cannot be made writable;
// *why says so.
[[nodiscard]] int program_redirect(const char* name, void* replacement, void** original,
                                   ErrorText* why);

// Likewise for the loaded object that holds the address `inside`, several names at once; `slots`
// counts those found for each. 0, or -errno (then they may hold either).
struct Redirected {
  const char* name;
  void* replacement;
  int slots;
};
[[nodiscard]] int object_redirect(const void* inside, Redirected* calls, size_t count);
// What calls of `name` that the linker binds reach, or nullptr. Not always what dlsym finds, nor
// what a pointer to the function holds: of a program linked to a fixed address that may be the
// program's own jump to it.
void* function_called(const char* name);
// In the constant data (RELRO) of that object: each word that holds `original` gets `replacement`.
// How many, or -errno.
[[nodiscard]] int object_replace_words(const void* inside, const void* original, void* replacement);

}  // namespace lunar
