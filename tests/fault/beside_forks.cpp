// SPDX-License-Identifier: Apache-2.0
// beside_forks CASE: what other threads have half done when a process forks is whole in the child.
//
// Idea. A thread that writes to a page which the kernel has copied waits for the end of the fork, so in the child each
// thread has stopped at some instruction, and none has overtaken another. Each case stops one at a place of its own.
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
#include "tests/support/test_tier.h"

namespace {

constexpr uint64_t kDram = 32 * tier::kMega, kLun = 512 * tier::kMega;

template <class F>
void expect_of_child(F&& body) {
  tier::expect_exit(tier::fork_child(body));
}

unsigned long long number(uint64_t n) { return n; }

// A thread fills the first page of a chunk whose touch is what charges it (MAP_NORESERVE), and the child has the page
// before it is charged (test_release_delay_us): there it is charged too.
void first_touch_is_charged() {
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
      REQUIRE_THAT(charged == there && committed == there, "%llu pages are there, %llu are charged, %llu committed",
                   number(there), number(charged), number(committed));
    });
    other.join();
  }
}

// A thread pins and unpins pages: in the child as many are pinned as it counts.
void pins_change() {
  tier::start_tier(kDram, kLun);
  constexpr uint64_t kPinned = 8 * tier::kMega;
  char* base = tier::new_region(kPinned);
  std::atomic<bool> stop{false};
  std::thread other([&] {
    while (!stop.load()) {
      REQUIRE_THAT(lunar_pin(base, kPinned) == 0, "pin");
      REQUIRE_THAT(lunar_unpin(base, kPinned) == 0, "unpin");
    }
  });
  for (int round = 0; round < 40; ++round)
    expect_of_child([&] {
      const lunar::Region* region = lunar::region_find(base);
      uint64_t pinned = 0;
      for (uint64_t p = 0; p < region->pages; ++p) pinned += region->table.peek(p).pinned();
      const auto counted = static_cast<uint64_t>(lunar::pager_state().pinned_pages.load());
      REQUIRE_THAT(counted == pinned, "%llu pages are pinned, %llu are counted", number(pinned), number(counted));
    });
  stop.store(true);
  other.join();
}

// Of another thread: a fork handler that is older than the pager's, and so runs after it, lets it begin and waits. It
// has not ended when the kernel copies.
std::atomic<bool> g_begin{false};

void let_other_begin() {
  if (!g_begin.exchange(true)) usleep(50000);
}

void wait_for_begin() {
  while (!g_begin.load()) usleep(100);
}

