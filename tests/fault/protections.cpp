// SPDX-License-Identifier: Apache-2.0
// protections CASE [--off]: each protection of gather-evict against lost writes, with its switch.
//
//   cow          children are forked while threads count in pages that are being evicted. A page
//                shared by a fork is made exclusive first, or what is written between the gather
//                and the drop lands in a copy and is lost
//   epoch        the same, when the counter of forks comes round to the numbers that pages are
//                marked with (32,768 forks)
//   read-only    the same for pages that are read-only when they are gathered, and are made
//                writable (by mprotect) and counted in before they are dropped
//   registered   io_uring reads into registered buffers that are being evicted: pinned pages must
//                stay where they are
//   direct       large O_DIRECT reads into memory that is being evicted: the same for pins of the
//                moment
//
// --off switches the protection off (test_no_cow_remedy, test_no_pin_rule). Then the loss must be
// seen, or the test would prove nothing.
#include <fcntl.h>
#include <liburing.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include <chrono>
#include <string>
#include <vector>

#include "pager/state/state.h"
#include "tests/support/test_tier.h"

namespace {

using tier::Random;

std::atomic<uint64_t> g_progress{0};

// ---- cow ----------------------------------------------------------------------------------------

// One page, made writable for this. mprotect is the kernel's own here.
void count_in_read_only(std::atomic<uint64_t>* word, std::atomic<uint64_t>& model) {
  void* page =
      reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(word) & ~(lunar_page_bytes() - 1));
  REQUIRE(mprotect(page, lunar_page_bytes(), PROT_READ | PROT_WRITE) == 0);
  word->fetch_add(1);
  model.fetch_add(1);
  REQUIRE(mprotect(page, lunar_page_bytes(), PROT_READ) == 0);
}

// come_round: the counter goes on as 32,767 forks would take it, so that the next fork ends at the
// number of the pages there are.
uint64_t count_under_forks(uint64_t seed, bool off, bool come_round, bool read_only) {
  constexpr uint64_t kBytes = 16 * tier::kMega, kWindow = 64;
  constexpr unsigned kWriters = 2, kForks = 12;
  const unsigned started = read_only ? 1 : kWriters;
  size_t page = lunar_page_bytes();
  uint64_t count = kBytes / page;
  char* base = tier::new_region(kBytes);
  std::vector<std::atomic<uint64_t>> model(count * kWriters);
  std::atomic<uint64_t> hand{0};  // where pages are being evicted now: the writers count there
  std::atomic<bool> stop{false};
  auto word = [&](uint64_t i, unsigned t) {
    return reinterpret_cast<std::atomic<uint64_t>*>(base + i * page) + t * 16;
  };
  if (read_only) memset(base, 1, kBytes);  // there, and then read-only
  if (read_only) REQUIRE(mprotect(base, kBytes, PROT_READ) == 0);
  auto writers = lunar_test::start_threads(started, [&](unsigned t) {
    Random random(seed * 8 + t);
    while (!stop.load(std::memory_order_relaxed)) {
      uint64_t i = hand.load(std::memory_order_relaxed) + random.below(kWindow);
      if (read_only) {
        count_in_read_only(word(i, t), model[i * kWriters + t]);
        continue;
      }
      word(i, t)->fetch_add(1);
      model[i * kWriters + t].fetch_add(1);
    }
  });
  for (unsigned round = 0; round < kForks; ++round) {
    REQUIRE(lunar_touch(base, kBytes / 4) == 0);
    if (come_round) lunar::pager_state().fork.epoch.fetch_add(65536 - 2);
    pid_t child = fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      usleep(100000);
      _exit(0);
    }
    for (uint64_t at = 0; at + kWindow <= count / 4; at += kWindow, ++g_progress) {
      hand.store(at);
      REQUIRE(lunar_evict(base + at * page, kWindow * page) >= 0);
    }
    waitpid(child, nullptr, 0);
  }
  stop.store(true);
  writers.clear();
  uint64_t lost = 0;
  for (uint64_t i = 0; i < count; ++i)
    for (unsigned t = 0; t < started; ++t)
      lost += model[i * kWriters + t].load() -
              (word(i, t)->load() - (read_only ? 0x0101010101010101 : 0));
  if (!off) REQUIRE(tier::validate());
  return lost;
}

