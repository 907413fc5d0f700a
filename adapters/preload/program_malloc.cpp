// SPDX-License-Identifier: Apache-2.0
// See program_malloc.h. When a block is freed, its address alone shows where it belongs, because
// another library may free it: libc frees thread-local variables that the linker has allocated.
#include "program_malloc.h"

#include <dlfcn.h>
#include <errno.h>
#include <gnu/libc-version.h>

#include <cstring>

#include "code_ranges.h"
#include "early_heap.h"
#include "elf/program_got.h"
#include "malloc_family.h"
#include "preload.h"

namespace lunar::preload {
namespace {

struct Malloc {
  void* (*malloc)(size_t) = nullptr;
  void* (*calloc)(size_t, size_t) = nullptr;
  void* (*realloc)(void*, size_t) = nullptr;
  void (*free)(void*) = nullptr;
};
constinit Malloc g_program;
constinit bool g_found = false;

enum class Caller { kLinker, kLibrary };

// A block of the early heap; nullptr: it must come from the program's malloc.
template <Caller caller>
void* take_early(size_t bytes) {
  const bool early = HostGuard::active() || (caller == Caller::kLinker && bytes <= kLinkerBytesMax);
  return early ? early_alloc(0, bytes) : nullptr;
}

template <Caller caller>
void* malloc_for(size_t bytes) {
  void* block = take_early<caller>(bytes);
  return block != nullptr ? block : g_program.malloc(bytes);
}

template <Caller caller>
void* calloc_for(size_t count, size_t size) {
  size_t bytes = 0;
  void* block = __builtin_mul_overflow(count, size, &bytes) ? nullptr : take_early<caller>(bytes);
  return block != nullptr ? block : g_program.calloc(count, size);
}

void free_for(void* block) { early_owns(block) ? early_free(block) : g_program.free(block); }

template <Caller caller>
void* realloc_for(void* block, size_t bytes) {
  if (block == nullptr) return malloc_for<caller>(bytes);
  if (!early_owns(block)) return g_program.realloc(block, bytes);
  void* moved = bytes == 0 ? nullptr : malloc_for<caller>(bytes);
  if (moved == nullptr && bytes != 0) return nullptr;
  const size_t before = early_size(block);
  if (moved != nullptr) memcpy(moved, block, before < bytes ? before : bytes);
  early_free(block);
  return moved;
}

// The linker has no relocations for these: it looks malloc up itself, and keeps the four addresses
// as constants.
int redirect_linker(ErrorText* why) {
  const auto inside = reinterpret_cast<const void*>(g_linker_code.begin);
  const struct {
    const void* original;
    void* replacement;
  } words[] = {
      {reinterpret_cast<void*>(g_program.malloc),
       reinterpret_cast<void*>(&malloc_for<Caller::kLinker>)},
      {reinterpret_cast<void*>(g_program.calloc),
       reinterpret_cast<void*>(&calloc_for<Caller::kLinker>)},
      {reinterpret_cast<void*>(g_program.realloc),
       reinterpret_cast<void*>(&realloc_for<Caller::kLinker>)},
      {reinterpret_cast<void*>(g_program.free), reinterpret_cast<void*>(&free_for)},
  };
  for (const auto& [original, replacement] : words) {
    const int found = object_replace_words(inside, original, replacement);
    if (found > 0) continue;
    return why->set(found < 0 ? found : -ENOTSUP,
                    "this program has a malloc of its own, and the calls of the dynamic linker to "
                    "it cannot be %s (%s); use the malloc of libc or jemalloc's shared library",
                    found < 0 ? "changed" : "found",
                    found < 0 ? errno_name(found) : gnu_get_libc_version());
  }
  return 0;
}

// `required`: the library is known to call all four.
int redirect_library(const void* inside, bool required, ErrorText* why) {
  Redirected calls[] = {
      {"malloc", reinterpret_cast<void*>(&malloc_for<Caller::kLibrary>), 0},
      {"calloc", reinterpret_cast<void*>(&calloc_for<Caller::kLibrary>), 0},
      {"realloc", reinterpret_cast<void*>(&realloc_for<Caller::kLibrary>), 0},
      {"free", reinterpret_cast<void*>(&free_for), 0},
  };
  const int rc = object_redirect(inside, calls, sizeof calls / sizeof *calls);
  for (const Redirected& call : calls) {
    if (rc == 0 && (call.slots > 0 || !required)) continue;
    return why->set(rc < 0 ? rc : -ENOTSUP,
                    "this program has a malloc of its own, and the calls of libc to it cannot be "
                    "%s (%s); use the malloc of libc or jemalloc's shared library",
                    rc < 0 ? "changed" : "found", rc < 0 ? errno_name(rc) : call.name);
  }
  return 0;
}

}  // namespace

int program_malloc_prepare(ErrorText* why) {
  const void* called = function_called("malloc");
  if (is_own_code(called)) return 0;
  if (is_runtime_code(called))
    return why->set(-EINVAL,
                    "LD_PRELOAD names an allocator before Lunar's library, so that malloc is not "
                    "tiered; put Lunar's first, as `lunar run` does");
  // the addresses that the linker finds, which calls do not always reach
  g_program.malloc = reinterpret_cast<void* (*)(size_t)>(dlsym(RTLD_DEFAULT, "malloc"));
  g_program.calloc = reinterpret_cast<void* (*)(size_t, size_t)>(dlsym(RTLD_DEFAULT, "calloc"));
  g_program.realloc = reinterpret_cast<void* (*)(void*, size_t)>(dlsym(RTLD_DEFAULT, "realloc"));
  g_program.free = reinterpret_cast<void (*)(void*)>(dlsym(RTLD_DEFAULT, "free"));
  g_found = true;
  int rc = redirect_linker(why);
  if (rc == 0) rc = redirect_library(dlsym(RTLD_NEXT, "gnu_get_libc_version"), true, why);
  if (rc == 0) rc = redirect_library(dlsym(RTLD_NEXT, "io_uring_get_probe"), false, why);
  return rc;
}

bool program_has_malloc() { return g_found; }

int program_malloc_prepare_blkid(ErrorText* why) {
  void* library = g_found ? dlopen("libblkid.so.1", RTLD_LAZY | RTLD_NOLOAD) : nullptr;
  return library == nullptr ? 0 : redirect_library(dlsym(library, "blkid_new_probe"), false, why);
}

}  // namespace lunar::preload
