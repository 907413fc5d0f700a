// SPDX-License-Identifier: Apache-2.0
// beside_forks CASE: an operation that another thread has half done when a process forks is whole
// in the child.
//
// Idea. A thread that writes to a page which the kernel has copied waits for the end of the fork.
// So in the child each thread has stopped at one instruction, and no thread has overtaken another.
// Each case stops a thread at another place.
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "pager/state/state.h"
#include "tests/fault/first_touch.h"
#include "tests/fault/versioned_pages.h"
#include "tests/support/test_tier.h"

namespace {

constexpr uint64_t kDram = 32 * tier::kMega, kLun = 512 * tier::kMega;

template <class F>
void expect_of_child(F&& body) {
  tier::expect_exit(tier::fork_child(body));
}

// A thread fills the first page of a chunk that is charged when it is touched (MAP_NORESERVE). The
// child has the page before it is charged (test_release_delay_us), so it is charged there as well.
TEST_CASE("first-touch-is-charged") {
  tier::start_tier(kDram, kLun, nullptr, "test_release_delay_us=20000");
  constexpr uint64_t kChunks = 10;
  const size_t chunk = lunar::kChunkPages * lunar_page_bytes();
  lunar::Region* region = tier::make_charged_on_touch(kChunks);
  char* base = lunar::region_base(region);
  auto touch = [&](uint64_t i) { *reinterpret_cast<volatile uint64_t*>(base + i * chunk) = i + 1; };
  touch(0);  // also activates
  for (uint64_t i = 1; i < kChunks; ++i) {
    std::thread other = tier::begin_touch([&, i] { touch(i); });  // now the page is there
    expect_of_child([&] {
      uint64_t there = 0, charged = 0;
      for (uint64_t p = 0; p < region->pages; ++p) {
        there += region->table.peek(p).state() == lunar::PageState::kResident;
        charged += region->table.peek(p).charged();
      }
      const uint64_t committed = region->committed_pages.load();
      REQUIRE(charged == there && committed == there,
              "%lu pages are there, %lu are charged, %lu committed", there, charged, committed);
    });
    other.join();
  }
}

// A thread pins and unpins pages. In the child, the count of pinned pages is right.
TEST_CASE("pins-change") {
  tier::start_tier(kDram, kLun);
  constexpr uint64_t kPinned = 8 * tier::kMega;
  char* base = tier::new_region(kPinned);
  const tier::Meanwhile pinning([=] {
    REQUIRE(lunar_pin(base, kPinned) == 0);
    REQUIRE(lunar_unpin(base, kPinned) == 0);
  });
  for (int round = 0; round < 40; ++round)
    expect_of_child([&] {
      const lunar::Region* region = lunar::region_find(base);
      uint64_t pinned = 0;
      for (uint64_t p = 0; p < region->pages; ++p) pinned += region->table.peek(p).pinned();
      const auto counted = static_cast<uint64_t>(lunar::pager_state().pinned_pages.load());
      REQUIRE(counted == pinned, "%lu pages are pinned, %lu are counted", pinned, counted);
    });
}

// Starts the work of another thread from a fork handler. The handler is older than the pager's, so
// it runs after it. The work has not ended when the kernel copies the process.
std::atomic<bool> g_begin{false};

void let_other_begin() {
  if (!g_begin.exchange(true)) usleep(50000);
}

void wait_for_begin() {
  while (!g_begin.load()) usleep(100);
}

// A thread makes the heap by its first allocation while another forks. The child allocates as well.
TEST_CASE("first-allocation") {
  REQUIRE(pthread_atfork(let_other_begin, nullptr, nullptr) == 0);
  tier::start_tier(kDram, kLun);
  const auto allocate = [] {
    constexpr size_t kBytes = 1 << 20;
    auto* block = static_cast<char*>(lunar_malloc(kBytes));
    REQUIRE(block != nullptr);
    tier::stamp_write(block, kBytes, 1, 1);
    REQUIRE(tier::stamp_holds(block, kBytes, 1, 1), "content of a block");
    lunar_free(block);
  };
  std::thread other([&] {
    wait_for_begin();
    allocate();
  });
  expect_of_child(allocate);
  other.join();
  allocate();
}

// Evicted pages come back and are zeroed before the thread that brought them in releases them
// (test_installed_delay_us). One page stays zero, into the other a word is written. The child has
// this content, not that of the LUN or of frames.
struct Zeroed : tier::VersionedPages {
  static constexpr uint64_t kPages = 2048;  // more than there are frames
  Zeroed() : VersionedPages(kPages * lunar_page_bytes()) {
    write_all(1);
    REQUIRE(lunar_evict(base, kPages * page) > 0);
  }
  static void zero(char* at, size_t bytes, bool word) {
    memset(at, 0, bytes);
    if (word) *reinterpret_cast<uint64_t*>(at + 128) = 7;
  }
  void expect(uint64_t i, bool word) const {
    for (size_t k = 0; k < page; k += sizeof(uint64_t)) {
      const uint64_t found = *reinterpret_cast<uint64_t*>(at(i) + k);
      REQUIRE(found == (word && k == 128 ? 7 : 0), "page %lu, byte %zu: %lx", i, k, found);
    }
  }
};

// By a fault of the thread that forks.
TEST_CASE("zeroed-after-a-fault") {
  tier::start_tier(kDram, kLun, nullptr, "handlers=1,test_installed_delay_us=100000");
  Zeroed pages;
  int seen[2] = {};
  for (const uint64_t i : {uint64_t{3}, uint64_t{500}, Zeroed::kPages - 9, Zeroed::kPages - 3}) {
    const bool word = i % 2 != 0;
    ++seen[lunar::pager_page_state(pages.at(i)) == static_cast<int>(lunar::PageState::kInFrame)];
    Zeroed::zero(pages.at(i), pages.page, word);
    expect_of_child([&] { pages.expect(i, word); });
    pages.expect(i, word);
  }
  REQUIRE(seen[0] != 0 && seen[1] != 0, "%d were on the LUN, %d in frames", seen[0], seen[1]);
}

// By another thread's range operation, which no fork waits for.
TEST_CASE("zeroed-after-a-touch") {
  tier::start_tier(kDram, kLun, nullptr, "handlers=1,test_installed_delay_us=100000");
  Zeroed pages;
  for (const uint64_t i : {uint64_t{3}, uint64_t{500}, Zeroed::kPages - 9, Zeroed::kPages - 3}) {
    const bool word = i % 2 != 0;
    std::thread other([&] { REQUIRE(lunar_touch(pages.at(i), pages.page) == 0); });
    for (unsigned char there = 0; (there & 1) == 0;)
      REQUIRE(mincore(pages.at(i), pages.page, &there) == 0);
    Zeroed::zero(pages.at(i), pages.page, word);
    expect_of_child([&] { pages.expect(i, word); });
    other.join();
    pages.expect(i, word);
  }
}

// Another thread touches an evicted page while the process forks. With `written` a third thread
// writes to the page once it is there, and waits until the page is released, so the child knows the
// page by its content. The child forks a child of its own.
void touch_in_the_midst(bool written) {
  REQUIRE(pthread_atfork(let_other_begin, nullptr, nullptr) == 0);
  tier::start_tier(kDram, kLun, nullptr, "handlers=1,test_installed_delay_us=300000");
  Zeroed pages;
  for (const uint64_t i : {uint64_t{3}, Zeroed::kPages - 3}) {
    g_begin.store(false);
    const std::jthread toucher([&] {
      wait_for_begin();
      REQUIRE(lunar_touch(pages.at(i), pages.page) == 0);
    });
    const std::jthread writer([&] {
      if (!written) return;
      wait_for_begin();
      for (unsigned char there = 0; (there & 1) == 0;)
        REQUIRE(mincore(pages.at(i), pages.page, &there) == 0);
      Zeroed::zero(pages.at(i), pages.page, true);
    });
    expect_of_child([&] {
      pages.check(i, "child");
      expect_of_child([&] { pages.check(i, "grandchild"); });
    });
  }
  if (written)
    for (const uint64_t i : {uint64_t{3}, Zeroed::kPages - 3}) pages.expect(i, true);
}
TEST_CASE("touch-in-the-midst") { touch_in_the_midst(false); }
TEST_CASE("written-in-the-midst") { touch_in_the_midst(true); }

// The program has dropped a page by a raw system call, and a handler has put zeros there
// (test_installed_delay_us), so the page's slot holds other content. The child has the word that
// still names the slot, and writes the slot's content to the page. The slot must be kept for the
// child, whatever the parent writes.
TEST_CASE("slot-of-a-dropped-page") {
  constexpr uint64_t kSmallLun = 64 * tier::kMega;
  tier::start_tier(kDram, kSmallLun, nullptr, "handlers=1,test_installed_delay_us=1000000");
  Zeroed pages;
  const auto fill_other = [&](uint64_t version) {  // takes new slots, and every frame
    char* other = tier::new_region(Zeroed::kPages * pages.page);
    for (uint64_t i = 0; i < Zeroed::kPages; ++i)
      tier::stamp_write(other + i * pages.page, pages.page, i, version);
    REQUIRE(lunar_evict(other, Zeroed::kPages * pages.page) > 0);
    REQUIRE(lunar_region_destroy(other, Zeroed::kPages * pages.page) == 0);
  };
  REQUIRE(tier::stamp_holds(pages.at(3), pages.page, 3, 1), "content of the page");
  while (lunar::pager_page_state(pages.at(3)) != static_cast<int>(lunar::PageState::kResident))
    usleep(1000);
  // Slots are taken in runs, so those next to it are free.
  REQUIRE(lunar_discard(pages.at(0), 3 * pages.page) == 0);
  REQUIRE(lunar_discard(pages.at(4), 508 * pages.page) == 0);
  REQUIRE(syscall(SYS_madvise, pages.at(3), pages.page, MADV_DONTNEED) == 0);
  int written[2];
  REQUIRE(pipe(written) == 0);
  REQUIRE(*reinterpret_cast<volatile uint64_t*>(pages.at(3)) == 0, "the page was dropped");
  const pid_t pid = fork();
  REQUIRE(pid >= 0);
  if (pid == 0) {
    close(written[1]);
    char end;
    REQUIRE(read(written[0], &end, 1) == 0);
    tier::stamp_write(pages.at(3), pages.page, 3, 1);
    REQUIRE(lunar_evict(pages.at(3), pages.page) == 1);
    fill_other(1000);
    REQUIRE(lunar::pager_page_state(pages.at(3)) == static_cast<int>(lunar::PageState::kEvicted));
    REQUIRE(tier::stamp_holds(pages.at(3), pages.page, 3, 1), "content of the child's page");
    fflush(nullptr);
    _exit(0);
  }
  for (uint64_t round = 0; round < 2 * kSmallLun / (Zeroed::kPages * pages.page); ++round)
    fill_other(2 + round);
  close(written[0]);
  close(written[1]);
  int status = 0;
  REQUIRE(waitpid(pid, &status, 0) == pid);
  REQUIRE(status == 0, "the child ended with status %x", status);
}

// A child opens its LUN at its first dirty eviction, while a thread of it commits and gives back.
// Exactly what is committed is charged there.
TEST_CASE("commits") {
  tier::start_tier(kDram, kLun);
  constexpr uint64_t kHeld = 48 * tier::kMega, kPiece = tier::kMega, kPieces = 32;
  const size_t page = lunar_page_bytes();
  auto* held = static_cast<char*>(lunar_region_create(kHeld));
  lunar::Region* region = nullptr;
  REQUIRE(held != nullptr && lunar::region_create(kPieces * kPiece, 0, &region) == 0);
  const auto write_all = [&](uint64_t version) {
    for (uint64_t i = 0; i < kHeld / page; ++i)
      tier::stamp_write(held + i * page, page, i, version);
  };
  write_all(1);
  for (int round = 0; round < 6; ++round)
    expect_of_child([&] {
      auto& state = lunar::pager_state();
      bool taken[kPieces] = {};
      tier::Meanwhile committing([&, i = uint64_t{0}]() mutable {
        const uint64_t at = i % kPieces;
        if (taken[at])
          lunar::region_decommit(region, at * kPiece, kPiece);
        else
          REQUIRE(lunar::region_commit(region, at * kPiece, kPiece) == 0);
        taken[at] = !taken[at];
        i = i * 5 + 3;
        usleep(10);
      });
      write_all(2);
      committing.end();
      REQUIRE(state.luns.ready.load(), "the child has evicted nothing");
      const uint64_t committed = lunar::committed_pages(state);
      const uint64_t charged = state.luns.slots[state.luns.own].charged_slots();
      REQUIRE(charged == committed, "%lu pages are committed, %lu slots charged", committed,
              charged);
    });
}

}  // namespace
