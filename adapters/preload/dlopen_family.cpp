// SPDX-License-Identifier: Apache-2.0
// dlopen without RTLD_DEEPBIND. A library loaded with this flag looks names up in itself and in the
// libraries that it needs, before those of the program: it gets libc's malloc and free, while the
// rest of the process has ours. A block that one allocates and the other frees ends the program
// (PHP loads its extensions with this flag). Without the flag, names of the library may resolve to
// the program's. A program with a malloc of its own keeps the flag, because it has the same problem
// without Lunar. A separate namespace (dlmopen) has its own libc as well.
//
// libc finds RPATH, $ORIGIN and the namespace by the caller's address. So libc's function is called
// last, as a jump that leaves the return address in place.
//
// Threading: any thread.
#include <dlfcn.h>

#include "preload.h"
#include "program_malloc.h"
#include "real_calls.h"

#define TAIL_CALLS __attribute__((optimize("O2"), no_sanitize("thread", "address", "undefined")))

namespace lunar::preload {
namespace {

using Open = void* (*)(const char*, int);
using OpenInSpace = void* (*)(Lmid_t, const char*, int);
constinit Open g_dlopen = nullptr;
constinit OpenInSpace g_dlmopen = nullptr;

int mode_for(int mode) { return program_has_malloc() ? mode : mode & ~RTLD_DEEPBIND; }

}  // namespace
}  // namespace lunar::preload

using namespace lunar::preload;

// The dlopen of this library and of the code linked into it (--wrap).
extern "C" __attribute__((visibility("hidden"))) void* __wrap_dlopen(const char* path, int mode) {
  look_up(g_dlopen, "dlopen");
  return g_dlopen(path, mode);
}

LUNAR_EXPORT TAIL_CALLS void* dlopen(const char* path, int mode) noexcept {
  look_up(g_dlopen, "dlopen");
  return g_dlopen(path, mode_for(mode));
}

LUNAR_EXPORT TAIL_CALLS void* dlmopen(Lmid_t space, const char* path, int mode) noexcept {
  look_up(g_dlmopen, "dlmopen");
  return g_dlmopen(space, path, space == LM_ID_BASE ? mode_for(mode) : mode);
}
