// SPDX-License-Identifier: Apache-2.0
// A malloc that a program brings along (as statically linked jemalloc and tcmalloc do): one lock
// around everything, the memory by mmap under it, large blocks given back by munmap under it, and
// fork handlers that hold it. It ends the test when it is called while its own caller is inside, by
// a thread of the runtime, or with a block that it has not given. Threading: any thread.
#include <pthread.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>

namespace {

constexpr size_t kChunk = 2 << 20, kLarge = 256 << 10, kHeader = 16;
constexpr uint32_t kMagic = 0x6d616c63;
struct Header {
  uint32_t magic, shift;  // of a small block, which has 1 << shift bytes
  size_t bytes;
};
static_assert(sizeof(Header) == kHeader);

pthread_mutex_t g_lock = PTHREAD_MUTEX_INITIALIZER;
std::atomic<int> g_holder{0};
char *g_at = nullptr, *g_end = nullptr;
void* g_free[64];
std::atomic<size_t> g_calls{0};

[[noreturn]] void fail(const char* what) {
  (void)!write(2, what, strlen(what));
  (void)!write(2, "\n", 1);
  _exit(1);
}

void lock() {
  char name[16] = "";
  prctl(PR_GET_NAME, name);
  if (strncmp(name, "lunar-", 6) == 0) fail("a thread of the runtime uses the program's malloc");
  if (g_holder.load() == gettid()) fail("the program's malloc is called while it is inside itself");
  pthread_mutex_lock(&g_lock);
  g_holder.store(gettid());
  ++g_calls;
}

void unlock() {
  g_holder.store(0);
  pthread_mutex_unlock(&g_lock);
}

void* map(size_t bytes) {
  void* at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return at == MAP_FAILED ? nullptr : at;
}

void* take_locked(size_t bytes) {
  lock();
  const size_t all = bytes + kHeader;
  const auto shift = static_cast<uint32_t>(64 - __builtin_clzl(all - 1));
  char* block = nullptr;
  if (all >= kLarge) {
    block = static_cast<char*>(map(all));
  } else if (g_free[shift] != nullptr) {
    block = static_cast<char*>(g_free[shift]);
    memcpy(&g_free[shift], block + kHeader, sizeof(void*));
  } else {
    const size_t room = size_t{1} << shift;
    if (static_cast<size_t>(g_end - g_at) < room &&
        (g_at = static_cast<char*>(map(kChunk))) != nullptr)
      g_end = g_at + kChunk;
    if (g_at != nullptr) {
      block = g_at;
      g_at += room;
    } else {
      g_end = nullptr;
    }
  }
  if (block != nullptr) *reinterpret_cast<Header*>(block) = {kMagic, shift, bytes};
  unlock();
  return block == nullptr ? nullptr : block + kHeader;
}

Header* header_of(void* pointer) {
  auto* header = reinterpret_cast<Header*>(static_cast<char*>(pointer) - kHeader);
  if (header->magic != kMagic) fail("the program's malloc is given a block of another");
  return header;
}

void give(void* pointer) {
  if (pointer == nullptr) return;
  Header* header = header_of(pointer);
  lock();
  header->magic = 0;
  if (header->bytes + kHeader >= kLarge) {
    munmap(header, header->bytes + kHeader);
  } else {
    memcpy(pointer, &g_free[header->shift], sizeof(void*));
    g_free[header->shift] = header;
  }
  unlock();
}

// At its first use, as jemalloc: that may be before any constructor.
void handle_forks() {
  static std::atomic<bool> done{false};
  if (done.exchange(true)) return;
  pthread_atfork(lock, unlock, [] {
    g_holder.store(gettid());
    unlock();
  });
}

void* take(size_t bytes) {
  handle_forks();
  return take_locked(bytes);
}

}  // namespace

extern "C" {
void* malloc(size_t bytes) noexcept { return take(bytes); }
void free(void* pointer) noexcept { give(pointer); }
void* calloc(size_t count, size_t each) noexcept {
  void* block = take(count * each);
  if (block != nullptr) memset(block, 0, count * each);
  return block;
}
void* realloc(void* pointer, size_t bytes) noexcept {
  void* block = take(bytes);
  if (block == nullptr || pointer == nullptr) return block;
  const size_t before = header_of(pointer)->bytes;
  memcpy(block, pointer, before < bytes ? before : bytes);
  give(pointer);
  return block;
}
}

void* operator new(size_t bytes) {
  void* block = take(bytes);
  if (block == nullptr) fail("the program's malloc has no memory");
  return block;
}
void operator delete(void* pointer) noexcept { give(pointer); }
void operator delete(void* pointer, size_t) noexcept { give(pointer); }