// A thread makes the heap by its first allocation. The child allocates, too.
void first_allocation() {
  REQUIRE_THAT(pthread_atfork(let_other_begin, nullptr, nullptr) == 0, "pthread_atfork");
  tier::start_tier(kDram, kLun);
  const auto allocate = [] {
    constexpr size_t kBytes = 1 << 20;
    auto* block = static_cast<char*>(lunar_malloc(kBytes));
    REQUIRE_THAT(block != nullptr, "lunar_malloc");
    tier::stamp_write(block, kBytes, 1, 1);
    REQUIRE_THAT(tier::stamp_holds(block, kBytes, 1, 1), "content of a block");
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

// Pages that were evicted come back, and are zeroed, before the thread that brought them in releases them
// (test_installed_delay_us): one stays so, in the other a word is written. The child has them as they are then, not as
// they were on the LUN or in their frames.
struct Zeroed {
  static constexpr uint64_t kPages = 2048;  // more than there are frames
  const size_t page = lunar_page_bytes();
  char* base = nullptr;

  char* at(uint64_t i) const { return base + i * page; }
  void make() {
    base = tier::new_region(kPages * page);
    for (uint64_t i = 0; i < kPages; ++i) tier::stamp_write(at(i), page, i, 1);
    REQUIRE_THAT(lunar_evict(base, kPages * page) > 0, "evict");
  }
  static void write(char* at, size_t bytes, bool word) {
    memset(at, 0, bytes);
    if (word) *reinterpret_cast<uint64_t*>(at + 128) = 7;
  }
  void expect(uint64_t i, bool word) const {
    for (size_t k = 0; k < page; k += sizeof(uint64_t)) {
      const uint64_t found = *reinterpret_cast<uint64_t*>(at(i) + k);
      REQUIRE_THAT(found == (word && k == 128 ? 7 : 0), "page %llu, byte %zu: %llx", number(i), k, number(found));
    }
  }
};

// By a fault, of the thread that forks.
void zeroed_after_a_fault() {
  tier::start_tier(kDram, kLun, nullptr, "handlers=1,test_installed_delay_us=100000");
  Zeroed pages;
  pages.make();
  int seen[2] = {};
  for (const uint64_t i : {uint64_t{3}, uint64_t{500}, Zeroed::kPages - 9, Zeroed::kPages - 3}) {
    const bool word = i % 2 != 0;
    ++seen[lunar::pager_page_state(pages.at(i)) == static_cast<int>(lunar::PageState::kInFrame)];
    Zeroed::write(pages.at(i), pages.page, word);
    expect_of_child([&] { pages.expect(i, word); });
    pages.expect(i, word);
  }
  REQUIRE_THAT(seen[0] != 0 && seen[1] != 0, "%d were on the LUN, %d in frames", seen[0], seen[1]);
}

// By another thread's range operation, which no fork waits for.
void zeroed_after_a_touch() {
  tier::start_tier(kDram, kLun, nullptr, "handlers=1,test_installed_delay_us=100000");
  Zeroed pages;
  pages.make();
  for (const uint64_t i : {uint64_t{3}, uint64_t{500}, Zeroed::kPages - 9, Zeroed::kPages - 3}) {
    const bool word = i % 2 != 0;
    std::thread other([&] { REQUIRE_THAT(lunar_touch(pages.at(i), pages.page) == 0, "touch"); });
    for (unsigned char there = 0; (there & 1) == 0;)
      REQUIRE_THAT(mincore(pages.at(i), pages.page, &there) == 0, "mincore: %s", strerror(errno));
    Zeroed::write(pages.at(i), pages.page, word);
    expect_of_child([&] { pages.expect(i, word); });
    other.join();
    pages.expect(i, word);
  }
}

// A thread brings a page in by a range operation. The child has the page, and forks a child of its own.
void touch_in_the_midst() {
  REQUIRE_THAT(pthread_atfork(let_other_begin, nullptr, nullptr) == 0, "pthread_atfork");
  tier::start_tier(kDram, kLun, nullptr, "handlers=1,test_installed_delay_us=300000");
  Zeroed pages;
  pages.make();
  std::thread other([&] {
    wait_for_begin();
    REQUIRE_THAT(lunar_touch(pages.at(3), pages.page) == 0, "touch");
  });
  const auto check = [&] { REQUIRE_THAT(tier::stamp_holds(pages.at(3), pages.page, 3, 1), "content of the page"); };
  expect_of_child([&] {
    check();
    expect_of_child(check);
  });
  other.join();
}

// Likewise, and another thread writes to the page once it is there. It waits until the page is released, so the child
// knows the page by its content.
void written_in_the_midst() {
  REQUIRE_THAT(pthread_atfork(let_other_begin, nullptr, nullptr) == 0, "pthread_atfork");
  tier::start_tier(kDram, kLun, nullptr, "handlers=1,test_installed_delay_us=300000");
  Zeroed pages;
  pages.make();
  for (const uint64_t i : {uint64_t{3}, Zeroed::kPages - 3}) {
    const size_t page = pages.page;
    char* at = pages.at(i);
    g_begin.store(false);
    std::thread touches([&] {
      wait_for_begin();
      REQUIRE_THAT(lunar_touch(at, page) == 0, "touch");
    });
    std::thread writes([&] {
      wait_for_begin();
      for (unsigned char there = 0; (there & 1) == 0;)
        REQUIRE_THAT(mincore(at, page, &there) == 0, "mincore: %s", strerror(errno));
      Zeroed::write(at, page, true);
    });
    expect_of_child([&] { REQUIRE_THAT(tier::stamp_holds(at, page, i, 1), "content of page %llu", number(i)); });
    touches.join();
    writes.join();
    pages.expect(i, true);
  }
}

// The program has dropped a page by a raw system call, and a handler has put zeros there, which the page's slot is no
// copy of (test_installed_delay_us). The child has the word that still names the slot, and writes there what it held:
// the slot is kept for it, whatever the parent writes meanwhile.
void slot_of_a_dropped_page() {
  constexpr uint64_t kSmallLun = 64 * tier::kMega;
  tier::start_tier(kDram, kSmallLun, nullptr, "handlers=1,test_installed_delay_us=1000000");
  Zeroed pages;
  pages.make();
  const auto fill_other = [&](uint64_t version) {  // takes new slots, and every frame
    char* other = tier::new_region(Zeroed::kPages * pages.page);
    for (uint64_t i = 0; i < Zeroed::kPages; ++i) tier::stamp_write(other + i * pages.page, pages.page, i, version);
    REQUIRE_THAT(lunar_evict(other, Zeroed::kPages * pages.page) > 0, "evict");
    REQUIRE_THAT(lunar_region_destroy(other, Zeroed::kPages * pages.page) == 0, "destroy");
  };
  REQUIRE_THAT(tier::stamp_holds(pages.at(3), pages.page, 3, 1), "content of the page");
  while (lunar::pager_page_state(pages.at(3)) != static_cast<int>(lunar::PageState::kResident)) usleep(1000);
  // Slots are taken in runs: those next to it are free.
  REQUIRE_THAT(lunar_discard(pages.at(0), 3 * pages.page) == 0, "discard");
  REQUIRE_THAT(lunar_discard(pages.at(4), 508 * pages.page) == 0, "discard");
  REQUIRE_THAT(syscall(SYS_madvise, pages.at(3), pages.page, MADV_DONTNEED) == 0, "madvise");
  int written[2];
  REQUIRE_THAT(pipe(written) == 0, "pipe");
  REQUIRE_THAT(*reinterpret_cast<volatile uint64_t*>(pages.at(3)) == 0, "the page was dropped");
  const pid_t pid = fork();
  REQUIRE_THAT(pid >= 0, "fork: %s", strerror(errno));
  if (pid == 0) {
    close(written[1]);
    char end;
    REQUIRE_THAT(read(written[0], &end, 1) == 0, "pipe");
    tier::stamp_write(pages.at(3), pages.page, 3, 1);
    REQUIRE_THAT(lunar_evict(pages.at(3), pages.page) == 1, "evict");
    fill_other(1000);
    REQUIRE_THAT(lunar::pager_page_state(pages.at(3)) == static_cast<int>(lunar::PageState::kEvicted), "a frame");
    REQUIRE_THAT(tier::stamp_holds(pages.at(3), pages.page, 3, 1), "content of the child's page");
    fflush(nullptr);
    _exit(0);
  }
  for (uint64_t round = 0; round < 2 * kSmallLun / (Zeroed::kPages * pages.page); ++round) fill_other(2 + round);
  close(written[0]);
  close(written[1]);
  int status = 0;
  REQUIRE_THAT(waitpid(pid, &status, 0) == pid, "waitpid: %s", strerror(errno));
  REQUIRE_THAT(status == 0, "the child ended with status %x", status);
}

// A child opens its LUN at its first dirty eviction, while a thread of it commits and gives back: what is committed is
// charged there, no more and no less.
void commits_beside_the_first_eviction() {
  tier::start_tier(kDram, kLun);
  constexpr uint64_t kHeld = 48 * tier::kMega, kPiece = tier::kMega, kPieces = 32;
  const size_t page = lunar_page_bytes();
  auto* held = static_cast<char*>(lunar_region_create(kHeld));
  lunar::Region* region = nullptr;
  REQUIRE_THAT(held != nullptr && lunar::region_create(kPieces * kPiece, 0, &region) == 0, "regions");
  const auto write_all = [&](uint64_t version) {
    for (uint64_t i = 0; i < kHeld / page; ++i) tier::stamp_write(held + i * page, page, i, version);
  };
  write_all(1);
  for (int round = 0; round < 6; ++round)
    expect_of_child([&] {
      auto& state = lunar::pager_state();
      std::atomic<bool> stop{false};
      std::thread other([&] {
        bool committed[kPieces] = {};
        for (uint64_t i = 0; !stop.load(); i = i * 5 + 3) {
          const uint64_t at = i % kPieces;
          if (committed[at])
            lunar::region_decommit(region, at * kPiece, kPiece);
          else
            REQUIRE_THAT(lunar::region_commit(region, at * kPiece, kPiece) == 0, "commit");
          committed[at] = !committed[at];
          usleep(10);
        }
      });
      write_all(2);
      stop.store(true);
      other.join();
      REQUIRE_THAT(state.luns.ready.load(), "the child has evicted nothing");
      const uint64_t committed = lunar::committed_pages(state);
      const uint64_t charged = state.luns.slots[state.luns.own].charged_slots();
      REQUIRE_THAT(charged == committed, "%llu pages are committed, %llu slots charged", number(committed),
                   number(charged));
    });
}

}  // namespace

int main(int argc, char** argv) {
  return tier::run_case(argc, argv,
                        {{"first-touch-is-charged", first_touch_is_charged},
                         {"pins-change", pins_change},
                         {"first-allocation", first_allocation},
                         {"zeroed-after-a-fault", zeroed_after_a_fault},
                         {"zeroed-after-a-touch", zeroed_after_a_touch},
                         {"touch-in-the-midst", touch_in_the_midst},
                         {"written-in-the-midst", written_in_the_midst},
                         {"slot-of-a-dropped-page", slot_of_a_dropped_page},
                         {"commits", commits_beside_the_first_eviction}});
}
