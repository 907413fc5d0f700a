// SPDX-License-Identifier: Apache-2.0
// See early_heap.h. A static buffer (.bss: pages that are never touched cost nothing), one atomic offset, and a size
// word in front of each block. A forked child goes on where its parent stood, in its own copy.
#include "early_heap.h"

#include <sys/mman.h>

#include <atomic>
#include <cstdint>

#include "base/units.h"
#include "sys/mem.h"

namespace lunar::preload {
namespace {

constexpr size_t kBytes = 4u << 20;
constexpr size_t kHeader = 16;  // keeps the default alignment of malloc
// not in the file (meson.build)
alignas(64) __attribute__((section(".bss.early_heap"))) constinit char g_buffer[kBytes];
constinit std::atomic<size_t> g_top{0};

// A few KiB of it are used, as a rule: not by 2 MiB each where huge pages are `always`.
void keep_pages_small() {
  const size_t page = sys::page_bytes();
  const auto base = reinterpret_cast<uintptr_t>(g_buffer), first = round_up(base, page),
             end = (base + kBytes) / page * page;
  (void)sys::advise(reinterpret_cast<void*>(first), end - first, MADV_NOHUGEPAGE);
}

}  // namespace

void* early_alloc(size_t alignment, size_t bytes) {
  if (alignment < 16) alignment = 16;
  if (bytes > kBytes || alignment > kBytes) return nullptr;
  size_t before = g_top.load(std::memory_order_relaxed), start;
  do {
    auto base = reinterpret_cast<uintptr_t>(g_buffer);
    start = ((base + before + kHeader + alignment - 1) & ~(alignment - 1)) - base;
    if (start > kBytes || bytes > kBytes - start) return nullptr;
  } while (!g_top.compare_exchange_weak(before, start + bytes, std::memory_order_relaxed));
  if (before == 0) keep_pages_small();
  char* pointer = g_buffer + start;
  *reinterpret_cast<size_t*>(pointer - kHeader) = bytes;
  return pointer;
}

bool early_owns(const void* pointer) {
  return reinterpret_cast<uintptr_t>(pointer) - reinterpret_cast<uintptr_t>(g_buffer) < kBytes;
}

size_t early_size(const void* pointer) {
  return *reinterpret_cast<const size_t*>(static_cast<const char*>(pointer) - kHeader);
}

}  // namespace lunar::preload
