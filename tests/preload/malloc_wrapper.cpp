// SPDX-License-Identifier: Apache-2.0
// A malloc that a program brings along to watch the real one (as heap profilers do): it calls that
// with a lock held, which its fork handlers hold too. It finds the real one at its first use, and
// makes the handlers then. Threading: any thread.
#include <dlfcn.h>
#include <pthread.h>

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <cstring>

namespace {

pthread_mutex_t g_lock = PTHREAD_MUTEX_INITIALIZER;
void* (*g_malloc)(size_t) = nullptr;
void* (*g_calloc)(size_t, size_t) = nullptr;
void* (*g_realloc)(void*, size_t) = nullptr;
void (*g_free)(void*) = nullptr;

void lock() { pthread_mutex_lock(&g_lock); }
void unlock() { pthread_mutex_unlock(&g_lock); }

template <class F>
void find(F& slot, const char* name) {
  slot = reinterpret_cast<F>(dlsym(RTLD_NEXT, name));
  if (slot == nullptr) abort();
}

void begin() {
  static std::atomic<bool> done{false};
  if (done.exchange(true)) return;
  find(g_malloc, "malloc");
  find(g_calloc, "calloc");
  find(g_realloc, "realloc");
  find(g_free, "free");
  if (pthread_atfork(lock, unlock, unlock) != 0) abort();
}

thread_local bool t_inside = false;  // the real one calls the linker or libc, which call us

class Watch {
 public:
  Watch() : outer_(!t_inside) {
    begin();
    t_inside = true;
    if (outer_) lock();
  }
  ~Watch() {
    if (!outer_) return;
    unlock();
    t_inside = false;
  }
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

 private:
  bool outer_;
};

}  // namespace

extern "C" {
void* malloc(size_t bytes) noexcept {
  Watch watch;
  return g_malloc(bytes);
}
void* calloc(size_t count, size_t each) noexcept {
  Watch watch;
  return g_calloc(count, each);
}
void* realloc(void* block, size_t bytes) noexcept {
  Watch watch;
  return g_realloc(block, bytes);
}
void free(void* block) noexcept {
  Watch watch;
  g_free(block);
}
}
