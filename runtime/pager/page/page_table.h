// SPDX-License-Identifier: Apache-2.0
// The page table: one word and one hash for each page that is in use. Its size follows what is used.
//
//   directory ── a leaf's number for each 16 pages (0: none), lazily touched. A page of it covers 64 MiB: a *span*
//   leaf ─────── 16 words and 16 hashes, 256 bytes. All regions take leaves from one pool, which grows in segments and
//                never moves or unmaps them
//
// A page without a leaf is kEmpty. A leaf comes when one of its pages is first used (table_reach) and goes when all of
// them are empty (table_retire). Leaves and directory pages are DRAM: once the process is active they are taken from
// the account like a resident page, so table_reach can fail. Empty pool and directory pages go back (table_trim).
// table_promise.h says how many there may be.
//
// Lifetime. Who holds a page kBusy, pinned, guarded or with content keeps its leaf. All others look a word up inside a
// TableScope, again for each attempt: a leaf that is taken out of the directory has words that nothing can lock
// (PageWord::retired), and is used again only when every scope of that time has ended. page_view.h alone keeps words
// beyond a scope: it takes a wrong answer, and a word is always memory of a leaf.
//
// Threading: any thread, also on the fault path: one spin lock, no wait, no allocation but the map of a new segment.
// Program threads block signals around scopes and calls (a handler may fork). table_retire and table_trim: see there.
// A forked child takes the directories as they were; the pool follows from them (table_enter_child).
#pragma once
#include <atomic>
#include <cstdint>

#include "base/units.h"
#include "pager/page/page_word.h"

namespace lunar {

struct PagerState;
struct Region;

constexpr uint64_t kLeafPages = 16;
struct Leaf {
  AtomicPageWord words[kLeafPages];
  uint64_t hashes[kLeafPages];
};
static_assert(sizeof(Leaf) == 256);
constexpr uint64_t last_of_leaf(uint64_t page) { return page | (kLeafPages - 1); }

// While one lives, no leaf that this thread has looked up is used again for other pages. Any thread with signals
// blocked; nests; may wait inside (leaves come back later then).
class TableScope {
 public:
  TableScope();
  ~TableScope() { inside_->fetch_sub(1, std::memory_order_release); }
  TableScope(const TableScope&) = delete;
  TableScope& operator=(const TableScope&) = delete;

 private:
  std::atomic<uint32_t>* inside_;
};

constexpr uint32_t kSegmentLeaves = 16384;  // 4 MiB, for 1 GiB of pages of 4 KiB
constexpr uint32_t kSegmentsMax = 4096;
extern std::atomic<Leaf*> g_leaf_segments[kSegmentsMax];

class PageTable {
 public:
  // What one page of the directory covers.
  struct Span {
    std::atomic<uint32_t> leaves{0};
    std::atomic<int32_t> committed{0};    // pages (table_promise.h)
    bool charged = false, loose = false;  // its directory page; under the pool's lock
  };

  [[nodiscard]] bool map(uint64_t pages);  // false: no memory
  void unmap();

  // nullptr: the page is kEmpty and has no word. pre (also of peek and lock): a scope, or the page is the caller's.
  AtomicPageWord* find(uint64_t page) const {
    Leaf* leaf = leaf_of(page / kLeafPages);
    return leaf == nullptr ? nullptr : &leaf->words[page % kLeafPages];
  }
  PageWord peek(uint64_t page) const {
    const AtomicPageWord* word = find(page);
    const PageWord seen = word == nullptr ? PageWord{} : word->load(std::memory_order_acquire);
    return seen.retired() ? PageWord{} : seen;
  }
  // Takes the page from `seen` to kBusy. False: the word changed, or there is none.
  bool lock(uint64_t page, PageWord seen) const {
    AtomicPageWord* word = find(page);
    return word != nullptr && page_lock(*word, seen);
  }
  // pre: the caller keeps the page's leaf (see above).
  AtomicPageWord& at(uint64_t page) const { return *find(page); }
  uint64_t& hash(uint64_t page) const { return leaf_of(page / kLeafPages)->hashes[page % kLeafPages]; }

  // Where to go on after `page`, which has no word: the first page from there that may have one, at most `end`.
  uint64_t next_used(uint64_t page, uint64_t end) const;
  bool uses(uint64_t first, uint64_t end) const { return next_used(first, end) < end; }
  // visit(page, word) for the pages of [first, end) that have one. pre: a scope.
  template <class Visit>
  void for_words(uint64_t first, uint64_t end, Visit visit) const {
    for (uint64_t page = next_used(first, end); page < end; page = next_used(page, end)) {
      Leaf* leaf = leaf_of(page / kLeafPages);
      const uint64_t stop = round_up(page + 1, kLeafPages) < end ? round_up(page + 1, kLeafPages) : end;
      for (; page < stop; ++page)
        if (leaf != nullptr) visit(page, leaf->words[page % kLeafPages]);
    }
  }

  Span& span_of(uint64_t page) const { return spans_[page / kLeafPages / span_groups()]; }
  static uint64_t span_groups();  // leaves that a page of the directory has numbers of
  static uint64_t span_pages() { return span_groups() * kLeafPages; }

 private:
  friend class LeafPool;
  Leaf* leaf_of(uint64_t group) const {
    const uint32_t number = directory_[group].load(std::memory_order_acquire);
    if (number == 0) return nullptr;
    return g_leaf_segments[(number - 1) / kSegmentLeaves].load(std::memory_order_relaxed) +
           (number - 1) % kSegmentLeaves;
  }

  std::atomic<uint32_t>* directory_ = nullptr;
  Span* spans_ = nullptr;
  uint64_t pages_ = 0;
};

// Gives the pages of [first, end) words. 0; -EAGAIN: no DRAM now (the budget would have fewer than `keep_free` pages
// free); -ENOMEM: the tables take all the room that they may, or the kernel gives no memory. What has been added stays.
[[nodiscard]] int table_reach(PagerState& state, Region& region, uint64_t first, uint64_t end, int64_t keep_free);
void table_note_committed(Region& region, uint64_t end);  // scans go so far from now on
// The same for program threads: waits up to a second for room. 0 or -ENOMEM. pre: no scope.
[[nodiscard]] int table_reach_waiting(PagerState& state, Region& region, uint64_t first, uint64_t end);

// Takes the leaves of [first, end) whose pages are all empty out of the directory. pre: no fork can come in between
// (MutatorScope, the evictor, activation_lock, settling a note).
void table_retire(PagerState& state, Region& region, uint64_t first, uint64_t end);
// When the region ends: all of them, whatever they hold, and its directory's pages. pre: no thread uses the region.
void table_retire_all(PagerState& state, Region& region);
// Gives empty pages back. By the housekeeping thread. False: more will come soon.
bool table_trim(PagerState& state);

int64_t table_pages();                   // of DRAM that all tables take now
int64_t tables_loose_units();            // leaves (and pages of the directory, as leaves) that are loose
void tables_go_live(PagerState& state);  // the account counts them from now on
// In a forked child, before its words are looked at: the pool as the directories say, and the regions' table_pages.
// The account counts nothing yet (tables_go_live).
void tables_enter_child(PagerState& state);

}  // namespace lunar
