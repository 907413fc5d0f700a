// SPDX-License-Identifier: Apache-2.0
// See early_heap.h. A static buffer (.bss: pages that are never touched cost nothing), one atomic offset, and a header
// in front of each block. Blocks that came back wait in a list for each power of two, the list of the largest that
// their room holds; their first word is the offset of the next. A list's head carries a count of its changes, so that a
// thread that was held up in the middle of taking a block notices.
#include "early_heap.h"

#include <sys/mman.h>

#include <atomic>
#include <bit>
#include <cstdint>
#include <cstring>

#include "base/units.h"
#include "sys/mem.h"

namespace lunar::preload {
namespace {

constexpr size_t kBytes = 4u << 20;
struct Header {
  uint32_t room, bytes;  // of the block: what may be used, what was asked for
};
constexpr size_t kHeader = 16;  // keeps the default alignment of malloc
constexpr size_t kSmallest = 16;
static_assert(sizeof(Header) <= kHeader);
constexpr uint64_t kOffset = UINT32_MAX, kChange = kOffset + 1;  // a list's head: changes, offset of a block (0: none)
// not in the file (meson.build)
alignas(64) __attribute__((section(".bss.early_heap"))) constinit char g_buffer[kBytes];
constinit std::atomic<size_t> g_top{0};
constinit std::atomic<uint64_t> g_lists[std::bit_width(kBytes)];

// A few KiB of it are used, as a rule: not by 2 MiB each where huge pages are `always`.
void keep_pages_small() {
  const size_t page = sys::page_bytes();
  const auto base = reinterpret_cast<uintptr_t>(g_buffer), first = round_up(base, page),
             end = (base + kBytes) / page * page;
  (void)sys::advise(reinterpret_cast<void*>(first), end - first, MADV_NOHUGEPAGE);
}

Header& header_of(const void* pointer) {
  return *reinterpret_cast<Header*>(const_cast<char*>(static_cast<const char*>(pointer)) - kHeader);
}

std::atomic<uint64_t>& next_of(uint64_t offset) { return *reinterpret_cast<std::atomic<uint64_t>*>(g_buffer + offset); }

char* take_again(size_t room) {
  auto& list = g_lists[std::bit_width(room) - 1];
  uint64_t head = list.load(std::memory_order_acquire);
  while ((head & kOffset) != 0) {
    const uint64_t next = next_of(head & kOffset).load(std::memory_order_relaxed) & kOffset;
    if (list.compare_exchange_weak(head, (head & ~kOffset) + kChange + next, std::memory_order_acquire))
      return g_buffer + (head & kOffset);
  }
  return nullptr;
}

char* take_new(size_t alignment, size_t room) {
  const auto base = reinterpret_cast<uintptr_t>(g_buffer);
  size_t before = g_top.load(std::memory_order_relaxed), start;
  do {
    start = round_up(base + before + kHeader, alignment) - base;
    if (start > kBytes || room > kBytes - start) return nullptr;
  } while (!g_top.compare_exchange_weak(before, start + room, std::memory_order_relaxed));
  if (before == 0) keep_pages_small();
  return g_buffer + start;
}

}  // namespace

void* early_alloc(size_t alignment, size_t bytes) {
  if (bytes > kBytes || alignment > kBytes) return nullptr;
  const size_t room = std::bit_ceil(bytes < kSmallest ? kSmallest : bytes);
  char* pointer = alignment <= kHeader ? take_again(room) : nullptr;
  if (pointer != nullptr)
    memset(pointer, 0, bytes);
  else
    pointer = take_new(alignment < kHeader ? kHeader : alignment, room);
  if (pointer != nullptr) header_of(pointer) = {static_cast<uint32_t>(room), static_cast<uint32_t>(bytes)};
  return pointer;
}

void early_free(void* pointer) {
  const auto offset = static_cast<uint64_t>(static_cast<char*>(pointer) - g_buffer);
  auto& list = g_lists[std::bit_width(header_of(pointer).room) - 1];
  uint64_t head = list.load(std::memory_order_relaxed);
  do {
    next_of(offset).store(head & kOffset, std::memory_order_relaxed);
  } while (!list.compare_exchange_weak(head, (head & ~kOffset) + kChange + offset, std::memory_order_release));
}

bool early_owns(const void* pointer) {
  return reinterpret_cast<uintptr_t>(pointer) - reinterpret_cast<uintptr_t>(g_buffer) < kBytes;
}

size_t early_size(const void* pointer) { return header_of(pointer).bytes; }

}  // namespace lunar::preload
