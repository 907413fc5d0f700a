// SPDX-License-Identifier: Apache-2.0
// Region look-up: a sorted array behind a sequence counter. Readers retry while a writer is at work; writers take a lock.
#include "pager/region.h"

#include <errno.h>

#include "pager/pager.h"
#include "pager/state.h"
#include "sys/mem.h"
#include "sys/uffd.h"

namespace lunar {

char* Region::address_of(PageIndex page) const { return base + page.value * sys::page_bytes(); }

PageIndex Region::page_of(const void* address) const {
  return PageIndex(static_cast<uint64_t>(static_cast<const char*>(address) - base) / sys::page_bytes());
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
    uint32_t low = 0, high = count.load(std::memory_order_relaxed);
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

bool RegionTable::overlaps(const void* address, uint64_t bytes) const {
  const auto* from = static_cast<const char*>(address);
  for (uint32_t i = 0; i < count.load(std::memory_order_acquire); ++i) {
    const Region* region = sorted[i].load(std::memory_order_acquire);
    if (region != nullptr && region->base < from + bytes && from < region->base + region->pages * sys::page_bytes()) return true;
  }
  return false;
}

Region* RegionTable::find_word(const AtomicPageWord* word, PageIndex* page) const {
  for (uint32_t i = 0; i < count.load(std::memory_order_acquire); ++i) {
    Region* region = sorted[i].load(std::memory_order_acquire);
    if (region == nullptr || word < region->words || word >= region->words + region->pages) continue;
    *page = PageIndex(static_cast<uint64_t>(word - region->words));
    return region;
  }
  return nullptr;
}

static int register_range(const Region& region, int uffd, char* from, uint64_t bytes) {
  int rc = sys::uffd_register(uffd, from, bytes, pager_state().features.write_protect);
  const bool of_maps = (region.flags & (kRegionStrict | kRegionChargeOnTouch)) != 0;
  if (rc != -EINVAL || (!of_maps && counters().poisoned == 0)) return rc;
  // The program's own, a file or shared memory; or what stands for a lost page (lost_page.h).
  if (bytes == sys::page_bytes()) return of_maps || region.words[region.page_of(from).value].load().settled() == PageState::kPoisoned ? 0 : rc;
  uint64_t half = round_up(bytes / 2, sys::page_bytes());
  rc = register_range(region, uffd, from, half);
  return rc < 0 ? rc : register_range(region, uffd, from + half, bytes - half);
}

// Around what was handed over to the kernel.
int region_register(const Region& region, int uffd, char* from, uint64_t bytes) {
  if (!region.has_handed_over.load(std::memory_order_acquire)) return register_range(region, uffd, from, bytes);
  const uint64_t page = sys::page_bytes(), end = region.page_of(from).value + bytes / page;
  for (uint64_t p = region.page_of(from).value; p < end;) {
    uint64_t table = region.table_pages.load(std::memory_order_acquire), stop = p;
    auto theirs = [&](uint64_t at) { return at < table && region.words[at].load(std::memory_order_relaxed).handed_over(); };
    while (stop < end && stop < table && !theirs(stop)) ++stop;
    if (stop >= table) stop = end;
    if (stop > p)
      if (int rc = register_range(region, uffd, region.address_of(PageIndex(p)), (stop - p) * page); rc < 0) return rc;
    for (p = stop; p < end && theirs(p); ++p) {}
  }
  return 0;
}

int RegionTable::insert(Region* region) {
  sys::Locked<sys::Mutex> hold(lock);
  uint32_t n = count.load(std::memory_order_relaxed);
  if (n == kRegionsMax) return -ENOMEM;
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
  sys::Locked<sys::Mutex> hold(lock);
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
