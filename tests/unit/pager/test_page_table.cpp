// SPDX-License-Identifier: Apache-2.0
// The page table of a process that is not active. Words are committed at the first use and given
// back when all pages of a leaf are empty. A leaf that a reader may still use is not used again.
// Committed memory is counted. LUNAR_SEED=N replays a run.
#include <atomic>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <thread>

#include "pager/page/page_table.h"
#include "pager/page/region.h"
#include "pager/pager.h"
#include "pager/state/state.h"
#include "pager/table/table_promise.h"
#include "pager/table/tables.h"
#include "sys/arena.h"
#include "tests/catch.h"
#include "tests/support/meanwhile.h"
#include "tests/support/seed.h"

using namespace lunar;

namespace {

struct TestRegion {
  explicit TestRegion(uint64_t pages, bool strict = true) {
    region.base = reinterpret_cast<char*>(uint64_t{1} << 40);
    region.pages = pages;
    region.strict = strict;
    REQUIRE(region.table.map(pages));
    const uint64_t chunks = (pages + kChunkPages - 1) / kChunkPages;
    region.chunk_committed = static_cast<std::atomic<int32_t>*>(
        map_private(chunks * sizeof(int32_t), ForkPolicy::kInherit));
    state.page_size = sys::page_bytes();
    state.page_shift = static_cast<unsigned>(__builtin_ctzl(state.page_size));
  }
  ~TestRegion() {
    table_retire_all(state, region);
    region.table.unmap();
  }
  TestRegion(const TestRegion&) = delete;
  TestRegion& operator=(const TestRegion&) = delete;
  int reach(uint64_t first, uint64_t end) { return table_reach(state, region, first, end, 0); }
  PageTable& table() { return region.table; }

  PagerState& state = pager_state();
  Region region;
};

}  // namespace