// ---- pinned pages -------------------------------------------------------------------------------

constexpr size_t kBlock = 1 << 20;
constexpr uint64_t kFileBytes = 64 * tier::kMega;

// A file whose every word tells its place; read around the page cache.
int pattern_file(bool direct) {
  char path[] = "/var/tmp/lunar-test-XXXXXX";
  int fd = mkstemp(path);
  REQUIRE(fd >= 0);
  std::vector<uint64_t> words(kBlock / 8);
  for (uint64_t at = 0; at < kFileBytes; at += kBlock) {
    tier::stamp_write(words.data(), kBlock, at, 1);
    if (write(fd, words.data(), kBlock) != static_cast<ssize_t>(kBlock))
      SKIP("disk-space", "no room for a file under /var/tmp");
  }
  fdatasync(fd);
  int again = open(path, O_RDONLY | O_CLOEXEC | (direct ? O_DIRECT : 0));
  REQUIRE(again >= 0);
  unlink(path);
  close(fd);
  return again;
}

bool block_holds(const char* at, uint64_t file_offset) {
  return tier::stamp_holds(at, kBlock, file_offset, 1);
}

// Evicts, without a pause, the pages that others read into, and uses memory of its own to keep DRAM
// short.
class Harasser {
 public:
  Harasser(char* base, uint64_t bytes)
      : thread_([this, base, bytes] {
          constexpr uint64_t kOwn = 64 * tier::kMega;
          size_t page = lunar_page_bytes();
          char* own = tier::new_region(kOwn);
          for (uint64_t i = 0; i < kOwn / page; ++i) tier::stamp_write(own + i * page, page, i, 1);
          Random random(1);
          while (!stop_.load(std::memory_order_relaxed)) {
            REQUIRE(lunar_evict(base, bytes) >= 0);
            uint64_t i = random.below(kOwn / page);
            REQUIRE(tier::stamp_holds(own + i * page, page, i, 1), "other memory is wrong");
          }
        }) {}
  ~Harasser() {
    stop_.store(true);
    thread_.join();
  }

 private:
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

// Reads go on until the harasser has met pinned pages or, without protection, a loss; this may take
// longer on a busy machine.
class Enough {
 public:
  explicit Enough(bool off) : off_(off) {}
  bool operator()(uint64_t lost) const {
    const bool met = off_ ? lost > 0 : lunar::counters().kept_pinned.get() > 100;
    return met || std::chrono::steady_clock::now() - start_ > std::chrono::seconds(25);
  }

