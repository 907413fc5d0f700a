// SPDX-License-Identifier: Apache-2.0
// malloc's family and operator new/delete under the preload: every call's contract, on memory that
// is tiered and evicted.
#include "preload_test.h"

#include <gnu/libc-version.h>
#include <malloc.h>

#include <atomic>
#include <cstdint>
#include <exception>
#include <limits>
#include <new>
#include <vector>

namespace {

void alignments() {
  for (size_t alignment = 16; alignment <= (1u << 21); alignment *= 2) {
    for (size_t bytes : {size_t(1), size_t(100), size_t(5000), size_t(300000)}) {
      void* a = nullptr;
      REQUIRE(posix_memalign(&a, alignment, bytes) == 0);
      void* b = aligned_alloc(alignment, bytes);
      void* c = memalign(alignment, bytes);
      for (void* p : {a, b, c}) {
        REQUIRE(p != nullptr && reinterpret_cast<uintptr_t>(p) % alignment == 0 && tiered(p));
        REQUIRE(malloc_usable_size(p) >= bytes);
        memset(p, 1, bytes);
        free(p);
      }
    }
  }
  void* p = reinterpret_cast<void*>(1);
  errno = 0;
  REQUIRE(posix_memalign(&p, 24, 10) == EINVAL && posix_memalign(&p, 4, 10) == EINVAL &&
          errno == 0);
  REQUIRE(p == reinterpret_cast<void*>(1));
  size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  void* v = valloc(10);
  REQUIRE(reinterpret_cast<uintptr_t>(v) % page == 0);
  void* w = pvalloc(10);
  REQUIRE(reinterpret_cast<uintptr_t>(w) % page == 0 && malloc_usable_size(w) >= page);
  free(v);
  free(w);
}

void calloc_is_zero_when_recycled() {
  for (int round = 0; round < 4; ++round) {
    for (size_t bytes :
         {size_t(24), size_t(4096), size_t(100000), size_t(3) << 20, size_t(24) << 20}) {
      void* dirty = malloc(bytes);
      REQUIRE(dirty != nullptr && tiered(dirty));
      memset(dirty, 0xAB, bytes);
      free(dirty);
      void* clean = calloc(bytes / 8, 8);
      REQUIRE(clean != nullptr && all_zero(clean, bytes));
      memset(clean, 0xCD, bytes);
      free(clean);
    }
  }
}

// glibc's free keeps errno since 2.33. Blocks that go back to the pager at once, and some of which
// the LUN must forget.
void free_keeps_errno() {
  for (size_t bytes : {size_t(24), size_t(100000), size_t(24) << 20}) {
    void* p = malloc(bytes);
    REQUIRE(p != nullptr);
    memset(p, 1, bytes);
    errno = EXDEV;
    free(p);
    REQUIRE(errno == EXDEV);
  }
  free(nullptr);
  REQUIRE(errno == EXDEV && malloc_usable_size(nullptr) == 0);
}

void realloc_keeps_content() {
  size_t bytes = 64;
  void* p = malloc(bytes);
  fill(p, bytes, 7);
  while (bytes < (size_t(48) << 20)) {  // past the DRAM budget
    size_t more = bytes * 2;
    void* grown = realloc(p, more);
    REQUIRE(grown != nullptr && holds(grown, bytes, 7));
    p = grown;
    fill(p, more, 7);
    bytes = more;
  }
  void* shrunk = realloc(p, bytes / 4);
  REQUIRE(shrunk != nullptr && holds(shrunk, bytes / 4, 7));
  REQUIRE(realloc(shrunk, 0) == nullptr);
  p = realloc(nullptr, 10);
  REQUIRE(p != nullptr && tiered(p));
  free(p);
}

void refusals() {
  errno = 0;
  volatile size_t half = SIZE_MAX / 2;
  REQUIRE(calloc(half, 4) == nullptr && errno == ENOMEM);
  errno = 0;
  REQUIRE(reallocarray(nullptr, half, 4) == nullptr && errno == ENOMEM);
  errno = 0;
  volatile size_t huge = PTRDIFF_MAX;
  REQUIRE(malloc(huge) == nullptr && errno == ENOMEM);
  errno = 0;
  REQUIRE(malloc(size_t(1) << 40) == nullptr && errno == ENOMEM);  // more than the LUN
  void* p = malloc(0);
  REQUIRE(p != nullptr);
  errno = 42;
  free(p);
  free(nullptr);
  REQUIRE(errno == 42);
}

int g_handler_calls = 0;
void* g_spare = nullptr;
void give_up_handler() {
  ++g_handler_calls;
  if (g_handler_calls == 2) std::set_new_handler(nullptr);
}

struct alignas(256) Wide {
  char bytes[512];
};

void new_and_delete() {
  auto* one = new int(5);
  auto* many = new int[1000];
  auto* wide = new Wide;
  auto* wides = new Wide[3];
  REQUIRE(tiered(one) && tiered(many) && tiered(wide) &&
          reinterpret_cast<uintptr_t>(wide) % 256 == 0);
  delete one;
  delete[] many;
  delete wide;
  delete[] wides;
  void* quiet = ::operator new(100, std::nothrow);
  ::operator delete(quiet, std::nothrow);
  ::operator delete(::operator new(64), size_t(64));
  ::operator delete(::operator new(64, std::align_val_t(64)), size_t(64), std::align_val_t(64));
  volatile size_t huge = size_t(1) << 45;
  REQUIRE(::operator new(huge, std::nothrow) == nullptr);
  bool caught = false;
  try {
    g_spare = ::operator new(huge);
  } catch (const std::bad_alloc&) { caught = true; }
  REQUIRE(caught && std::uncaught_exceptions() == 0);
  std::set_new_handler(give_up_handler);
  caught = false;
  try {
    g_spare = ::operator new(huge);
  } catch (const std::bad_alloc&) { caught = true; }
  REQUIRE(caught && g_handler_calls == 2);
}

// Memory freed by another thread than made it, and short-lived threads.
struct Parcel {
  Parcel* next;
  size_t bytes;
  unsigned long seed;
  unsigned long* content() { return reinterpret_cast<unsigned long*>(this + 1); }
};
std::atomic<Parcel*> g_parcels{nullptr};

void check_and_free(Parcel* list) {
  while (list != nullptr) {
    Parcel* next = list->next;
    REQUIRE(holds(list->content(), list->bytes, list->seed));
    free(list);
    list = next;
  }
}

void send_parcels(unsigned long seed) {
  for (unsigned long i = 0; i < 60; ++i) {
    const unsigned long random = stamp(seed, i);
    const size_t bytes = random % (i % 10 == 0 ? 300000 : 8000) & ~7ul;
    auto* parcel = static_cast<Parcel*>(malloc(sizeof(Parcel) + bytes));
    REQUIRE(parcel != nullptr && tiered(parcel));
    parcel->bytes = bytes;
    parcel->seed = random;
    fill(parcel->content(), bytes, random);
    parcel->next = g_parcels.load();
    while (!g_parcels.compare_exchange_weak(parcel->next, parcel)) {}
    if (i % 16 == 0) check_and_free(g_parcels.exchange(nullptr));
  }
}

void freed_by_other_threads() {
  for (unsigned long round = 0; round < 40; ++round) {
    lunar_test::in_parallel(4ul, [&](unsigned long i) { send_parcels(round * 100 + i); });
  }
  check_and_free(g_parcels.exchange(nullptr));
}

// libc's answer to an alignment that is no power of two: from 2.38 on it refuses it.
void odd_alignments() {
  const bool refused = atoi(strchr(gnu_get_libc_version(), '.') + 1) >= 38;
  for (const size_t volatile alignment : {size_t(3), size_t(0), size_t(24)}) {
    errno = 0;
    void* p = aligned_alloc(alignment, 100);
    REQUIRE((p == nullptr) == refused && (errno == EINVAL) == refused);
    if (p != nullptr)
      REQUIRE(tiered(p) && reinterpret_cast<uintptr_t>(p) % (alignment > 16 ? 32 : 16) == 0);
    free(p);
  }
  const size_t volatile huge = SIZE_MAX / 2 + 2;
  errno = 0;
  REQUIRE(aligned_alloc(huge, 100) == nullptr && errno == EINVAL);
}

// Each report counts `bytes` that are allocated, and no more than the allocator has.
void reports() {
  constexpr size_t kBytes = 20 << 20;
  const struct mallinfo2 before = mallinfo2();
  REQUIRE(before.arena >= before.uordblks && before.uordblks + before.fordblks == before.arena);
  void* p = malloc(kBytes);
  memset(p, 1, kBytes);
  const struct mallinfo2 now = mallinfo2();
  REQUIRE(now.uordblks >= before.uordblks + kBytes && now.uordblks < before.uordblks + 2 * kBytes);
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
  const struct mallinfo old = mallinfo();
#pragma GCC diagnostic pop
  REQUIRE(static_cast<size_t>(old.uordblks) == now.uordblks &&
          static_cast<size_t>(old.arena) == now.arena);
  char* text = nullptr;
  size_t length = 0;
  FILE* file = open_memstream(&text, &length);
  REQUIRE(file != nullptr && malloc_info(1, file) == EINVAL && malloc_info(0, file) == 0 &&
          fclose(file) == 0);
  REQUIRE(strstr(text, "<malloc version=\"1\">") == text && strstr(text, "</malloc>\n") != nullptr);
  free(text);
  free(p);
  REQUIRE(mallinfo2().uordblks < now.uordblks - kBytes / 2);
  REQUIRE(malloc_trim(0) == 0 ||
          malloc_trim(0) == 0);  // a second time there is nothing to give back
  REQUIRE(mallopt(M_MMAP_THRESHOLD, 1 << 20) == 1);
  malloc_stats();
}

// Before main the library starts, and leaves errno as it was.
int errno_at_start;
struct NoteErrno {
  NoteErrno() { errno_at_start = errno; }
} note_errno;

void body() {
  REQUIRE(errno_at_start == 0);
  alignments();
  odd_alignments();
  reports();
  calloc_is_zero_when_recycled();
  free_keeps_errno();
  realloc_keeps_content();
  refusals();
  new_and_delete();
  freed_by_other_threads();
}

}  // namespace

int main(int argc, char** argv) {
  return run_cases(argc, argv, {"LUNAR_DRAM=32m", "LUNAR_SIZE=1g", "LUNAR_ACTIVATE_AT=1m"},
                   {{"all", body}});
}
