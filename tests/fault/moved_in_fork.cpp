// SPDX-License-Identifier: Apache-2.0
// moved_in_fork CASE: a raw mremap moves tiered memory, part of it evicted, between a fork's first step, which makes
// the regions inheritable, and the kernel's copy of the address space. The child has the moved map, with holes where
// pages are evicted. It must read what the map holds, or end with a line: never zeros.
//
//   noted     the pager has noted the move when the kernel copies: the child has the note as well
//   kept      likewise, with MREMAP_DONTUNMAP: the child has both places
//   over_tiered  likewise, to the place of another region
//   unnoted   a handler has read the event, and notes it after the copy
//   unread    the event is unread at the copy, as the handler that reads is busy with another one
//   late      the move comes after the copy: the child, if it goes on, is as it would be without it
//   among_movers  children of a process whose other threads move maps all the time, and those threads, see no zeros
//
// A handler of the program's that was registered before the pager's runs after it in prepare.
#include <pthread.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <string>
#include <thread>
#include <vector>

#include "pager/state.h"
#include "tests/support/test_tier.h"

namespace {

using tier::kMega;

constexpr uint64_t kPages = 512, kFirst = 128, kMoved = 256;  // of the region; what is moved of it

char *g_from = nullptr, *g_to = nullptr, *g_other = nullptr;
std::string g_case;
std::thread g_moving, g_unmapping;
std::atomic<bool> g_is_moved{false};

char* moved_part() { return g_from + kFirst * lunar_page_bytes(); }

bool is_mapped(char* at) {
  unsigned char in_core;
  return mincore(at, lunar_page_bytes(), &in_core) == 0;
}

// By a map that mremap replaces, away from where the kernel puts others: a child has nothing there.
char* reserve() {
  char* const place = reinterpret_cast<char*>(uintptr_t{0x200000000000});
  void* at = mmap(place, kMoved * lunar_page_bytes(), PROT_NONE,
                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
  REQUIRE_THAT(at == place, "mmap: %s", strerror(errno));
  return place;
}

void move() {
  const size_t bytes = kMoved * lunar_page_bytes();
  const int how = MREMAP_MAYMOVE | MREMAP_FIXED | (g_case == "kept" ? MREMAP_DONTUNMAP : 0);
  REQUIRE_THAT(syscall(SYS_mremap, moved_part(), bytes, bytes, how, g_to) == reinterpret_cast<long>(g_to), "mremap: %s",
               strerror(errno));
  g_is_moved.store(true);
}

void between_the_steps() {
  if (g_case == "late") return;
  if (g_case != "unread") return move();
  g_unmapping = std::thread([] { (void)syscall(SYS_munmap, g_other, lunar_page_bytes()); });
  while (is_mapped(g_other)) {}
  usleep(20000);  // its event is read, and not noted for a while
  g_moving = std::thread(move);
  while (is_mapped(moved_part())) {}
  REQUIRE_THAT(!g_is_moved.load(), "the event was read too early for this test");
}

void after_in_parent() {
  if (g_case == "late") {
    g_to = reserve();
    move();
  }
}

int child() {
  uint64_t zeros = 0, wrong = 0;
  const size_t page = lunar_page_bytes();
  char* at = g_case == "late" ? moved_part() : g_to;
  for (uint64_t i = 0; i < kMoved; ++i) {
    const bool is_zero = tier::stamp_holds(at + i * page, page, 0, 0);
    zeros += is_zero;
    wrong += !is_zero && !tier::stamp_holds(at + i * page, page, kFirst + i, 1);
  }
  if (zeros + wrong != 0) printf("of %lu moved pages %lu are zeros and %lu others wrong\n", kMoved, zeros, wrong);
  fflush(stdout);
  return zeros + wrong == 0 ? 0 : 1;
}

void run() {
  const size_t page = lunar_page_bytes();
  g_from = static_cast<char*>(lunar_region_create(kPages * page));
  g_other = static_cast<char*>(lunar_region_create(kPages * page));
  if (g_case != "late") g_to = g_case == "over_tiered" ? g_other : reserve();
  REQUIRE_THAT(g_from != nullptr && g_other != nullptr, "%s", strerror(errno));
  for (uint64_t i = 0; i < kPages; ++i) tier::stamp_write(g_from + i * page, page, i, 1);
  REQUIRE_THAT(lunar_evict(g_from, kPages * page) >= 0, "evict");
  const pid_t pid = fork();
  REQUIRE_THAT(pid >= 0, "fork: %s", strerror(errno));
  if (pid == 0) _exit(child());
  int status = 0;
  REQUIRE_THAT(waitpid(pid, &status, 0) == pid, "%s", strerror(errno));
  for (std::thread* thread : {&g_moving, &g_unmapping})
    if (thread->joinable()) thread->join();
  for (uint64_t i = 0; i < kMoved; ++i)
    REQUIRE_THAT(tier::stamp_holds(g_to + i * page, page, kFirst + i, 1), "page %lu of the parent's", i);
  REQUIRE_THAT((WIFEXITED(status) && WEXITSTATUS(status) == 0) || (WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT),
               "the child ends with status %x", static_cast<unsigned>(status));
}

// ---- among_movers ---------------------------------------------------------------------------------------------------

constexpr unsigned kMovers = 4, kForks = 60;
constexpr uint64_t kMapPages = 64;

// A map that holds stamps; not while `pages` is 0.
struct alignas(4096) Mover {
  char* volatile at = nullptr;
  std::atomic<uint64_t> pages{0};
  std::atomic<uint64_t> moves{0};
};
Mover g_movers[kMovers];
std::atomic<bool> g_over{false};

bool holds_stamps(const char* at, uint64_t pages) {
  const size_t page = lunar_page_bytes();
  uint64_t zeros = 0, wrong = 0;
  for (uint64_t i = 0; i < pages; ++i)
    if (!tier::stamp_holds(at + i * page, page, i, 1)) ++(tier::stamp_holds(at + i * page, page, 0, 0) ? zeros : wrong);
  if (zeros + wrong != 0) printf("of %lu pages %lu are zeros and %lu others wrong\n", pages, zeros, wrong);
  fflush(stdout);
  return zeros + wrong == 0;
}

void show(Mover& mover, char* at) {
  mover.at = at;
  mover.pages.store(kMapPages);
}

void keep_moving(Mover& mover, uint64_t seed) {
  tier::Random random(seed);
  const size_t page = lunar_page_bytes(), bytes = kMapPages * page;
  while (!g_over.load()) {
    auto* from = static_cast<char*>(lunar_region_create(bytes));
    auto* to = static_cast<char*>(mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    REQUIRE_THAT(from != nullptr && to != MAP_FAILED, "%s", strerror(errno));
    for (uint64_t i = 0; i < kMapPages; ++i) tier::stamp_write(from + i * page, page, i, 1);
    (void)lunar_evict(from, bytes);
    for (uint64_t i = 0; i < random.below(kMapPages); ++i) (void)*static_cast<volatile char*>(from + i * page);
    show(mover, from);
    if (random.one_in(2)) usleep(static_cast<useconds_t>(random.below(2000)));
    mover.pages.store(0);  // another thread's region may come to lie there
    REQUIRE_THAT(
        syscall(SYS_mremap, from, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, to) == reinterpret_cast<long>(to), "%s",
        strerror(errno));
    show(mover, to);
    if (random.one_in(2)) usleep(static_cast<useconds_t>(random.below(2000)));
    REQUIRE_THAT(holds_stamps(to, kMapPages), "the parent's moved map is not what it was");
    mover.pages.store(0);
    ++mover.moves;
    REQUIRE_THAT(munmap(to, bytes) == 0 && lunar_region_destroy(from, bytes) == 0, "%s", strerror(errno));
  }
}

// Maps cannot change while the kernel copies them: what is shown is there.
int child_of_movers() {
  for (Mover& mover : g_movers)
    if (const uint64_t pages = mover.pages.load(); pages != 0 && !holds_stamps(mover.at, pages)) return 1;
  return 0;
}

void among_movers() {
  tier::Random random(tier::announce_seed());
  std::vector<std::thread> threads;
  for (Mover& mover : g_movers) threads.emplace_back([&mover, seed = random.next()] { keep_moving(mover, seed); });
  unsigned whole = 0, ended = 0;
  for (unsigned i = 0; i < kForks; ++i) {
    const pid_t pid = fork();
    REQUIRE_THAT(pid >= 0, "fork: %s", strerror(errno));
    if (pid == 0) _exit(child_of_movers());
    int status = 0;
    REQUIRE_THAT(waitpid(pid, &status, 0) == pid, "%s", strerror(errno));
    REQUIRE_THAT(!WIFEXITED(status) || WEXITSTATUS(status) == 0, "child %u has read what was never written", i);
    WIFEXITED(status) ? ++whole : ++ended;
  }
  g_over.store(true);
  for (std::thread& thread : threads) thread.join();
  uint64_t moves = 0;
  for (Mover& mover : g_movers) moves += mover.moves.load();
  printf("%u children whole, %u ended, %lu moves\n", whole, ended, moves);
  REQUIRE_THAT(moves != 0, "nothing was moved");
}

}  // namespace

int main(int argc, char** argv) {
  REQUIRE_THAT(argc == 2, "usage: moved_in_fork CASE");
  g_case = argv[1];
  if (g_case != "among_movers") pthread_atfork(between_the_steps, after_in_parent, nullptr);
  const bool slow = g_case == "unnoted" || g_case == "unread";
  tier::start_tier(16 * kMega, 256 * kMega, nullptr, slow ? "handlers=4,test_event_delay_us=300000" : "handlers=4");
  g_case == "among_movers" ? among_movers() : run();
  fflush(nullptr);
  _exit(0);
}
