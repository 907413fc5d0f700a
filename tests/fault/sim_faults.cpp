// SPDX-License-Identifier: Apache-2.0
// sim_faults: a LUN that fails, tears, misplaces and corrupts I/O. Each page read back is right or
// reported: by SIGBUS on a load, by -EIO from lunar_touch, by an error of the system call that
// meets it. It is never silently wrong.
//
// Idea. Threads write and read pages of a region of four times the budget on a sim: LUN. A page
// that is reported lost is discarded (zeros from then on) and goes on. `--protection-off` runs
// without the check of hashes, on a LUN that only corrupts: the test then passes when wrong content
// is seen, so that the check is known to be what keeps it out.
//
// Options: --ios N (I/Os at least), --protection-off. LUNAR_SEED=N replays the device's faults and
// the threads' choices.
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>

#include <string>
#include <vector>

#include "pager/state/state.h"
#include "superpipe/sim/sim_device.h"
#include "tests/support/test_tier.h"

namespace {

using lunar_test::has_option;
using lunar_test::option;

using tier::Random;

constexpr uint64_t kMemory = 64 * tier::kMega;
constexpr unsigned kThreads = 4;

char* g_base = nullptr;
size_t g_page = 0;
uint64_t g_pages = 0;
std::vector<std::atomic<uint32_t>> g_locks;
std::vector<uint32_t> g_versions;
std::atomic<uint64_t> g_operations{0}, g_wrong{0}, g_by_signal{0}, g_by_touch{0}, g_by_syscall{0};

thread_local sigjmp_buf t_lost;
thread_local volatile sig_atomic_t t_loading = 0;

void on_sigbus(int, siginfo_t* info, void*) {
  auto* at = static_cast<char*>(info->si_addr);
  if (t_loading && at >= g_base && at < g_base + kMemory) siglongjmp(t_lost, 1);
  static const char text[] = "SIGBUS outside of a checked load\n";
  (void)!write(2, text, sizeof text - 1);
  _exit(1);
}

enum class Sight { kRight, kWrong, kLost };

Sight look(uint64_t page) {
  Sight sight = Sight::kLost;
  if (sigsetjmp(t_lost, 1) == 0) {
    t_loading = 1;
    sight = tier::stamp_holds(g_base + page * g_page, g_page, page, g_versions[page])
                ? Sight::kRight
                : Sight::kWrong;
  }
  t_loading = 0;
  return sight;
}

// A store may also find a lost page.
bool store(uint64_t page, uint32_t version) {
  if (sigsetjmp(t_lost, 1) != 0) {
    t_loading = 0;
    return false;
  }
  t_loading = 1;
  tier::stamp_write(g_base + page * g_page, g_page, page, version);
  t_loading = 0;
  return true;
}

void take_leave(uint64_t page) {
  REQUIRE(lunar_discard(g_base + page * g_page, g_page) == 0);
  g_versions[page] = 0;
  REQUIRE(look(page) == Sight::kRight, "page %lu is not zero after its discard", page);
}

void check_result(uint64_t page, Sight sight, bool expect_wrong, const char* how) {
  if (sight == Sight::kLost) {
    g_by_signal.fetch_add(1);
    take_leave(page);
  } else if (sight == Sight::kWrong) {
    g_wrong.fetch_add(1);
    auto* word = reinterpret_cast<uint64_t*>(g_base + page * g_page);
    REQUIRE(expect_wrong, "page %lu is silently wrong (%s): version %u, words %lx %lx", page, how,
            g_versions[page], word[0], word[1]);
    (void)store(page, ++g_versions[page]);
  }
}

class Worker {
 public:
  Worker(uint64_t seed, unsigned index, bool expect_wrong)
      : random_(seed * 16 + index), expect_wrong_(expect_wrong), plain_(g_page) {
    REQUIRE(pipe2(pipe_, O_CLOEXEC) == 0);
  }

  void operate() {
    uint64_t dice = random_.below(100);
    if (dice < 12) {
      lunar_range ranges[64];
      for (lunar_range& range : ranges) range = {g_base + random_.below(g_pages) * g_page, g_page};
      int rc = lunar_prefetch(ranges, 64);
      REQUIRE(rc == 0 || rc == -EIO, "prefetch: %d", rc);
      return;
    }
    uint64_t page = random_.below(g_pages);
    uint32_t free = 0;
    if (!g_locks[page].compare_exchange_strong(free, 1, std::memory_order_acquire)) return;
    if (dice < 55)
      check_result(page, look(page), expect_wrong_, "load");
    else if (dice < 85)
      write_page(page);
    else if (dice < 93)
      touch_page(page);
    else
      system_call(page);
    g_locks[page].store(0, std::memory_order_release);
  }

 private:
  void write_page(uint64_t page) {
    check_result(page, look(page), expect_wrong_, "load before a write");
    if (store(page, g_versions[page] + 1)) {
      ++g_versions[page];
      return;
    }
    g_by_signal.fetch_add(1);  // evicted and lost between the look and the store
    take_leave(page);
  }

