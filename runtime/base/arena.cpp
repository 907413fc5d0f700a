// SPDX-License-Identifier: Apache-2.0
// Arena: a bump allocator over populated chunks, lock-free so that a fork at any moment leaves it usable in the child.
//
//   current_ ──► [ used | object | object | ...free... ]   256 KiB; a full chunk is forgotten (nothing is freed)
//
// All objects are multiples of 64 bytes, so an offset is 64-aligned without further work. Requests that would waste
// much of a chunk get a mapping of their own.
// Threading: any thread. Calls only mmap (through sys/mem.h); never the host's allocator.
#include "base/arena.h"

#include <sys/mman.h>

#include <atomic>

#include "base/units.h"
#include "sys/mem.h"

namespace lunar {
namespace {

constexpr size_t kChunkBytes = 256 * kKiB;
constexpr size_t kGrain = 64;
constexpr size_t kOwnMappingFrom = kChunkBytes / 8;

struct alignas(kGrain) Chunk {
  std::atomic<size_t> used;   // may run past kChunkBytes when full: whoever passes the end starts a new chunk
};
static_assert(sizeof(Chunk) == kGrain);

std::atomic<Chunk*> g_current{nullptr};
std::atomic<size_t> g_mapped_bytes{0};

void* map_pages(size_t bytes, bool populate) {
  void* address = nullptr;
  int flags = MAP_PRIVATE | MAP_ANONYMOUS | (populate ? MAP_POPULATE : MAP_NORESERVE);
  if (sys::map(nullptr, bytes, PROT_READ | PROT_WRITE, flags, -1, 0, &address) < 0) return nullptr;
  g_mapped_bytes.fetch_add(bytes, std::memory_order_relaxed);
  return address;
}

void unmap_pages(void* address, size_t bytes) {
  if (sys::unmap(address, bytes) == 0) g_mapped_bytes.fetch_sub(bytes, std::memory_order_relaxed);
}

// Memory of its own, aligned beyond a page when asked: maps more and gives the ends back.
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

}   // namespace

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
        return reinterpret_cast<void*>(round_up(address, align > kGrain ? align : kGrain));
      }
    }
    Chunk* fresh = new_chunk();
    if (!fresh) return nullptr;
    if (!g_current.compare_exchange_strong(chunk, fresh, std::memory_order_acq_rel)) unmap_pages(fresh, kChunkBytes);
  }
}

size_t arena_bytes() { return g_mapped_bytes.load(std::memory_order_relaxed); }

void* map_private(size_t bytes, ForkPolicy fork_policy) {
  if (bytes == 0 || bytes > SIZE_MAX / 2) return nullptr;
  bytes = round_up(bytes, sys::page_bytes());
  void* address = map_pages(bytes, false);
  if (!address) return nullptr;
  // A huge page would charge 2 MiB for the first byte touched; the budget counts what is used. No THP: fine.
  (void)sys::advise(address, bytes, MADV_NOHUGEPAGE);
  if (fork_policy == ForkPolicy::kDontFork && sys::advise(address, bytes, MADV_DONTFORK) < 0) {
    unmap_pages(address, bytes);
    return nullptr;
  }
  return address;
}

void unmap_private(void* address, size_t bytes) {
  if (address) unmap_pages(address, round_up(bytes, sys::page_bytes()));
}

}   // namespace lunar
