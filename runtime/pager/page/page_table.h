// SPDX-License-Identifier: Apache-2.0
// The page table: one word and one hash for each page that is in use. Its size follows what is
// used.
//
//   directory ── a leaf's number for each 16 pages (0: none), lazily touched. A page of it covers
//                64 MiB: a *span*
//   leaf ─────── 16 words and 16 hashes, 256 bytes. All regions take leaves from one pool, which
//                grows in segments and never moves or unmaps them
//
// A page without a leaf is kEmpty. Leaves come and go by tables.h.
//
// Lifetime. Who holds a page kBusy, pinned, guarded or with content keeps its leaf. All others look
// a word up inside a TableScope, again for each attempt: a leaf that is taken out of the directory
// has words that nothing can lock (PageWord::retired), and is used again only when every scope of
// that time has ended. page_view.h alone keeps words beyond a scope: it takes a wrong answer, and a
// word is always memory of a leaf.
//
// Threading: any thread, also on the fault path. Program threads block signals around scopes (a
// handler may fork).
#pragma once
#include <atomic>
#include <cstdint>

#include "base/units.h"
#include "pager/page/page_word.h"

namespace lunar {

constexpr uint64_t kLeafPages = 16;
struct Leaf {
  AtomicPageWord words[kLeafPages];
  uint64_t hashes[kLeafPages];
};
static_assert(sizeof(Leaf) == 256);
constexpr uint64_t last_of_leaf(uint64_t page) { return page | (kLeafPages - 1); }

// While one lives, no leaf that this thread has looked up is used again for other pages. Any thread
// with signals blocked; nests; may wait inside (leaves come back later then).
class TableScope {
 public:
  TableScope();
  ~TableScope() { inside_->fetch_sub(1, std::memory_order_release); }
  TableScope(const TableScope&) = delete;
  TableScope& operator=(const TableScope&) = delete;

  // Scopes have epochs: two steps after a leaf has left its directory no scope can know it.
  static uint64_t epoch();
  static bool next_epoch();  // false: a scope of the one before is left
  static void reset_in_child();

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

  // nullptr: the page is kEmpty and has no word. pre (also of peek and lock): a scope, or the page
  // is the caller's.
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
  uint64_t& hash(uint64_t page) const {
    return leaf_of(page / kLeafPages)->hashes[page % kLeafPages];
  }

  // Where to go on after `page`, which has no word: the first page from there that may have one, at
  // most `end`.
  uint64_t next_used(uint64_t page, uint64_t end) const;
  bool uses(uint64_t first, uint64_t end) const { return next_used(first, end) < end; }
  // visit(page, word) for the pages of [first, end) that have one. pre: a scope.
  template <class Visit>
  void for_words(uint64_t first, uint64_t end, Visit visit) const {
    for (uint64_t page = next_used(first, end); page < end; page = next_used(page, end)) {
      Leaf* leaf = leaf_of(page / kLeafPages);
      const uint64_t stop =
          round_up(page + 1, kLeafPages) < end ? round_up(page + 1, kLeafPages) : end;
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

// Hash of a page's content; also tells an all-zero page.
// Random bytes of this process key the hash, and forked children inherit them with the page table:
// an attacker who chooses contents cannot make two of them look equal. (XXH3 with a secret of full
// length: no cryptographic hash.)
[[nodiscard]] int page_hash_key_make();  // once a process, before the first hash. 0 or -errno
uint64_t page_hash(const void* content);
bool page_is_zero(const void* content);

}  // namespace lunar
