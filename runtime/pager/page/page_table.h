// SPDX-License-Identifier: Apache-2.0
// The page table: one word and one hash for each page in use. It grows and shrinks with the number
// of these pages.
//
//   directory ── a leaf's number for each 16 pages (0: none), lazily touched. A page of it covers
//                64 MiB: a *span*
//   leaf ─────── 16 words and 16 hashes, 256 bytes. All regions take leaves from one pool, which
//                grows in segments and never moves or unmaps them
//
// A page without a leaf is kEmpty. tables.h adds and removes leaves.
//
// Lifetime. A leaf stays while one of its pages is busy, pinned, a guard page or not empty. For any
// other page a thread looks the word up inside a TableScope, again for each attempt: the words of a
// leaf that was taken out of the directory cannot be locked (PageWord::retired), and the leaf is
// used again only when every scope of that time has ended. Only page_view.h keeps words beyond a
// scope: its answers may be wrong, and a word is always memory of some leaf.
//
// Threading: any thread, also on the fault path. Program threads block signals around scopes (a
// handler may fork).
#pragma once
#include <algorithm>
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

// While one exists, no leaf that this thread has looked up in it is used again for other pages. Any
// thread with signals blocked; nests. A thread may wait inside, which delays the reuse of leaves.
class TableScope {
 public:
  TableScope();
  ~TableScope() { inside_->fetch_sub(1, std::memory_order_release); }
  TableScope(const TableScope&) = delete;
  TableScope& operator=(const TableScope&) = delete;

  // Scopes have epochs: two epochs after a leaf has left its directory no scope can hold it.
  static uint64_t epoch();
  static bool next_epoch();  // false: a scope of the epoch before still exists
  static void reset_in_child();

 private:
  std::atomic<uint32_t>* inside_;
};

constexpr uint32_t kSegmentLeaves = 16'384;  // 4 MiB, for 1 GiB of pages of 4 KiB
constexpr uint32_t kSegmentsMax = 4096;
extern std::atomic<Leaf*> g_leaf_segments[kSegmentsMax];

class PageTable {
 public:
  // The pages whose leaves one page of the directory names.
  struct Span {
    std::atomic<uint32_t> leaves{0};
    std::atomic<int32_t> committed{0};    // pages (table_promise.h)
    bool charged = false, loose = false;  // of its directory page; under the pool's lock
  };

  [[nodiscard]] bool map(uint64_t pages);  // false: no memory
  void unmap();

  // nullptr: the page is kEmpty and has no word. pre (also of peek and lock): a scope, or the
  // caller has locked the page.
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

  // Returns the next page at or after `page` that may have a word, at most `end`.
  uint64_t next_used(uint64_t page, uint64_t end) const;
  bool uses(uint64_t first, uint64_t end) const { return next_used(first, end) < end; }
  // Calls visit(page, word) for the pages of [first, end) that have a word. pre: a scope.
  template <class Visit>
  void for_words(uint64_t first, uint64_t end, Visit visit) const {
    for (uint64_t page = next_used(first, end); page < end; page = next_used(page, end)) {
      Leaf* leaf = leaf_of(page / kLeafPages);
      const uint64_t stop = std::min(round_up(page + 1, kLeafPages), end);
      for (; page < stop; ++page)
        if (leaf != nullptr) visit(page, leaf->words[page % kLeafPages]);
    }
  }

  Span& span_of(uint64_t page) const { return spans_[page / kLeafPages / span_groups()]; }
  static uint64_t span_groups();  // leaves whose numbers are in one page of the directory
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

// Hash of a page's content. Random bytes of this process key it, which forked children inherit with
// the page table: an attacker who chooses contents cannot make two of them look equal. (XXH3 with a
// secret of full length, which is not a cryptographic hash.)
[[nodiscard]] int page_hash_key_make();  // once a process, before the first hash. 0 or -errno
uint64_t page_hash(const void* content);
bool page_is_zero(const void* content);

}  // namespace lunar
