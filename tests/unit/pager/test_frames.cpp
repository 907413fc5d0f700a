// SPDX-License-Identifier: Apache-2.0
// The frame pool: which frame is free, in which order clean frames are used again, which frame has
// a slot after a release, and a move of the page at the same time. LUNAR_SEED=N replays a run.
#include <sys/mman.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <set>
#include <thread>
#include <vector>

#include "pager/page/frames.h"
#include "pager/page/region.h"
#include "tests/catch.h"
#include "tests/support/seed.h"
#include "tests/support/slowness.h"

using namespace lunar;

namespace {

// Words of `pages` pages, with nothing readable behind them.
class Words {
 public:
  explicit Words(size_t pages) : bytes_(round_up(pages * sizeof(PageWord), 4096)) {
    base_ = static_cast<char*>(
        mmap(nullptr, bytes_ + 4096 * 256, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    REQUIRE(base_ != MAP_FAILED);
    REQUIRE(mprotect(base_, bytes_, PROT_READ | PROT_WRITE) == 0);
  }
  ~Words() { munmap(base_, bytes_ + 4096 * 256); }
  AtomicPageWord* at(size_t page) { return reinterpret_cast<AtomicPageWord*>(base_) + page; }

 private:
  size_t bytes_;
  char* base_;
};

// A frame with the content of `word`'s page, written out to `slot`.
uint32_t captured(FramePool& pool, AtomicPageWord* word, Slot slot, unsigned lun = 0) {
  uint32_t id = 0;
  REQUIRE(pool.take_free(&id));
  Frame& frame = pool.at(id);
  frame.word.store(word);
  frame.slot = slot;
  frame.lun = static_cast<uint8_t>(lun);
  frame.state.store(FrameState::kClean);
  word->store(PageWord{}.with_state(PageState::kInFrame).with_index(id).with_heat(5));
  pool.queue_clean(id);
  return id;
}

}  // namespace

TEST_CASE("every frame is had once, has memory of its own, and comes back") {
  FramePool pool;
  REQUIRE(pool.open(64, 4096, -1) == 0);
  CHECK(pool.count() == 64);
  CHECK(pool.window_bytes() == 64 * 4096);
  for (int pass = 0; pass < 2; ++pass) {
    std::set<uint32_t> taken;
    uint32_t id = 0;
    while (pool.take_free(&id)) {
      REQUIRE(id < 64);
      REQUIRE(taken.insert(id).second);
      memset(pool.memory(id), static_cast<int>(id) + pass, 4096);
      CHECK(pool.at(id).state.load() == FrameState::kFree);
    }
    CHECK(taken.size() == 64);
    CHECK(pool.free_count() == 0);
    for (uint32_t one : taken) {
      CHECK(pool.memory(one) == pool.memory(0) + size_t{one} * 4096);
      CHECK((pool.memory(one)[0] == static_cast<char>(one + static_cast<uint32_t>(pass)) &&
             pool.memory(one)[4095] == pool.memory(one)[0]));
      pool.put_free(one);
    }
    CHECK(pool.free_count() == 64);
  }
}

TEST_CASE("the oldest clean frame goes first, and its page is evicted to where it was written") {
  Words words(3);
  FramePool pool;
  REQUIRE(pool.open(3, 4096, -1) == 0);
  for (uint32_t i = 0; i < 3; ++i) captured(pool, words.at(i), Slot(100 + i), i);
  for (uint32_t i = 0; i < 3; ++i) {
    REQUIRE(pool.reclaim_oldest());
    const PageWord word = words.at(i)->load();
    CHECK(word.state() == PageState::kEvicted);
    CHECK(word.slot() == Slot(100 + i));
    CHECK(word.lun() == i);
    CHECK(word.heat() == 0);
    CHECK(pool.free_count() == i + 1);
    for (uint32_t later = i + 1; later < 3; ++later)
      CHECK(words.at(later)->load().state() == PageState::kInFrame);
  }
  CHECK_FALSE(pool.reclaim_oldest());
}

TEST_CASE(
    "a page that is in use is skipped, and one whose frame went to another page is left alone") {
  Words words(2);
  FramePool pool;
  REQUIRE(pool.open(2, 4096, -1) == 0);
  captured(pool, words.at(0), Slot(1));
  const uint32_t second = captured(pool, words.at(1), Slot(2));
  const PageWord held = words.at(0)->load().busy();
  words.at(0)->store(held);
  REQUIRE(pool.reclaim_oldest());  // not the oldest: that one is being copied out of
  CHECK(words.at(0)->load().raw == held.raw);
  CHECK(words.at(1)->load().slot() == Slot(2));
  CHECK_FALSE(pool.reclaim_oldest());
  CHECK(pool.free_count() == 1);
  uint32_t id = 0;
  REQUIRE(pool.take_free(&id));
  CHECK(id == second);
}

TEST_CASE(
    "release: the slot is the caller's once it is written; while it is being written it goes with "
    "the write") {
  Words words(1);
  FramePool pool;
  REQUIRE(pool.open(1, 4096, -1) == 0);
  for (const auto& [state, written, next] :
       {std::tuple{FrameState::kClean, true, FrameState::kReleased},
        std::tuple{FrameState::kWriting, false, FrameState::kAbandoned}}) {
    uint32_t id = 0;
    REQUIRE(pool.take_free(&id));
    pool.at(id).word.store(words.at(0));
    pool.at(id).slot = Slot(7);
    pool.at(id).lun = 3;
    pool.at(id).state.store(state);
    Slot slot{};
    unsigned lun = 0;
    CHECK(pool.release(id, &slot, &lun) == written);
    CHECK(slot == (written ? Slot(7) : kNoSlot));
    CHECK(lun == 3);
    CHECK(pool.at(id).state.load() == next);
    if (next == FrameState::kReleased) {  // it is found in the queue, and is free without a look at
                                          // the page
      words.at(0)->store(PageWord{}.with_state(PageState::kResident));
      pool.queue_clean(id);
      REQUIRE(pool.reclaim_oldest());
      CHECK(words.at(0)->load().state() == PageState::kResident);
    } else {
      pool.put_free(id);  // as the evictor does at the response
    }
    CHECK(pool.free_count() == 1);
  }
}

TEST_CASE("a pool that is opened again, as in a forked child, begins anew") {
  FramePool pool;
  REQUIRE(pool.open(8, 4096, -1) == 0);
  Words words(1);
  captured(pool, words.at(0), Slot(1));
  REQUIRE(pool.open(16, 4096, -1) == 0);
  CHECK(pool.count() == 16);
  CHECK(pool.free_count() == 16);
  CHECK_FALSE(pool.reclaim_oldest());
}

TEST_CASE(
    "property: capture, second chance and reclaim by the evictor, releases by another thread: no "
    "frame and no slot is "
    "lost") {
  const uint64_t seed = tier::run_seed();
  constexpr uint32_t kPages = 256, kFrames = 32;
  Words words(kPages);
  for (uint32_t i = 0; i < kPages; ++i)
    words.at(i)->store(PageWord{}.with_state(PageState::kResident));
  FramePool pool;
  REQUIRE(pool.open(kFrames, 4096, -1) == 0);
  std::atomic<bool> stop{false};
  std::atomic<uint64_t> came_back{0}, wrong{0};
  std::thread faults([&] {  // as a handler: takes a page out of its frame, and has its slot
    std::mt19937_64 random(seed);
    while (!stop.load(std::memory_order_relaxed)) {
      AtomicPageWord& word = *words.at(random() % kPages);
      const PageWord seen = word.load(std::memory_order_acquire);
      if (seen.state() == PageState::kInFrame && page_lock(word, seen)) {
        Slot slot{};
        unsigned lun = 0;
        if (!pool.release(seen.index(), &slot, &lun) ||
            slot != Slot(static_cast<uint32_t>(&word - words.at(0))))
          ++wrong;
        (void)page_unlock(word, PageWord{}.with_state(PageState::kResident));
        ++came_back;
      } else if (seen.state() == PageState::kEvicted && page_lock(word, seen)) {
        if (seen.slot() != Slot(static_cast<uint32_t>(&word - words.at(0)))) ++wrong;
        (void)page_unlock(word, PageWord{}.with_state(PageState::kResident));
      }
    }
  });
  std::mt19937_64 random(seed + 1);
  uint64_t reclaimed = 0;
  const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(tier::scaled(30));
  const auto starved = [&] {  // the thread above had no CPU yet
    return came_back.load() < 1000 && std::chrono::steady_clock::now() < limit;
  };
  for (uint64_t step = 0; step < 200'000 || starved(); ++step) {
    if (step >= 200'000) std::this_thread::yield();
    uint32_t id = 0;
    if (pool.free_count() == 0 || random() % 3 == 0) reclaimed += pool.reclaim_oldest() ? 1 : 0;
    const auto page = static_cast<uint32_t>(random() % kPages);
    AtomicPageWord& word = *words.at(page);
    const PageWord seen = word.load(std::memory_order_acquire);
    if (seen.state() != PageState::kResident || pool.free_count() == 0 || !page_lock(word, seen))
      continue;
    REQUIRE(pool.take_free(&id));
    pool.at(id).word.store(&word);
    pool.at(id).slot = Slot(page);
    pool.at(id).lun = 0;
    pool.at(id).state.store(FrameState::kClean, std::memory_order_release);
    pool.queue_clean(id);
    (void)page_unlock(word, PageWord{}.with_state(PageState::kInFrame).with_index(id));
  }
  stop.store(true);
  faults.join();
  while (pool.reclaim_oldest()) ++reclaimed;
  CHECK(wrong == 0);
  CHECK(came_back >= 1000);
  CHECK(reclaimed > 1000);
  CHECK(pool.free_count() == kFrames);
  for (uint32_t i = 0; i < kPages; ++i) CHECK(words.at(i)->load().state() != PageState::kInFrame);
}

TEST_CASE("a frame whose page is being moved is looked for in one of its two places") {
  constexpr size_t kFar = 100000;
  Words large(kFar + 1), small(1);
  // as pager_move has both
  large.at(kFar)->store(PageWord{}.with_state(PageState::kResident).busy());
  small.at(0)->store(PageWord{}.busy());
  FramePool pool;
  REQUIRE(pool.open(4, 4096, -1) == 0);
  uint32_t id = 0;
  REQUIRE(pool.take_free(&id));
  Frame& frame = pool.at(id);
  frame.word.store(small.at(0));
  frame.state.store(FrameState::kClean);
  pool.queue_clean(id);
  std::atomic<bool> stop{false};
  std::thread mover([&] {
    while (!stop.load(std::memory_order_relaxed)) {
      frame.word.store(large.at(kFar), std::memory_order_release);
      frame.word.store(small.at(0), std::memory_order_release);
    }
  });
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(500);
  uint64_t looks = 0;
  bool reclaimed = false;
  for (; std::chrono::steady_clock::now() < end && !reclaimed; ++looks)
    reclaimed = pool.reclaim_oldest();
  stop.store(true);
  mover.join();
  CHECK_FALSE(reclaimed);
  CHECK(looks > 1000);
  // At rest in its new place, as the state says: it is had.
  small.at(0)->store(PageWord{}.with_state(PageState::kInFrame).with_index(id));
  frame.slot = Slot(7);
  REQUIRE(pool.reclaim_oldest());
  CHECK(small.at(0)->load().state() == PageState::kEvicted);
  CHECK(small.at(0)->load().slot() == Slot(7));
}
