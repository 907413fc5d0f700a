// SPDX-License-Identifier: Apache-2.0
// Whether the dynamic loader of glibc will start a program file, and preload a library into it. The
// answer comes from the file's first bytes, its program headers and the names in its dynamic
// section.
// Threading: any thread, signal handlers and children of vfork included: allocates nothing.
#pragma once
#include <cstddef>

namespace lunar::sys {

enum class ProgramKind {
  kServed,        // also a file that cannot be read, or of another format
  kScript,        // begins with #!
  kPrivileged,    // gains rights when executed: the loader preloads nothing
  kOtherMachine,  // another architecture or word size
  kDamaged,
  kStatic,     // no loader
  kLoader,     // glibc's dynamic loader itself
  kOtherLibc,  // its loader is not glibc's, or it is such a loader (musl)
  kSanitized,  // it has an address, leak, memory or thread sanitizer, and thereby their malloc
};

struct ProgramFile {
  ProgramKind kind = ProgramKind::kServed;
  // kPrivileged: how; kOtherLibc, kServed: the loader's path; kSanitized: which; kScript: the line
  char detail[256] = {};
};

// Examines an open file. The file position stays.
void program_look(int fd, ProgramFile* out);
// One phrase that says why the library does not serve the program ("is statically linked"); nullptr
// for the kinds that it serves.
const char* program_unserved(const ProgramFile& file);
// The names that each sanitizer defines in a program: "__asan_init". nullptr behind the last.
const char* sanitizer_symbol(unsigned index);
const char* sanitizer_name(unsigned index);

}  // namespace lunar::sys
