// SPDX-License-Identifier: Apache-2.0
// Reads and changes the global offset table of the main program, or of a library: the slots through
// which it calls functions by name. Only the calls of that object are redirected.
//
// Threading: called at load, before any thread calls the function. Allocates nothing itself (the
// loader may).
#pragma once

#include <cstddef>

#include "base/error.h"

namespace lunar {

// The function that the main program calls as `name`: the value of its slot, or nullptr if it has
// none. A slot that was not used yet (lazy binding) holds a stub of the program. In a program
// linked at a fixed address, the slot of a function pointer may hold the program's own PLT entry.
// In both cases the result is that of function_called.
void* program_calls(const char* name);

// Makes the main program call `replacement` as `name`; *original is what it called before, and is
// set before the first call can reach `replacement`. Changes all slots or none. -ENOENT: the
// program does not call it; -EACCES: the table cannot be made writable; *why says so.
[[nodiscard]] int program_redirect(const char* name, void* replacement, void** original,
                                   ErrorText* why);
template <class F>
[[nodiscard]] int program_redirect(const char* name, F* replacement, F** original, ErrorText* why) {
  return program_redirect(name, reinterpret_cast<void*>(replacement),
                          reinterpret_cast<void**>(original), why);
}

// Redirects several names in the loaded object that holds the address `inside`; `slots` counts the
// slots of each name. 0, or -errno: some slots may be changed already.
struct Redirected {
  const char* name;
  void* replacement;
  int slots;
};
[[nodiscard]] int object_redirect(const void* inside, Redirected* calls, size_t count);
// The function that a call of `name` reaches when the linker binds it, or nullptr. dlsym, or a
// pointer to the function, may give another address: in a program linked at a fixed address, that
// of the program's own PLT entry.
void* function_called(const char* name);
// Replaces each word that holds `original` in the constant data (RELRO) of the object that holds
// `inside`. Returns the number of words, or -errno.
[[nodiscard]] int object_replace_words(const void* inside, const void* original, void* replacement);

}  // namespace lunar
