// SPDX-License-Identifier: Apache-2.0
// mallinfo, malloc_stats, malloc_info, malloc_trim, mallopt: glibc's calls about its allocator,
// answered for the one that serves the program. libc's own would report an allocator without
// blocks. "In use" are the program's blocks, "free" is the rest of the allocator's pages; no block
// counts as mapped separately. mallopt accepts everything and changes nothing, because its
// parameters belong to glibc's algorithms.
//
// A program with its own malloc comes here only for calls which that malloc does not have: it sees
// the figures of Lunar's allocator.
// Threading: any thread; takes the allocator's locks.
#include <errno.h>
#include <limits.h>
#include <malloc.h>
#include <stdio.h>
#include <unistd.h>

#include "base/format.h"
#include "heap/heap.h"
#include "preload.h"

namespace lunar::preload {
namespace {

HeapCounts counts() {
  HeapCounts counts;
  if (g_phase.load(std::memory_order_acquire) == Phase::kReady) heap_counts(&counts);
  return counts;
}

int cut(size_t bytes) { return bytes > INT_MAX ? INT_MAX : static_cast<int>(bytes); }

}  // namespace
}  // namespace lunar::preload

using namespace lunar;
using namespace lunar::preload;

LUNAR_EXPORT struct mallinfo2 mallinfo2(void) noexcept {
  const HeapCounts now = counts();
  struct mallinfo2 info{};
  info.arena = now.active;
  info.uordblks = now.allocated;
  info.fordblks = now.active - now.allocated;
  info.keepcost = info.fordblks;
  info.ordblks = info.fordblks != 0 ? 1 : 0;
  return info;
}

LUNAR_EXPORT struct mallinfo mallinfo(void) noexcept {
  const HeapCounts now = counts();
  struct mallinfo info{};
  info.arena = cut(now.active);
  info.uordblks = cut(now.allocated);
  info.fordblks = info.keepcost = cut(now.active - now.allocated);
  info.ordblks = info.fordblks != 0 ? 1 : 0;
  return info;
}

LUNAR_EXPORT void malloc_stats(void) noexcept {
  const HeapCounts now = counts();
  char text[256];
  const size_t length =
      format_to(text, sizeof text, "Arena 0:\nsystem bytes     = %10zu\nin use bytes     = %10zu\n",
                now.active, now.allocated);
  fwrite(text, 1, length, stderr);
}

LUNAR_EXPORT int malloc_info(int options, FILE* file) noexcept {
  if (options != 0) return EINVAL;
  const HeapCounts now = counts();
  char text[512];
  const size_t length = format_to(
      text, sizeof text,
      "<malloc version=\"1\">\n<heap nr=\"0\">\n<sizes>\n</sizes>\n"
      "<total type=\"rest\" count=\"1\" size=\"%zu\"/>\n<system type=\"current\" size=\"%zu\"/>\n"
      "</heap>\n<total type=\"rest\" count=\"1\" size=\"%zu\"/>\n"
      "<system type=\"current\" size=\"%zu\"/>\n</malloc>\n",
      now.active - now.allocated, now.active, now.active - now.allocated, now.active);
  return fwrite(text, 1, length, file) == length ? 0 : -1;
}

// 1: memory went back.
LUNAR_EXPORT int malloc_trim(size_t) noexcept {
  if (!serves_tiered()) return 0;
  const size_t before = heap_hook_bytes().committed;
  heap_purge();
  return heap_hook_bytes().committed < before ? 1 : 0;
}

LUNAR_EXPORT int mallopt(int, int) noexcept { return 1; }