 private:
  bool off_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

uint64_t read_registered(uint64_t seed, bool off) {
  constexpr unsigned kBuffers = 4, kReads = 600;
  char* base = tier::new_region(kBuffers * kBlock);
  io_uring ring;
  int rc = io_uring_queue_init(kBuffers, &ring, 0);
  if (rc < 0) SKIP("io_uring", strerror(-rc));
  iovec buffers[kBuffers];
  for (unsigned i = 0; i < kBuffers; ++i) buffers[i] = {base + i * kBlock, kBlock};
  memset(base, 0x55, kBuffers * kBlock);
  rc = io_uring_register_buffers(&ring, buffers, kBuffers);
  if (rc == -ENOMEM) SKIP("memory", "RLIMIT_MEMLOCK allows no registered buffers of 4 MiB");
  REQUIRE(rc == 0, "io_uring_register_buffers: %s", strerror(-rc));
  int fd = pattern_file(true);
  Random random(seed);
  uint64_t lost = 0;
  Harasser harasser(base, kBuffers * kBlock);
  const Enough enough(off);
  for (unsigned done = 0; done < kReads || !enough(lost); done += kBuffers, ++g_progress) {
    uint64_t offsets[kBuffers];
    for (unsigned i = 0; i < kBuffers; ++i) {
      offsets[i] = random.below(kFileBytes / kBlock) * kBlock;
      io_uring_sqe* sqe = io_uring_get_sqe(&ring);
      io_uring_prep_read_fixed(sqe, fd, buffers[i].iov_base, kBlock, offsets[i],
                               static_cast<int>(i));
      sqe->user_data = i;
    }
    REQUIRE(io_uring_submit(&ring) == static_cast<int>(kBuffers));
    for (unsigned i = 0; i < kBuffers; ++i) {
      io_uring_cqe* cqe = nullptr;
      REQUIRE(io_uring_wait_cqe(&ring, &cqe) == 0);
      REQUIRE(cqe->res == static_cast<int>(kBlock), "READ_FIXED: %d", cqe->res);
      uint64_t which = cqe->user_data;
      io_uring_cqe_seen(&ring, cqe);
      if (!block_holds(base + which * kBlock, offsets[which])) ++lost;
    }
  }
  io_uring_queue_exit(&ring);
  return lost;
}

uint64_t read_direct(uint64_t seed, bool off) {
  constexpr unsigned kReaders = 4, kReads = 150;
  char* base = tier::new_region(kReaders * kBlock);
  memset(base, 0x55, kReaders * kBlock);
  int fd = pattern_file(true);
  std::atomic<uint64_t> lost{0};
  const Enough enough(off);
  Harasser harasser(base, kReaders * kBlock);
  lunar_test::in_parallel(kReaders, [&](unsigned t) {
    Random random(seed * 8 + t);
    char* into = base + t * kBlock;
    for (unsigned i = 0; i < kReads || !enough(lost.load()); ++i, ++g_progress) {
      uint64_t offset = random.below(kFileBytes / kBlock) * kBlock;
      ssize_t n = pread(fd, into, kBlock, static_cast<off_t>(offset));
      REQUIRE(n == static_cast<ssize_t>(kBlock), "pread: %zd %s", n, strerror(errno));
      if (!block_holds(into, offset)) lost.fetch_add(1);
    }
  });
  return lost.load();
}

[[noreturn]] void protect(const std::string& mode) {
  const bool off = lunar_test::has_option("--off");
  bool cow = mode == "cow" || mode == "epoch" || mode == "read-only";
  uint64_t seed = tier::run_seed();
  std::string options = cow ? "test_evict_delay_us=300" : "test_evict_delay_us=100";
  if (off) options += cow ? ",test_no_cow_remedy=yes" : ",test_no_pin_rule=yes";
  tier::start_tier(32 * tier::kMega, 512 * tier::kMega, nullptr, options.c_str());
  tier::Watchdog watchdog(g_progress, 60);
  uint64_t lost = cow ? count_under_forks(seed, off, mode == "epoch", mode == "read-only")
                  : mode == "registered" ? read_registered(seed, off)
                                         : read_direct(seed, off);
  auto& counted = lunar::counters();
  printf("%s: lost %lu; evictions %lu, kept as pinned %lu, made exclusive %lu\n", mode.c_str(),
         lost, counted.evictions.get(), counted.kept_pinned.get(), counted.made_exclusive.get());
  fflush(stdout);
  if (off)
    REQUIRE(lost > 0, "without the protection nothing was lost: this test proves nothing");
  else
    REQUIRE(lost == 0, "something was lost");
  if (!off) REQUIRE(counted.evictions.get() > 100, "hardly anything was evicted");
  // 11 on an emulated machine
  if (!off && !cow) REQUIRE(counted.kept_pinned.get() > 0, "no pinned page was met");
  if (!off && cow) REQUIRE(counted.made_exclusive.get() > 0, "no page was shared by a fork");
  fflush(nullptr);
  _exit(0);  // with buffers registered and children about, no destructor has work left
}

}  // namespace

TEST_CASE("cow") { protect("cow"); }
TEST_CASE("epoch") { protect("epoch"); }
TEST_CASE("read-only") { protect("read-only"); }
TEST_CASE("registered") { protect("registered"); }
TEST_CASE("direct") { protect("direct"); }
