// SPDX-License-Identifier: Apache-2.0
// Region: a virtual range that the pager owns, with its page table (page_table.h).
//
//   base ── pages × page_bytes of address space, PROT_NONE until used, MAP_NORESERVE. It begins on
//           a chunk's boundary; a chunk is as large as a huge page. In an active process it gets no
//           new huge pages, and is MADV_DONTFORK except within fork(): a child made by a raw call
//           faults instead of reading zeros
//   table ── a word and a hash for each page in use; a forked child inherits it
//   chunk_resident ── resident pages of each chunk, so that the clock hand skips cold chunks
//
// The registry is a sorted array that is read under a sequence counter: lookups take no lock.
#pragma once
#include <errno.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "base/units.h"
#include "pager/page/page_table.h"
#include "pager/page/page_word.h"
#include "sys/mem.h"
#include "sys/thread.h"

namespace lunar {

constexpr uint64_t kChunkPages = 512;
// The end of the chunk of a page, at most `end`.
constexpr uint64_t chunk_end(uint64_t page, uint64_t end) {
  return std::min((page / kChunkPages + 1) * kChunkPages, end);
}
constexpr unsigned kRegionsMax = 65'536;
constexpr uint64_t kPatternPages = 64;  // unit of advice on the access pattern
constexpr unsigned kReadRunMax = 64;    // pages

// The access pattern that the program has announced for a range.
enum class Access : uint8_t { kNormal, kRandom, kSequential };

struct Region {
  char* base = nullptr;
  uint64_t pages = 0;
  bool on_touch = false, strict = false;  // RegionFlags
  PageTable table;
  std::atomic<int32_t>* chunk_resident = nullptr;
  std::atomic<uint64_t> usable_pages{0};  // made read/write, from the start on (only grows)
  // one past the last page ever committed or used: scans stop there
  std::atomic<uint64_t> table_pages{0};
  // pages committed; of MAP_NORESERVE only before activation
  std::atomic<int32_t>* chunk_committed = nullptr;
  // may hold a huge page from before activation (activation.h)
  std::atomic<uint8_t>* chunk_large = nullptr;
  // the program requested huge pages here before activation
  std::atomic<bool> huge{false};
  std::atomic<uint64_t> committed_pages{0};
  std::atomic<Access>* patterns = nullptr;  // one per kPatternPages
  std::atomic<bool> has_patterns{false};
  std::atomic<bool> has_guards{false};  // there may be guard pages
  sys::Mutex grow_lock;

  char* address_of(PageIndex page) const;
  PageIndex page_of(const void* address) const;
  bool holds(const void* address) const;
  bool of_maps() const { return on_touch || strict; }
  uint64_t chunk_size(uint64_t chunk) const {  // pages
    return std::min(pages - chunk * kChunkPages, kChunkPages);
  }
  Access access_of(PageIndex page) const {
    return has_patterns.load(std::memory_order_relaxed)
               ? patterns[page.value / kPatternPages].load(std::memory_order_relaxed)
               : Access::kNormal;
  }
  uint64_t pattern_count() const { return (pages + kPatternPages - 1) / kPatternPages; }
  void note_resident(PageIndex page, int delta) {
    chunk_resident[page.value / kChunkPages].fetch_add(delta, std::memory_order_relaxed);
  }
};

struct RegionTable {
  std::atomic<uint32_t> sequence{0};  // odd while it changes
  std::atomic<uint32_t> count{0};
  std::atomic<Region*>* sorted = nullptr;  // [kRegionsMax], mapped by the first insert
  sys::Mutex lock;                         // writers

  Region* find(const void* address) const;
  [[nodiscard]] int insert(Region* region);  // -EMFILE: it is full
  void remove(Region* region);

  // All regions. While the table changes, one may be missed or met twice.
  struct Iterator {
    const RegionTable& table;
    uint32_t at;
    Region& operator*() const { return *table.sorted[at].load(std::memory_order_acquire); }
    void operator++() { ++at; }
    bool operator!=(std::nullptr_t) const {
      return at < table.count.load(std::memory_order_acquire);
    }
  };
  Iterator begin() const { return {*this, 0}; }
  static std::nullptr_t end() { return nullptr; }
};

// A page's word, for callers outside of a TableScope.
PageWord word_of(const Region& region, PageIndex page);

// Reserves (PROT_NONE) the pages of [first, end) where nothing is mapped.
void claim_holes(const Region& region, uint64_t first, uint64_t end);

}  // namespace lunar
