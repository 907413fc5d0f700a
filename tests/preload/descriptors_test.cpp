// SPDX-License-Identifier: Apache-2.0
// A program that closes or replaces Lunar's descriptors by number. Its own files there stay as they
// are, and memory is served as before.
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <atomic>
#include <csignal>
#include <thread>
#include <vector>

#include "preload_test.h"
#include "raw_call.h"
#include "tests/support/refused_calls.h"
#include "tier_stats.h"

namespace {

constexpr size_t kHeap = 64 * kMiB;   // four times the budget
constexpr size_t kMore = 192 * kMiB;  // more than the LUN's file is grown ahead

constexpr char kRing[] = "anon_inode:[io_uring]", kUserfaultfd[] = "anon_inode:[userfaultfd]";

int own_file() {
  char name[] = "/var/tmp/lunar-test-XXXXXX";
  const int fd = mkstemp(name);
  REQUIRE(fd >= 0 && unlink(name) == 0 && write(fd, "content", 7) == 7);
  return fd;
}

bool is_as_it_was(int fd) {
  char content[16];
  return pread(fd, content, sizeof content, 0) == 7 && memcmp(content, "content", 7) == 0;
}

// Every number above the standard ones that is in use; `fd` is the file there from then on.
std::vector<int> take_all(int fd, bool past_the_library) {
  std::vector<int> taken;
  for (int number = 3; number < 2048; ++number) {
    if (number == fd || fcntl(number, F_GETFD) < 0) continue;
    REQUIRE((past_the_library ? raw(SYS_dup2, fd, number) : dup2(fd, number)) == number);
    taken.push_back(number);
  }
  REQUIRE(!taken.empty());
  return taken;
}

bool all_are(const std::vector<int>& numbers, int fd) {
  struct stat file, one;
  REQUIRE(fstat(fd, &file) == 0);
  for (const int number : numbers)
    if (fstat(number, &one) != 0 || one.st_ino != file.st_ino || one.st_dev != file.st_dev) {
      fprintf(stderr, "%d is another file\n", number);
      return false;
    }
  return true;
}

void take_numbers(bool past_the_library) {
  char* p = map_tiered(kHeap);
  fill(p, kHeap, 1);
  const int fd = own_file();
  const std::vector<int> taken = take_all(fd, past_the_library);
  char* more = map_tiered(kMore);  // the LUN grows
  fill(more, kMore, 2);
  REQUIRE(is_as_it_was(fd) && all_are(taken, fd));
  const pid_t child = fork();
  if (child == 0) {
    REQUIRE(holds(p, kHeap, 1) && holds(more, kMore, 2));
    fill(p, kHeap, 3);
    REQUIRE(holds(p, kHeap, 3) && is_as_it_was(fd) && all_are(taken, fd));
    _exit(0);
  }
  REQUIRE(ends_well(child) && holds(p, kHeap, 1) && holds(more, kMore, 2));
  REQUIRE(is_as_it_was(fd) && all_are(taken, fd));
}

// A process that is small then, and its child, which both grow later.
void take_numbers_early(bool past_the_library) {
  const int fd = own_file();
  const std::vector<int> taken = take_all(fd, past_the_library);
  const pid_t child = fork();
  REQUIRE(child >= 0 && all_are(taken, fd));
  char* p = map_tiered(kHeap);
  fill(p, kHeap, 1);
  REQUIRE(holds(p, kHeap, 1) && is_as_it_was(fd) && all_are(taken, fd));
  if (child == 0) _exit(0);
  REQUIRE(ends_well(child) && holds(p, kHeap, 1));
}

// The program closes all, and discards what other threads touch: none of them may wait forever.
void discard_after_close() {
  constexpr size_t kTouched = 2 * kMiB;
  char* p = map_tiered(kHeap);
  fill(p, kHeap, 1);
  REQUIRE(raw(SYS_close_range, 3, ~0u, 0) == 0);
  constexpr unsigned kThreads = 3;
  std::atomic<uint64_t> touches[kThreads] = {};
  Meanwhile touching(
      [&](unsigned t) { *(volatile char*)(p + stamp(1, touches[t]++) % kTouched) = 1; }, kThreads);
  uint64_t least = 0;
  for (uint64_t round = 0; round < 50000 || least < 1000; ++round) {
    REQUIRE(madvise(p, kTouched, MADV_DONTNEED) == 0);
    least = ~uint64_t{0};
    for (const auto& count : touches) least = count < least ? count.load() : least;
  }
  for (auto& count : touches)  // they go on, also when nothing is discarded any more
    for (const uint64_t was = count; count == was;) sched_yield();
  touching.end();
  REQUIRE(holds(p + kTouched, kHeap - kTouched, 1, kTouched / sizeof(long)));
}

// The first map without reservation, and one that is larger than what was reserved for others.
void map_after_close() {
  constexpr size_t kReserved = 40960 * kMiB;
  char* p = map_tiered(kHeap);
  fill(p, kHeap, 1);
  REQUIRE(raw(SYS_close_range, 3, ~0u, 0) == 0);
  constexpr int kFlags = kPrivate;
  auto* q = static_cast<char*>(mmap(nullptr, kHeap, kRw, kFlags | MAP_NORESERVE, -1, 0));
  auto* r = static_cast<char*>(mmap(nullptr, kReserved, PROT_NONE, kFlags, -1, 0));
  REQUIRE(q != MAP_FAILED && tiered(q) && r != MAP_FAILED && tiered(r));
  REQUIRE(mprotect(r, kHeap, kRw) == 0);
  fill(q, kHeap, 2);
  fill(r, kHeap, 3);
  REQUIRE(holds(p, kHeap, 1) && holds(q, kHeap, 2) && holds(r, kHeap, 3));
  const pid_t child = fork();
  if (child == 0) _exit(holds(p, kHeap, 1) && holds(q, kHeap, 2) && holds(r, kHeap, 3) ? 0 : 1);
  REQUIRE(ends_well(child));
}

// A thread that has a command ring of its own ends.
void take_ring() {
  char* p = map_tiered(kHeap);
  fill(p, kHeap, 1);
  std::atomic<int> step{0};
  std::thread user([&] {
    REQUIRE(mlock(p, 4 * kMiB) == 0);
    step = 1;
    while (step != 2) sched_yield();
    REQUIRE(mlock(p + 4 * kMiB, kMiB) == 0 && munlock(p, 5 * kMiB) == 0);
  });
  while (step != 1) sched_yield();
  const int fd = own_file();
  const std::vector<int> taken = take_all(fd, false);
  step = 2;
  user.join();
  REQUIRE(all_are(taken, fd) && is_as_it_was(fd) && holds(p, kHeap, 1));
}

// One of its threads closes all while others are in the middle of calls that use them.
void close_beside_reads(char* p, unsigned round) {
  constexpr unsigned kThreads = 4;
  std::atomic<uint64_t> turns[kThreads] = {};
  Meanwhile reading(
      [&](unsigned t) {
        constexpr size_t kPart = kMiB;
        const size_t at = stamp(round, turns[t] / 4) % (kHeap / kPart) * kPart;
        if (t % 2 == 0) REQUIRE(mlock(p + at, kPart) == 0);
        REQUIRE(holds(p + at, kPart, 1, at / sizeof(long)));
        if (t % 2 == 0) REQUIRE(munlock(p + at, kPart) == 0);
        ++turns[t];
      },
      kThreads);
  const auto all_go_on = [&](uint64_t by) {
    for (auto& count : turns)
      for (const uint64_t was = count; count < was + by;) sched_yield();
  };
  if (round % 4 == 0) all_go_on(1);
  usleep(static_cast<useconds_t>(stamp(round, 1) % 1500));
  REQUIRE(raw(SYS_close_range, 3, ~0u, 0) == 0);
  all_go_on(4);
}

void closed_beside_reads(unsigned rounds) {
  char* p = map_tiered(kHeap);
  fill(p, kHeap, 1);
  for (unsigned round = 0; round < rounds; ++round) {
    const pid_t child = fork();
    if (child == 0) {
      close_beside_reads(p, round);
      _exit(0);
    }
    REQUIRE(ends_well(child));
  }
}

// The first descriptor of such a file, from `number` on; -1: none.
int own_number(const char* of, int number = 3) {
  for (; number < 65536; ++number) {
    char path[64], target[64] = {};
    snprintf(path, sizeof path, "/proc/self/fd/%d", number);
    if (readlink(path, target, sizeof target - 1) > 0 && strcmp(target, of) == 0) return number;
  }
  return -1;
}

// Nothing else shows that devices may write into the program's memory. Past the library, which
// looks at what is opened.
void read_beside_direct_io() {
  const int errors = own_file();
  REQUIRE(dup2(errors, 2) == 2);
  char* p = map_tiered(kHeap);
  fill(p, kHeap, 1);
  for (uint64_t was = 0; tier_stats().evictions != was; usleep(100000))
    was = tier_stats().evictions;  // they are over
  const auto fd =
      static_cast<int>(raw(SYS_openat, AT_FDCWD, "/var/tmp", O_TMPFILE | O_RDWR | O_DIRECT, 0600));
  REQUIRE(fd >= 0);
  REQUIRE(raw(SYS_dup2, fd, own_number(kUserfaultfd)) >= 0 && raw(SYS_close, fd) == 0);
  char said[4096] = {};
  while (pread(errors, said, sizeof said - 1, 0) <= 0 ||
         strstr(said, "may pin pages for devices (descriptor ") == nullptr)
    REQUIRE(holds(p, kHeap, 1));  // evicts
}

// `fd` comes to stand under each number that is such a file of Lunar's, and nowhere else.
std::vector<int> take_numbers_of(const char* kind, int fd) {
  std::vector<int> taken;
  for (int number = 2; (number = own_number(kind, number + 1)) >= 0;) {
    if (number == fd) continue;
    REQUIRE(raw(SYS_dup2, fd, number) == number);
    taken.push_back(number);
  }
  REQUIRE(!taken.empty() && raw(SYS_close, fd) == 0);
  return taken;
}

// The files at these numbers are still one, and that of before.
bool are_still(const std::vector<int>& numbers, const struct stat& before) {
  struct stat now;
  return all_are(numbers, numbers[0]) && fstat(numbers[0], &now) == 0 &&
         now.st_ino == before.st_ino;
}

// A file of the program's own of the same kind as Lunar's is not closed with these, neither by a
// forked child nor by a thread that ends.
void keep_own(const char* kind, int fd) {
  char* p = map_tiered(kHeap);
  fill(p, kHeap, 1);
  std::atomic<int> step{0};
  std::thread user([&] {
    REQUIRE(mlock(p, kMiB) == 0 && munlock(p, kMiB) == 0);  // makes a ring
    step = 1;
    while (step != 2) sched_yield();
  });
  REQUIRE(mlock(p, kMiB) == 0 && munlock(p, kMiB) == 0);
  while (step != 1) sched_yield();
  const std::vector<int> taken = take_numbers_of(kind, fd);
  struct stat file;
  REQUIRE(fstat(taken[0], &file) == 0);
  for (int turn = 0; turn < 2; ++turn) {
    const pid_t child = fork();
    if (child == 0) {
      REQUIRE(are_still(taken, file) && holds(p, kHeap, 1) && are_still(taken, file));
      _exit(0);
    }
    REQUIRE(ends_well(child) && are_still(taken, file) && holds(p, kHeap, 1));
    REQUIRE(mlock(p + kHeap - kMiB, kMiB) == 0 && munlock(p + kHeap - kMiB, kMiB) == 0);
    step = 2;
    if (user.joinable()) user.join();
    REQUIRE(are_still(taken, file));
  }
}

int keep_own_ring() {
  unsigned char parameters[120] = {};  // struct io_uring_params
  const auto fd = static_cast<int>(raw(SYS_io_uring_setup, 8, parameters));
  if (fd < 0) {
    printf("skip: io_uring: this process may make no ring (%s)\n", strerror(errno));
    return 77;
  }
  keep_own(kRing, fd);
  return 0;
}

void keep_own_userfaultfd() {
  constexpr long kUserModeOnly = 1;
  const auto fd = static_cast<int>(raw(SYS_userfaultfd, O_CLOEXEC | kUserModeOnly));
  REQUIRE(fd >= 0);
  keep_own(kUserfaultfd, fd);
}

// A child has all descriptors that its parent had.
void keep_many() {
  REQUIRE(refuse_calls({SYS_process_madvise}));
  char* p = map_tiered(kHeap);
  fill(p, kHeap, 1);
  const int fd = own_file();
  std::vector<int> own;
  for (int i = 0; i < 200; ++i) {
    own.push_back(fcntl(fd, F_DUPFD, 600));
    REQUIRE(own.back() >= 0);
  }
  const pid_t child = fork();
  if (child == 0) {
    REQUIRE(holds(p, kHeap, 1));
    fill(p, kHeap, 2);
    REQUIRE(holds(p, kHeap, 2) && all_are(own, fd));
    _exit(0);
  }
  REQUIRE(ends_well(child) && holds(p, kHeap, 1) && all_are(own, fd));
}

// No ring can be made for a thread that locks memory for the first time.
void lock_without_number() {
  char* p = map_tiered(kHeap);
  fill(p, kHeap, 1);
  const rlimit none{0, 0};
  REQUIRE(setrlimit(RLIMIT_NOFILE, &none) == 0);
  REQUIRE(mlock(p, kMiB) == 0 && holds(p, kMiB, 1) && munlock(p, kMiB) == 0);
  std::thread([p] {
    REQUIRE(madvise(p + kMiB, kMiB, MADV_WILLNEED) == 0 &&
            madvise(p + kMiB, kMiB, MADV_POPULATE_READ) == 0);
    REQUIRE(holds(p + kMiB, kMiB, 1, kMiB / sizeof(long)));
  }).join();
  REQUIRE(holds(p, kHeap, 1));
}

}  // namespace

int main(int argc, char** argv) {
  return run_cases(
      argc, argv, {"LUNAR_DRAM=16m", "LUNAR_SIZE=1g"},
      {{"call", [] { take_numbers(false); }},  // by dup2 of libc
       {"raw", [] { take_numbers(true); }},    // by a system call that the library does not see
       {"early-call", [] { take_numbers_early(false); }},
       {"early-raw", [] { take_numbers_early(true); }},
       {"ring", take_ring},
       {"discards", discard_after_close},
       {"reads", [] { closed_beside_reads(30); }},
       {"reads-long", [] { closed_beside_reads(240); }},
       {"regions", map_after_close},
       {"pins", read_beside_direct_io, {"LUNAR_LOG=info"}},
       {"own-ring", keep_own_ring},
       {"own-userfaultfd", keep_own_userfaultfd},
       {"many", keep_many},
       {"none-left", lock_without_number}});
}
