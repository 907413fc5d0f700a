// SPDX-License-Identifier: Apache-2.0
// Arena: a bump allocator over populated chunks, lock-free so that a fork at any moment leaves it
// usable in the child.
//
//   current_ ──► [ used | object | object | ...free... ]   256 KiB; a full one is left behind
//
// The sizes of all objects are multiples of 64 bytes, so each offset is 64-aligned. A request that
// would waste much of a chunk gets its own mapping. All of it is a private mapping of /dev/zero, if
// that exists: anonymous memory with the usual copy-on-write, but /proc/self/maps shows a file.
// Some programs look there for their own memory and overwrite it: the memory test of Redis' crash
// report saves, overwrites and restores each mapping without a file. That would reset Lunar's
// tables under running service threads.
// Threading: any thread. Calls only mmap and the functions that find /dev/zero (all in sys/), never
// the host's allocator. Keeps errno.
#include "sys/arena.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>

#include "base/units.h"
#include "sys/file.h"
#include "sys/mem.h"

namespace lunar {
namespace {

constexpr size_t kChunkBytes = 256 * kKiB;
constexpr size_t kGrain = 64;
// MADV_POPULATE_WRITE (5.14), MADV_WIPEONFORK (4.14)
constexpr int kPopulateWrite = 23, kWipeOnFork = 18;
constexpr size_t kOwnMappingFrom = kChunkBytes / 8;

struct alignas(kGrain) Chunk {
  // May run past kChunkBytes when full: the thread that passes the end starts a new chunk.
  std::atomic<size_t> used;
};
static_assert(sizeof(Chunk) == kGrain);

std::atomic<Chunk*> g_current{nullptr};
std::atomic<size_t> g_mapped_bytes{0};

// nullptr: there is no /dev/zero, or no free descriptor. The program may close this descriptor at
// any time and open a file in its place. So the check for /dev/zero comes after the mapping.
void* map_zero_device(size_t bytes, int protection, int flags) {
  const int fd = sys::open_file("/dev/zero", O_RDONLY);
  if (fd < 0) return nullptr;
  void* address = nullptr;
  constexpr off_t kOffset = off_t{kOwnMapsMark} << kOwnMapsShift;
  const bool mapped = sys::map(nullptr, bytes, protection, MAP_PRIVATE | (flags & ~MAP_POPULATE),
                               fd, kOffset, &address) == 0;
  const bool is_zero = sys::is_zero_device(fd);
  if (is_zero) sys::close_file(fd);
  if (mapped && is_zero) {
    if ((flags & MAP_POPULATE) != 0) (void)sys::advise(address, bytes, kPopulateWrite);
    return address;
  }
  if (mapped) (void)sys::unmap(address, bytes);
  return nullptr;
}

void* map_pages(size_t bytes, bool populate, bool plain = false,
                int protection = PROT_READ | PROT_WRITE) {
  const int saved = errno;
  const int flags = populate ? MAP_POPULATE : MAP_NORESERVE;
  void* address = plain ? nullptr : map_zero_device(bytes, protection, flags);
  if (address == nullptr && sys::map(nullptr, bytes, protection,
                                     MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0, &address) < 0)
    address = nullptr;
  errno = saved;
  if (address != nullptr) g_mapped_bytes.fetch_add(bytes, std::memory_order_relaxed);
  return address;
}

// Ignores failure: a kernel without huge pages does not know this advice.
void refuse_huge_pages(void* address, size_t bytes) {
  const int saved = errno;
  (void)sys::advise(address, bytes, MADV_NOHUGEPAGE);
  errno = saved;
}

bool unmap_pages(void* address, size_t bytes) {
  const int saved = errno;
  const bool done = sys::unmap(address, bytes) == 0;
  errno = saved;
  if (!done) return false;
  g_mapped_bytes.fetch_sub(bytes, std::memory_order_relaxed);
  return true;
}

// A separate mapping. For an alignment above a page: maps more and gives the ends back.
void* alloc_mapping(size_t bytes, size_t align) {
  size_t page = sys::page_bytes();
  if (bytes > SIZE_MAX / 2 || align > SIZE_MAX / 4) return nullptr;
  bytes = round_up(bytes, page);
  if (align <= page) return map_pages(bytes, true);
  char* wide = static_cast<char*>(map_pages(bytes + align, false));
  if (!wide) return nullptr;
  uintptr_t start = reinterpret_cast<uintptr_t>(wide);
  size_t head = round_up(start, align) - start;
  if (head) unmap_pages(wide, head);
  if (align - head) unmap_pages(wide + head + bytes, align - head);
  return wide + head;
}

Chunk* new_chunk() {
  void* memory = map_pages(kChunkBytes, true);
  return memory ? new (memory) Chunk{sizeof(Chunk)} : nullptr;
}

}  // namespace

void* arena_alloc(size_t bytes, size_t align) {
  if (align == 0 || (align & (align - 1)) != 0 || bytes > SIZE_MAX / 2) return nullptr;
  if (bytes == 0) bytes = 1;
  if (bytes >= kOwnMappingFrom || align > sys::page_bytes()) return alloc_mapping(bytes, align);
  // Slack for alignments above the grain: offsets are multiples of the grain.
  size_t need = round_up(bytes, kGrain) + (align > kGrain ? align - kGrain : 0);
  for (;;) {
    Chunk* chunk = g_current.load(std::memory_order_acquire);
    if (chunk) {
      size_t offset = chunk->used.fetch_add(need, std::memory_order_relaxed);
      if (offset + need <= kChunkBytes) {
        uintptr_t address = reinterpret_cast<uintptr_t>(chunk) + offset;
        return reinterpret_cast<void*>(round_up(address, std::max(align, kGrain)));
      }
    }
    Chunk* fresh = new_chunk();
    if (!fresh) return nullptr;
    if (!g_current.compare_exchange_strong(chunk, fresh, std::memory_order_acq_rel))
      (void)unmap_pages(fresh, kChunkBytes);
  }
}

size_t arena_bytes() { return g_mapped_bytes.load(std::memory_order_relaxed); }

void* map_private(size_t bytes, ForkPolicy fork_policy) {
  if (bytes == 0 || bytes > SIZE_MAX / 2) return nullptr;
  bytes = round_up(bytes, sys::page_bytes());
  // A mapping of a file is not wiped.
  void* address = map_pages(bytes, false, fork_policy == ForkPolicy::kWipe);
  if (!address) return nullptr;
  // The budget counts the bytes in use, but a huge page would take 2 MiB for the first byte
  // touched.
  refuse_huge_pages(address, bytes);
  const int advice = fork_policy == ForkPolicy::kDontFork ? MADV_DONTFORK : kWipeOnFork;
  if (fork_policy != ForkPolicy::kInherit && sys::advise(address, bytes, advice) < 0) {
    unmap_pages(address, bytes);
    return nullptr;
  }
  return address;
}

void* map_private_huge(size_t bytes, ForkPolicy fork_policy) {
  if (bytes == 0 || bytes > SIZE_MAX / 4) return nullptr;
  bytes = round_up(bytes, kHugeBytes);
  auto* mapped = static_cast<char*>(map_private(bytes + kHugeBytes, fork_policy));
  if (!mapped) return map_private(bytes, fork_policy);
  const size_t before = round_up(reinterpret_cast<uintptr_t>(mapped), kHugeBytes) -
                        reinterpret_cast<uintptr_t>(mapped);
  // If a neighbour has joined this mapping, unmapping one end alone may fail (vm.max_map_count).
  // Then all of it is unmapped.
  size_t left = bytes + kHugeBytes;
  const bool end_is_off = unmap_pages(mapped + before + bytes, kHugeBytes - before);
  if (end_is_off) left -= kHugeBytes - before;
  if (!end_is_off || (before && !unmap_pages(mapped, before))) {
    (void)unmap_pages(mapped, left);
    return map_private(bytes, fork_policy);
  }
  (void)sys::advise(mapped + before, bytes, MADV_HUGEPAGE);
  return mapped + before;
}

void* map_readable(size_t bytes) {
  if (bytes == 0 || bytes > SIZE_MAX / 2) return nullptr;
  bytes = round_up(bytes, sys::page_bytes());
  void* address = map_pages(bytes, false, false, PROT_READ);
  if (address != nullptr) refuse_huge_pages(address, bytes);
  return address;
}

void unmap_private(void* address, size_t bytes) {
  if (address) unmap_pages(address, round_up(bytes, sys::page_bytes()));
}

static bool is_small(size_t bytes) { return bytes <= 256; }

void* map_table(size_t bytes) {
  return is_small(bytes) ? arena_alloc(bytes) : map_private(bytes, ForkPolicy::kInherit);
}

void unmap_table(void* address, size_t bytes) {
  if (!is_small(bytes)) unmap_private(address, bytes);
}

}  // namespace lunar
