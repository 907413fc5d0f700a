// SPDX-License-Identifier: Apache-2.0
// The frame pool beside a move of the page: where a frame's page is, is read as one.
#include <sys/mman.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "pager/frames.h"
#include "pager/region.h"
#include "tests/catch.hpp"

using namespace lunar;

namespace {

// Words of `pages` pages, with nothing readable behind them.
class Words {
 public:
  explicit Words(size_t pages) : bytes_(round_up(pages * sizeof(PageWord), 4096)) {
    base_ = static_cast<char*>(mmap(nullptr, bytes_ + 4096 * 256, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    REQUIRE(base_ != MAP_FAILED);
    REQUIRE(mprotect(base_, bytes_, PROT_READ | PROT_WRITE) == 0);
  }
  ~Words() { munmap(base_, bytes_ + 4096 * 256); }
  AtomicPageWord* at(size_t page) { return reinterpret_cast<AtomicPageWord*>(base_) + page; }

 private:
  size_t bytes_;
  char* base_;
};

}   // namespace

TEST_CASE("a frame whose page is being moved is looked for in one of its two places") {
  constexpr size_t kFar = 100000;
  Words large(kFar + 1), small(1);
  large.at(kFar)->store(PageWord{}.with_state(PageState::kResident).busy());   // as move_page has both
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
  for (; std::chrono::steady_clock::now() < end && !reclaimed; ++looks) reclaimed = pool.reclaim_oldest();
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
