// SPDX-License-Identifier: Apache-2.0
// See server_heap.h.
#include "server_heap.h"

#include <dlfcn.h>
#include <errno.h>
#include <unistd.h>

#include <cstddef>
#include <initializer_list>

#include "elf/program_got.h"
#include "heap/heap.h"
#include "last_resort.h"
#include "pager/pager.h"
#include "sys/thread.h"

namespace lunar::redis {
namespace {

struct Original {
  void* (*alloc)(size_t) = nullptr;
  void* (*zeroed)(size_t, size_t) = nullptr;
  void* (*resize)(void*, size_t) = nullptr;
  pid_t (*fork)(void) = nullptr;
};
constinit Original g_original;

// While the LUN is full, an allocation tries the last resort before the heap.
bool full() { return __builtin_expect(last_resort_open(), 0); }

void* tiered_malloc(size_t bytes) {
  if (full())
    if (void* pointer = last_resort_alloc(bytes, false)) return pointer;
  void* pointer = heap_alloc(bytes);
  return __builtin_expect(pointer != nullptr, 1) ? pointer : last_resort_alloc(bytes, false);
}

void* tiered_calloc(size_t count, size_t size) {
  size_t bytes;
  if (__builtin_mul_overflow(count, size, &bytes)) {
    errno = ENOMEM;
    return nullptr;
  }
  if (full())
    if (void* pointer = last_resort_alloc(bytes, true)) return pointer;
  void* pointer = heap_alloc_zeroed(bytes);
  return __builtin_expect(pointer != nullptr, 1) ? pointer : last_resort_alloc(bytes, true);
}

// Memory from before the load moves to the tier when it is resized to another place.
void* tiered_realloc(void* pointer, size_t bytes) {
  if (pointer == nullptr) return tiered_malloc(bytes);
  if (bytes == 0) return g_original.resize(pointer, bytes);
  void* moved = heap_resize(pointer, bytes);
  return __builtin_expect(moved != nullptr, 1) ? moved : last_resort_resize(pointer, bytes);
}

// The pager's fork handlers run inside the call. libc's allocations there for the child's service
// threads must not be tiered.
pid_t guarded_fork() {
  heap_purge();  // free pages count as committed, and the child is promised as much
  sys::ScopedSignalBlock signals;  // a handler's fork would take what was reserved for this one
  if (pager_fork_check() < 0) {
    errno = ENOMEM;
    return -1;
  }
  unsigned arena = heap_step_out();
  pid_t pid = g_original.fork();
  int saved = errno;
  heap_step_in(arena);
  if (pid >= 0) last_resort_forked(pid);
  if (pid < 0) pager_fork_failed();
  errno = saved;
  return pid;
}

const char* library_of(const void* function) {
  Dl_info where;
  return function != nullptr && dladdr(function, &where) != 0 ? where.dli_fname : "?";
}

bool same_library(const void* a, const void* b) {
  Dl_info first, second;
  return dladdr(a, &first) != 0 && dladdr(b, &second) != 0 && first.dli_fbase == second.dli_fbase;
}

struct Redirection {
  const char* name;
  void* replacement;
  void** original;
};

constexpr const char* kUseRun =
    "start it as `lunar run -- redis-server ...` without this module instead";

}  // namespace

int server_heap_check(ErrorText* why) {
  void* alloc = program_calls("malloc");
  const void* jemalloc = dlsym(RTLD_DEFAULT, "mallocx");
  if (alloc == nullptr || dlsym(RTLD_DEFAULT, "je_mallctl") != nullptr)
    return why->set(-ENOTSUP,
                    "this server carries its own allocator (not the shared libjemalloc.so.2), "
                    "which cannot be tiered from a module; %s",
                    kUseRun);
  if (jemalloc == nullptr || !same_library(alloc, jemalloc))
    return why->set(-ENOTSUP,
                    "this server's malloc is that of %s, not of the shared libjemalloc.so.2; %s",
                    library_of(alloc), kUseRun);
  for (const char* name : {"calloc", "realloc", "free"})
    if (void* found = program_calls(name); found == nullptr || !same_library(found, alloc))
      return why->set(-ENOTSUP, "this server's malloc is that of %s and its %s that of %s; %s",
                      library_of(alloc), name, library_of(found), kUseRun);
  void* ignored;
  return program_redirect("malloc", alloc, &ignored, why);  // a trial that changes nothing
}

int server_heap_start(ErrorText* why) {
  const Redirection redirections[] = {
      {"fork", reinterpret_cast<void*>(&guarded_fork), reinterpret_cast<void**>(&g_original.fork)},
      {"malloc", reinterpret_cast<void*>(&tiered_malloc),
       reinterpret_cast<void**>(&g_original.alloc)},
      {"calloc", reinterpret_cast<void*>(&tiered_calloc),
       reinterpret_cast<void**>(&g_original.zeroed)},
      {"realloc", reinterpret_cast<void*>(&tiered_realloc),
       reinterpret_cast<void**>(&g_original.resize)},
  };
  int rc = heap_create(HeapMode::kProcess, why);
  if (rc < 0) return rc;
  unsigned done = 0;
  for (const Redirection& redirection : redirections) {
    rc = program_redirect(redirection.name, redirection.replacement, redirection.original, why);
    if (rc < 0) break;
    ++done;
  }
  if (rc == 0) {
    (void)heap_step_out();     // the thread's cache holds memory from before
    heap_free(heap_alloc(1));  // binds this thread
    return 0;
  }
  for (unsigned i = 0; i < done; ++i) {
    void* ignored;
    ErrorText also;
    (void)program_redirect(redirections[i].name, *redirections[i].original, &ignored, &also);
  }
  return rc;
}

}  // namespace lunar::redis
