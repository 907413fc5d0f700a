// SPDX-License-Identifier: Apache-2.0
// The registry of regions. Readers retry while a writer changes it; writers take a lock.
// Threading: look-ups from anywhere, also on the fault path.
#include "pager/page/region.h"

#include <errno.h>

#include "sys/arena.h"
#include "sys/by_halves.h"

namespace lunar {

char* Region::address_of(PageIndex page) const { return base + page.value * sys::page_bytes(); }

PageIndex Region::page_of(const void* address) const {
  return PageIndex(static_cast<uint64_t>(static_cast<const char*>(address) - base) /
                   sys::page_bytes());
}

bool Region::holds(const void* address) const {
  auto* p = static_cast<const char*>(address);
  return p >= base && p < base + pages * sys::page_bytes();
}

Region* RegionTable::find(const void* address) const {
  for (;;) {
    uint32_t before = sequence.load(std::memory_order_acquire);
    if (before & 1) {
      sys::cpu_relax();
      continue;
    }
    Region* hit = nullptr;
    uint32_t low = 0, high = count.load(std::memory_order_acquire);
    while (low < high) {
      uint32_t middle = (low + high) / 2;
      Region* region = sorted[middle].load(std::memory_order_acquire);
      if (region == nullptr) break;
      if (region->base <= static_cast<const char*>(address)) {
        hit = region;
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    std::atomic_thread_fence(std::memory_order_acquire);
    if (sequence.load(std::memory_order_relaxed) != before) continue;
    return hit != nullptr && hit->holds(address) ? hit : nullptr;
  }
}

PageWord word_of(const Region& region, PageIndex page) {
  const sys::ScopedSignalBlock signals;
  const TableScope scope;
  return region.table.peek(page.value);
}

void claim_holes(const Region& region, uint64_t first, uint64_t end) {
  (void)sys::by_halves(region.address_of(PageIndex(first)), (end - first) * sys::page_bytes(),
                       -EBUSY, [](char* at, size_t bytes) {
                         const int rc = sys::claim(at, bytes);
                         return rc == -EBUSY && bytes > sys::page_bytes() ? rc : 0;
                       });
}

int RegionTable::insert(Region* region) {
  sys::Locked<sys::Mutex> locked(lock);
  uint32_t n = count.load(std::memory_order_relaxed);
  if (n == kRegionsMax) return -EMFILE;
  if (sorted == nullptr)
    sorted = static_cast<std::atomic<Region*>*>(
        map_private(kRegionsMax * sizeof *sorted, ForkPolicy::kInherit));
  if (sorted == nullptr) return -ENOMEM;
  sequence.fetch_add(1, std::memory_order_acq_rel);
  uint32_t at = n;
  for (; at > 0 && sorted[at - 1].load(std::memory_order_relaxed)->base > region->base; --at)
    sorted[at].store(sorted[at - 1].load(std::memory_order_relaxed), std::memory_order_release);
  sorted[at].store(region, std::memory_order_release);
  count.store(n + 1, std::memory_order_release);
  sequence.fetch_add(1, std::memory_order_release);
  return 0;
}

void RegionTable::remove(Region* region) {
  sys::Locked<sys::Mutex> locked(lock);
  uint32_t n = count.load(std::memory_order_relaxed);
  sequence.fetch_add(1, std::memory_order_acq_rel);
  uint32_t out = 0;
  for (uint32_t i = 0; i < n; ++i) {
    Region* entry = sorted[i].load(std::memory_order_relaxed);
    if (entry != region) sorted[out++].store(entry, std::memory_order_release);
  }
  count.store(out, std::memory_order_relaxed);
  sequence.fetch_add(1, std::memory_order_release);
}

}  // namespace lunar