  void touch_page(uint64_t page) {
    int rc = lunar_touch(g_base + page * g_page, g_page);
    REQUIRE(rc == 0 || rc == -EIO, "touch: %d", rc);
    Sight sight = look(page);
    if (rc == -EIO) {
      g_by_touch.fetch_add(1);
      REQUIRE(sight == Sight::kLost, "lunar_touch said -EIO of page %lu, and a load of it works",
              page);
    }
    check_result(page, sight, expect_wrong_, "touch");
  }

  void system_call(uint64_t page) {
    ssize_t n = write(pipe_[1], g_base + page * g_page, g_page);
    if (n == static_cast<ssize_t>(g_page)) {
      REQUIRE(read(pipe_[0], plain_.data(), g_page) == n);
      bool right = tier::stamp_holds(plain_.data(), g_page, page, g_versions[page]);
      REQUIRE(right || expect_wrong_, "write() saw the wrong content of page %lu", page);
      if (!right) check_result(page, look(page), true, "write()");
      return;
    }
    REQUIRE(n > 0 || errno == EFAULT || errno == EHWPOISON, "write: %zd %s", n, strerror(errno));
    while (n > 0) n -= read(pipe_[0], plain_.data(), static_cast<size_t>(n));
    g_by_syscall.fetch_add(1);
    REQUIRE(look(page) == Sight::kLost, "write() failed on page %lu, and a load of it works", page);
    take_leave(page);
  }

  Random random_;
  bool expect_wrong_;
  int pipe_[2];
  std::vector<char> plain_;
};

struct Settings {
  uint64_t ios;
  bool off;
};

void set_up(const Settings& settings, uint64_t seed) {
  // A sim: LUN is shared out by halves, so the process gets 256 MiB of it: room for the slots that
  // failed writes retire.
  std::string uri = "sim:512m,seed=" + std::to_string(seed);
  // There are about thirty reads to each write, so a short run needs more faults of writes.
  uri += settings.off ? ",corrupt=50"
         : settings.ios <= 100'000
             ? ",read_error=150,write_error=30,torn=50,misdirect=50,corrupt=150"
             : ",read_error=150,write_error=300,torn=150,misdirect=150,corrupt=150";
  tier::start_tier(
      kMemory / 4, 4 * kMemory, uri.c_str(),
      settings.off ? "log_file=/dev/null,test_no_hash_check=yes" : "log_file=/dev/null");
  g_page = lunar_page_bytes();
  g_pages = kMemory / g_page;
  g_locks = std::vector<std::atomic<uint32_t>>(g_pages);
  g_versions.assign(g_pages, 0);
  g_base = tier::new_region(kMemory);
  struct sigaction action{};
  action.sa_sigaction = on_sigbus;
  action.sa_flags = SA_SIGINFO;
  sigaction(SIGBUS, &action, nullptr);
}

}  // namespace

TEST_CASE("sim-faults") {
  const Settings settings = {option("--ios", 1'000'000), has_option("--protection-off")};
  const uint64_t ios = settings.ios;
  const bool off = settings.off;
  const uint64_t seed = tier::run_seed();
  set_up(settings, seed);

  auto& device = static_cast<lunar::SimDevice&>(*lunar::pager_state().luns.devices[0]);
  auto& counted = device.counters();
  auto done = [&] { return counted.reads.load() + counted.writes.load(); };
  auto all_kinds = [&] {
    return counted.read_errors > 0 && counted.write_errors > 0 && counted.torn > 0 &&
           counted.misdirected > 0 && counted.corrupted > 0;
  };
  // A short run may have to go on until each kind of fault has come.
  auto enough = [&] { return done() >= ios && (off || all_kinds() || done() >= 8 * ios); };
  double start = tier::seconds();
  {
    tier::Watchdog watchdog(g_operations, 60);
    lunar_test::in_parallel(kThreads, [&](unsigned t) {
      Worker worker(seed, t, off);
      while (!enough() && !(off && g_wrong.load() > 0)) {
        for (int i = 0; i < 64; ++i) worker.operate();
        g_operations.fetch_add(64);
      }
    });
    for (uint64_t page = 0; page < g_pages; ++page, ++g_operations)
      check_result(page, look(page), off, "the last look");
  }
  printf(
      "%lu I/Os in %.1f s: read errors %lu, write errors %lu, torn %lu, misdirected %lu, "
      "corrupted %lu; lost pages reported by SIGBUS %lu, lunar_touch %lu, system calls %lu; "
      "silently wrong %lu\n",
      done(), tier::seconds() - start, counted.read_errors.load(), counted.write_errors.load(),
      counted.torn.load(), counted.misdirected.load(), counted.corrupted.load(), g_by_signal.load(),
      g_by_touch.load(), g_by_syscall.load(), g_wrong.load());
  if (off) {
    REQUIRE(g_wrong.load() > 0,
            "without the hash check nothing wrong was seen: this test proves nothing");
    return;
  }
  REQUIRE(all_kinds(), "not every kind of fault has come");
  REQUIRE(g_by_signal + g_by_touch + g_by_syscall > 0, "nothing was reported");
  REQUIRE(tier::validate(), "the page table does not add up");
}