TEST_CASE("a page has a word once it is reached, and its neighbours in the leaf with it") {
  TestRegion one(100'000);
  CHECK(one.table().find(5000) == nullptr);
  CHECK(one.table().peek(5000).state() == PageState::kEmpty);
  CHECK_FALSE(one.table().lock(5000, {}));
  REQUIRE(one.reach(5000, 5001) == 0);
  const uint64_t leaf = round_down(5000, kLeafPages);
  CHECK(one.table().find(leaf - 1) == nullptr);
  for (uint64_t page = leaf; page < leaf + kLeafPages; ++page)
    CHECK(one.table().peek(page).raw == 0);
  CHECK(one.table().find(leaf + kLeafPages) == nullptr);
  CHECK(one.table().next_used(0, 100'000) == leaf);
  CHECK(one.table().next_used(leaf + kLeafPages, 100'000) == 100'000);
  CHECK(one.region.table_pages.load() == 5001);
}

TEST_CASE("a leaf goes when all of its pages are empty, not before") {
  TestRegion one(4096);
  REQUIRE(one.reach(0, 64) == 0);
  AtomicPageWord& word = one.table().at(17);
  SECTION("a page with content") { word.store(PageWord{}.with_state(PageState::kEvicted)); }
  SECTION("a guard page") { word.store(PageWord{}.with_state(PageState::kGuard)); }
  SECTION("a pin") { CHECK(page_set_pinned(word) == 0); }
  SECTION("a page in a thread's hands") { REQUIRE(one.table().lock(17, {})); }
  table_retire(one.state, one.region, 0, 64);
  CHECK(one.table().find(15) == nullptr);
  CHECK(one.table().find(17) == &word);
  CHECK(one.table().find(32) == nullptr);
  word.store({});
  table_retire(one.state, one.region, 16, 17);
  CHECK(one.table().find(17) == nullptr);
}

TEST_CASE(
    "what has been looked up cannot be locked or pinned once its leaf is gone, and is no other "
    "page's meanwhile") {
  TestRegion one(1 << 20);
  std::set<const AtomicPageWord*> others;
  {
    const TableScope scope;
    REQUIRE(one.reach(32, 33) == 0);
    AtomicPageWord* word = one.table().find(32);
    table_retire(one.state, one.region, 0, 64);
    CHECK(word->load().retired());
    CHECK_FALSE(page_lock(*word, {}));
    CHECK(page_set_pinned(*word) < 0);
    for (uint64_t page = 0; page < 1000 * kLeafPages; page += kLeafPages) {
      REQUIRE(one.reach(page, page + 1) == 0);
      REQUIRE(one.table().find(page) != word);
      table_retire(one.state, one.region, page, page + 1);
    }
  }
  CHECK(one.table().find(32) == nullptr);
}

TEST_CASE("leaves are used again: the pool does not grow while pages come and go") {
  TestRegion one(1 << 24);
  int64_t after = 0;
  for (uint64_t round = 0; round < 200; ++round) {
    const uint64_t first = round * 64 * kLeafPages;
    REQUIRE(one.reach(first, first + 64 * kLeafPages) == 0);
    table_retire(one.state, one.region, first, first + 64 * kLeafPages);
    if (round == 20) after = table_pages();
  }
  // and the directory, which is given back by an active process
  CHECK(table_pages() <=
        after + static_cast<int64_t>(200 * 64 * kLeafPages / PageTable::span_pages() + 1));
}

TEST_CASE("property: words agree with a model") {
  std::mt19937_64 random(tier::run_seed());
  constexpr uint64_t kPages = 1 << 18;
  TestRegion one(kPages);
  std::map<uint64_t, uint64_t> model;  // by page: its word
  for (int step = 0; step < 20'000; ++step) {
    const uint64_t page = random() % 2 ? random() % kPages : random() % 512;
    const auto held = model.find(page);
    REQUIRE(one.table().peek(page).raw == (held == model.end() ? 0 : held->second));
    if (random() % 3 != 0) {
      REQUIRE(one.reach(page, page + 1) == 0);
      const PageWord word =
          PageWord{}.with_state(PageState::kEvicted).with_index(static_cast<uint32_t>(step));
      one.table().at(page).store(word);
      one.table().hash(page) = page;
      model[page] = word.raw;
    } else {
      const uint64_t end = page + 100 < kPages ? page + 100 : kPages;
      for (auto at = model.lower_bound(page); at != model.end() && at->first < end;
           at = model.erase(at)) {
        REQUIRE(one.table().hash(at->first) == at->first);
        one.table().at(at->first).store({});
      }
      table_retire(one.state, one.region, page, end);
    }
  }
  std::set<uint64_t> seen;
  one.table().for_words(0, kPages, [&](uint64_t page, const AtomicPageWord& word) {
    if (word.load().state() != PageState::kEmpty) seen.insert(page);
  });
  REQUIRE(seen.size() == model.size());
}

TEST_CASE("property: threads that lock pages never hold another's, while leaves come and go") {
  constexpr uint64_t kPages = 64 * kLeafPages;
  constexpr int kThreads = 3, kSteps = 60'000;
  TestRegion one(kPages);
  std::atomic<uint64_t> holders[kPages] = {};
  std::atomic<uint64_t> wrong{0};
  const auto run = [&](uint64_t seed) {
    std::mt19937_64 random(seed);
    for (int step = 0; step < kSteps; ++step) {
      const sys::ScopedSignalBlock signals;
      const TableScope scope;
      const uint64_t page = random() % kPages;
      if (table_reach(one.state, one.region, page, page + 1, 0) < 0) continue;
      const PageWord seen = one.table().peek(page);
      if (seen.state() == PageState::kEmpty && one.table().lock(page, seen)) {
        if (holders[page].fetch_add(1) != 0 ||
            one.table().at(page).load().state() != PageState::kBusy)
          ++wrong;
        if (random() % 64 == 0) std::this_thread::yield();
        holders[page].fetch_sub(1);
        (void)page_unlock(one.table().at(page), {});
      }
      table_retire(one.state, one.region, page, page + 1);
    }
  };
  const uint64_t seed = tier::run_seed();
  lunar_test::in_parallel(kThreads, [&](int i) { run(seed + static_cast<uint64_t>(i)); });
  CHECK(wrong == 0);
}

TEST_CASE("a commit is promised the leaves that its pages may take, and no more once it ends") {
  TestRegion one(16 * kChunkPages);
  const auto count = [&](uint64_t first, uint64_t end, int sign) {
    return count_committed(one.state, one.region, first, end, sign).units;
  };
  const auto directory = static_cast<int64_t>(sys::page_bytes() / sizeof(Leaf));
  CHECK(count(0, 1, 1) == 1 + directory);
  CHECK(count(1, 3, 1) == 2);
  CHECK(count(3, kChunkPages, 1) == 32 - 3);  // a whole chunk has 32 leaves
  CHECK(count(kChunkPages, 3 * kChunkPages, 1) == 64);
  CHECK(count(0, 8, -1) == 0);
  CHECK(count(8, kChunkPages, -1) == -32);
  CHECK(count(kChunkPages, 3 * kChunkPages, -1) == -64 - directory);
  TestRegion heap(16 * kChunkPages, false);
  CHECK(count_committed(heap.state, heap.region, 10, 11, 1).units == 32 + directory);
}
