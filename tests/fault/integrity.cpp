// SPDX-License-Identifier: Apache-2.0
// Facts that the pager's promises depend on.
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <string>
#include <thread>
#include <vector>

#include "pager/state/state.h"
#include "tests/support/stderr_of.h"
#include "tests/support/test_tier.h"

#ifndef PR_SET_MEMORY_MERGE  // in no header of Debian 12
#define PR_SET_MEMORY_MERGE 67
#endif

namespace {

using tier::kMega;
using tier::new_region;

std::atomic<uint64_t> g_progress{0};

// ---- hash_key -----------------------------------------------------------------------------------

uint64_t hash_of_a_known_page() {
  std::vector<char> page(lunar_page_bytes());
  tier::stamp_write(page.data(), page.size(), 1, 1);
  return lunar::page_hash(page.data());
}

template <class Body>
uint64_t answer_of_child(Body body) {
  int ends[2];
  REQUIRE(pipe(ends) == 0);
  pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    uint64_t answer = body();
    _exit(write(ends[1], &answer, sizeof answer) == sizeof answer ? 0 : 1);
  }
  close(ends[1]);
  uint64_t answer = 0;
  int status = 0;
  REQUIRE(read(ends[0], &answer, sizeof answer) == sizeof answer, "the child gave no answer");
  close(ends[0]);
  waitpid(child, &status, 0);
  REQUIRE(status == 0, "child: status %x", static_cast<unsigned>(status));
  return answer;
}

// The hash of a page's content differs between processes, and is the parent's in a forked child.
TEST_CASE("hash-key") {
  auto with_a_tier = [] {
    tier::start_tier(32 * kMega, 64 * kMega);
    uint64_t own = hash_of_a_known_page();
    REQUIRE(answer_of_child(hash_of_a_known_page) == own, "a forked child hashes in another way");
    return own;
  };
  uint64_t first = answer_of_child(with_a_tier), second = answer_of_child(with_a_tier);
  REQUIRE(first != second, "two processes hash the same content to %lx: it can be foreseen", first);
}

// ---- evict_at_once ------------------------------------------------------------------------------

// lunar_evict drops a page that a handler has installed and not yet released.
TEST_CASE("evict-at-once") {
  constexpr uint64_t kPages = 64;
  tier::start_tier(64 * kMega, 256 * kMega, nullptr, "handlers=1,test_installed_delay_us=100000");
  const size_t page = lunar_page_bytes();
  char* base = new_region(kPages * page);
  for (uint64_t i = 0; i < kPages; ++i) tier::stamp_write(base + i * page, page, i, 1);
  REQUIRE(lunar_evict(base, kPages * page) == kPages);
  for (uint64_t i = 0; i < kPages; i += 16) {
    // the page is there, and the handler still holds it
    REQUIRE(tier::stamp_holds(base + i * page, page, i, 1), "page %lu is wrong", i);
    const int64_t evicted = lunar_evict(base, kPages * page);
    REQUIRE(evicted == 1, "page %lu: %lld pages were evicted, not the one that was resident", i,
            static_cast<long long>(evicted));
  }
}

// ---- evicted_beside_borders ---------------------------------------------------------------------

// Read-only and inaccessible pages leave, and the pages between them as well, whether pages are
// gathered or moved.
TEST_CASE("evicted-beside-borders") {
  constexpr uint64_t kPages = 256;
  tier::start_tier(64 * kMega, 256 * kMega, nullptr, "handlers=1");
  const size_t page = lunar_page_bytes();
  char* base = new_region(kPages * page);
  for (uint64_t i = 0; i < kPages; ++i) tier::stamp_write(base + i * page, page, i, 1);
  const auto protect = [&](int prot) {
    for (uint64_t i = 8; i < kPages; i += 16)
      REQUIRE(mprotect(base + i * page, page, i % 32 == 8 ? PROT_READ : prot) == 0);
  };
  for (const bool by_move : {false, true}) {
    if (by_move) lunar_note_pinning();
    protect(PROT_NONE);
    const int64_t evicted = lunar_evict(base, kPages * page);
    REQUIRE(evicted == kPages, "%lld of %lu pages were evicted", static_cast<long long>(evicted),
            kPages);
    protect(PROT_READ);
    for (uint64_t i = 0; i < kPages; ++i)
      REQUIRE(tier::stamp_holds(base + i * page, page, i, 1), "page %lu is wrong", i);
  }
}

// ---- dropped_by_raw_call ------------------------------------------------------------------------

// Pages that a raw call has dropped leave the budget, whether pages are gathered or moved.
TEST_CASE("dropped-by-raw-call") {
  constexpr uint64_t kPages = 256;
  tier::start_tier(64 * kMega, 256 * kMega, nullptr, "handlers=1");
  const size_t page = lunar_page_bytes();
  char* base = new_region(kPages * page);
  for (const bool by_move : {false, true}) {
    if (by_move) lunar_note_pinning();
    for (uint64_t i = 0; i < kPages; ++i) tier::stamp_write(base + i * page, page, i, 1);
    REQUIRE(madvise(base, kPages * page, MADV_DONTNEED) == 0);
    const int64_t evicted = lunar_evict(base, kPages * page);
    REQUIRE(evicted == kPages, "%lld of %lu pages were evicted", static_cast<long long>(evicted),
            kPages);
    for (uint64_t i = 0; i < kPages; ++i)
      REQUIRE(tier::stamp_holds(base + i * page, page, i, 0), "page %lu is wrong", i);
  }
}

// ---- guard_beside_fault -------------------------------------------------------------------------

thread_local sigjmp_buf t_refused;

// Whether touching it raises SIGSEGV.
bool refuses(volatile char* at) {
  if (sigsetjmp(t_refused, 1) != 0) return true;
  (void)*at;
  return false;
}

// A page that becomes a guard page while a fault on it waits for its handler stays one.
TEST_CASE("guard-beside-fault") {
  tier::start_tier(64 * kMega, 256 * kMega, nullptr, "handlers=1,test_release_delay_us=500000");
  signal(SIGSEGV, [](int) { siglongjmp(t_refused, 1); });
  const size_t page = lunar_page_bytes();
  char* base = new_region(1024 * page);
  char* guarded = base + 512 * page;
  base[0] = 1;  // we have it, while the handler still holds it, and so does not see the next fault
  std::atomic<bool> began{false};
  bool refused = false;
  std::thread other([&] {
    began.store(true);
    refused = refuses(guarded);
  });
  while (!began.load()) usleep(1000);
  usleep(100000);
  const int rc = lunar::pager_guard(guarded, page, true);
  if (rc == -EINVAL) SKIP("guard-pages", "before Linux 6.13");
  REQUIRE(rc == 0, "guard: %s", strerror(-rc));
  other.join();
  REQUIRE(refused, "the thread that waited has passed the guard page");
  REQUIRE(refuses(guarded), "the guard page is gone");
}

// ---- evicted_bytes ------------------------------------------------------------------------------

// lunar_stats counts what is evicted now. That is less than the slots in use, because copies of
// resident pages also have slots.
void evicted_bytes() {
  constexpr uint64_t kBytes = 8 * kMega;
  tier::start_tier(64 * kMega, 256 * kMega);
  size_t page = lunar_page_bytes();
  char* base = new_region(kBytes);
  auto is = [&](uint64_t bytes, const char* when) {
    uint64_t said = tier::stats().evicted_bytes;
    // a page may still be in a handler's hands
    for (int i = 0; said != bytes && i < 100; ++i, said = tier::stats().evicted_bytes)
      usleep(10000);
    REQUIRE(said == bytes, "%s: evicted_bytes %lu, not %lu", when, said, bytes);
  };
  for (uint64_t i = 0; i < kBytes / page; ++i) tier::stamp_write(base + i * page, page, i, 1);
  is(0, "all resident");
  REQUIRE(lunar_evict(base, kBytes) >= 0);
  is(kBytes, "all evicted");
  REQUIRE(lunar_touch(base, kBytes / 2) == 0);
  is(kBytes / 2, "half of it back, clean");  // what came back keeps its slot
  REQUIRE(lunar_discard(base + kBytes / 2, kBytes / 4) == 0);
  is(kBytes / 4, "a quarter discarded");
  REQUIRE(answer_of_child([] { return tier::stats().evicted_bytes; }) == kBytes / 4,
          "a child's figure differs");
  for (uint64_t i = 0; i < kBytes / page; ++i)
    REQUIRE(i >= kBytes / page / 2 && i < kBytes / page / 4 * 3
                ? tier::stamp_holds(base + i * page, page, i, 0)
                : tier::stamp_holds(base + i * page, page, i, 1),
            "page %lu is wrong", i);
  is(0, "all read");
  memset(base, 0, kBytes);
  REQUIRE(lunar_evict(base, kBytes) >= 0);
  is(0, "zeros are kept nowhere");
  REQUIRE(tier::validate());
}

// ---- ksm ----------------------------------------------------------------------------------------

// A setting of ksmd, put back at the end.
class KsmSetting {
 public:
  KsmSetting(const char* name, const char* value)
      : path_(std::string("/sys/kernel/mm/ksm/") + name) {
    FILE* file = fopen(path_.c_str(), "r");
    if (file == nullptr) SKIP("ksm", "this kernel has no /sys/kernel/mm/ksm");
    if (fgets(before_, sizeof before_, file) == nullptr) before_[0] = '\0';
    fclose(file);
    if (!put(value)) SKIP("ksm", "this user may not start ksmd");
  }
  ~KsmSetting() { (void)put(before_); }

 private:
  bool put(const char* value) const {
    FILE* file = fopen(path_.c_str(), "w");
    if (file == nullptr) return false;
    bool good = fputs(value, file) >= 0;
    return fclose(file) == 0 && good;
  }
  std::string path_;
  char before_[32] = {};
};

// KiB of the map at `address` that the kernel has merged.
long merged_kib(const void* address) {
  FILE* file = fopen("/proc/self/smaps", "r");
  REQUIRE(file != nullptr);
  char line[512];
  bool here = false;
  long kib = 0;
  while (fgets(line, sizeof line, file) != nullptr) {
    unsigned long start, end;
    if (sscanf(line, "%lx-%lx ", &start, &end) == 2)
      here = reinterpret_cast<unsigned long>(address) >= start &&
             reinterpret_cast<unsigned long>(address) < end;
    if (here && sscanf(line, "KSM: %ld", &kib) == 1) break;
  }
  fclose(file);
  return kib;
}

long full_scans() {
  long n = 0;
  FILE* file = fopen("/sys/kernel/mm/ksm/full_scans", "r");
  if (file == nullptr || fscanf(file, "%ld", &n) != 1) n = 0;
  if (file != nullptr) fclose(file);
  return n;
}

// Writers count in pages of equal content while these are evicted and ksmd works. Returns how many
// counts were lost.
uint64_t count_beside_ksmd(char* base, uint64_t pages) {
  size_t page = lunar_page_bytes();
  constexpr unsigned kWriters = 2;
  constexpr uint64_t kWindow = 64;
  std::vector<std::atomic<uint64_t>> model(pages * kWriters);
  std::atomic<uint64_t> hand{0};
  std::atomic<bool> stop{false};
  auto word = [&](uint64_t i, unsigned t) {
    return reinterpret_cast<std::atomic<uint64_t>*>(base + i * page) + t * 16;
  };
  std::vector<uint64_t> began;
  for (unsigned t = 0; t < kWriters; ++t) began.push_back(word(0, t)->load());
  auto writers = lunar_test::start_threads(kWriters, [&](unsigned t) {
    tier::Random random(tier::run_seed() + t);
    while (!stop.load(std::memory_order_relaxed)) {
      uint64_t i = hand.load(std::memory_order_relaxed) + random.below(kWindow);
      word(i, t)->fetch_add(1);
      model[i * kWriters + t].fetch_add(1);
    }
  });
  for (uint64_t at = 0; at + kWindow <= pages; at += kWindow, ++g_progress) {
    hand.store(at);
    REQUIRE(lunar_evict(base + at * page, kWindow * page) >= 0);
  }
  stop.store(true);
  writers.clear();
  uint64_t lost = 0;
  for (uint64_t i = 0; i < pages; ++i)
    for (unsigned t = 0; t < kWriters; ++t)
      lost += model[i * kWriters + t].load() - (word(i, t)->load() - began[t]);
  return lost;
}

// An ordinary mapping replaces pages that are being evicted. What is written there then stays.
void map_over_beside_eviction(bool unreadable) {
  tier::start_tier(32 * kMega, 256 * kMega, nullptr, "test_evict_delay_us=300");
  const size_t page = lunar_page_bytes();
  constexpr uint64_t kPages = 64;
  for (uint64_t round = 0; round < 100; ++round, ++g_progress) {
    char* base = new_region(kPages * page);
    for (uint64_t i = 0; i < kPages; ++i) tier::stamp_write(base + i * page, page, i, 1);
    for (uint64_t i = 0; unreadable && i < kPages; i += 2)
      REQUIRE(mprotect(base + i * page, page, PROT_NONE) == 0);
    std::thread evicting([&] { (void)lunar_evict(base, kPages * page); });
    usleep(static_cast<useconds_t>(round % 10 * 100));
    const int rc =
        lunar::region_map_over(lunar::region_find(base), 0, kPages * page,
                               {PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0});
    REQUIRE(rc == 0, "region_map_over: %s", strerror(-rc));
    for (uint64_t i = 0; i < kPages; ++i) tier::stamp_write(base + i * page, page, i, 2);
    evicting.join();
    for (uint64_t i = 0; i < kPages; ++i)
      REQUIRE(tier::stamp_holds(base + i * page, page, i, 2), "round %lu: page %lu lost its write",
              round, i);
  }
}

// A process whose memory the kernel may merge (prctl, as systemd's MemoryKSM= does; later: switched
// on when the tier works) loses no write, because tiered pages are never merged.
void ksm_in_this_process(bool later) {
  constexpr uint64_t kBytes = 8 * kMega;
  if (!later && prctl(PR_SET_MEMORY_MERGE, 1, 0, 0, 0) != 0)
    SKIP("ksm", "the kernel is built without it");
  tier::start_tier(32 * kMega, 256 * kMega, nullptr, "test_evict_delay_us=300");
  size_t page = lunar_page_bytes();
  char* base = new_region(kBytes);
  char* witness = static_cast<char*>(
      mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  REQUIRE(witness != MAP_FAILED);
  for (uint64_t at = 0; at < kBytes; at += page) {
    tier::stamp_write(base + at, page, 1, 1);
    tier::stamp_write(witness + at, page, 1, 1);
  }
  if (later) {
    if (prctl(PR_SET_MEMORY_MERGE, 1, 0, 0, 0) != 0) SKIP("ksm", "no PR_SET_MEMORY_MERGE (6.4)");
    // the pager sees the change at its next batch
    REQUIRE(lunar_evict(base, page) == 1 && base[0] != 0);
  }
  const double end = tier::seconds() + tier::scaled(60);
  while (merged_kib(witness) < static_cast<long>(kBytes / 1024 / 2)) {
    if (tier::seconds() > end) SKIP("ksm", "ksmd has not come to merge anything for a minute");
    usleep(50000);
    ++g_progress;
  }
  // By then, the kernel has looked at every mergeable page twice.
  for (long until = full_scans() + 3; full_scans() < until && tier::seconds() < end; ++g_progress)
    usleep(50000);
  long merged = merged_kib(base);
  uint64_t lost = count_beside_ksmd(base, kBytes / page);
  printf("ksm: %ld KiB of plain memory merged, %ld KiB of the tier; writes lost %lu\n",
         merged_kib(witness), merged, lost);
  fflush(stdout);
  REQUIRE(lost == 0, "writes were lost");
  REQUIRE(merged == 0, "tiered pages were merged");
  REQUIRE(tier::validate());
}

// The settings are restored also if the process with the tier fails.
void ksm(bool later) {
  KsmSetting pages_to_scan("pages_to_scan", "20000"), pause("sleep_millisecs", "1"),
      run("run", "1");
  pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    tier::Watchdog watchdog(g_progress, 70);
    ksm_in_this_process(later);
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 77) _exit(77);
  REQUIRE(status == 0, "the process with the tier ended with status %x",
          static_cast<unsigned>(status));
}

// ---- lost_page ----------------------------------------------------------------------------------

sigjmp_buf g_lost;
void catch_sigbus() {
  struct sigaction action{};
  action.sa_sigaction = [](int, siginfo_t*, void*) { siglongjmp(g_lost, 1); };
  action.sa_flags = SA_SIGINFO;
  sigaction(SIGBUS, &action, nullptr);
}

bool is_lost(volatile char* page, bool store) {
  if (sigsetjmp(g_lost, 1) != 0) return true;
  if (store)
    page[0] = 1;
  else
    (void)page[0];
  return false;
}

// Changes the page's hash, so that the content on the LUN does not match.
void lose(char* page) {
  int64_t evicted = 0;
  for (int i = 0; i < 100 && (evicted = lunar_evict(page, lunar_page_bytes())) == 0; ++i)
    usleep(10000);
  REQUIRE(evicted == 1 ||
          lunar::pager_page_state(page) != static_cast<int>(lunar::PageState::kResident));
  lunar::Region* region = lunar::region_find(page);
  region->table.hash(region->page_of(page).value) ^= 1;
  // Also removes it from its frame, by evicting as many pages as there are frames.
  for (int i = 0;
       lunar::pager_page_state(page) != static_cast<int>(lunar::PageState::kEvicted) && i < 8;
       ++i) {
    static char* others = new_region(8 * kMega);
    for (uint64_t at = 0; at < 8 * kMega; at += lunar_page_bytes())
      tier::stamp_write(others + at, lunar_page_bytes(), at, static_cast<uint64_t>(i) + 2);
    REQUIRE(lunar_evict(others, 8 * kMega) >= 0);
  }
  REQUIRE(lunar::pager_page_state(page) == static_cast<int>(lunar::PageState::kEvicted),
          "the page stays in its frame");
}

void check_neighbours(char* base, uint64_t pages, uint64_t but) {
  for (uint64_t i = 0; i < pages; ++i)
    REQUIRE(i == but || tier::stamp_holds(base + i * lunar_page_bytes(), lunar_page_bytes(), i, 1),
            "page %lu is wrong", i);
}

unsigned lines_with(const std::string& log, const char* words) {
  FILE* file = fopen(log.c_str(), "r");
  REQUIRE(file != nullptr, "%s: %s", log.c_str(), strerror(errno));
  unsigned lines = 0;
  char line[512];
  while (fgets(line, sizeof line, file) != nullptr) lines += strstr(line, words) != nullptr;
  fclose(file);
  return lines;
}

// A page that cannot be read back raises SIGBUS at a touch and gives EFAULT or EHWPOISON in system
// calls, also in children. A discard brings it back as zeros. One line names it, with its slot and
// the reason, however often it is touched. Only that page is lost.
TEST_CASE("lost-page") {
  constexpr uint64_t kPages = 64, kLost = 5, kRounds = 3;
  std::string log = "/var/tmp/lunar-test-XXXXXX";
  const int fd = mkstemp(log.data());
  REQUIRE(fd >= 0 && close(fd) == 0);
  tier::start_tier(16 * kMega, 128 * kMega, nullptr, ("log_file=" + log).c_str());
  size_t page = lunar_page_bytes();
  char* base = new_region(kPages * page);
  char* lost = base + kLost * page;
  catch_sigbus();
  for (uint64_t i = 0; i < kPages; ++i) tier::stamp_write(base + i * page, page, i, 1);
  for (uint64_t round = 0; round < kRounds; ++round, ++g_progress) {
    lose(lost);
    if (round == 0) REQUIRE(lunar_touch(lost, page) == -EIO, "lunar_touch of a page that is lost");
    const uint64_t faults = tier::stats().major_faults;
    REQUIRE(is_lost(lost, false) && is_lost(lost, true), "a lost page can be touched");
    if (round != 0) REQUIRE(tier::stats().major_faults == faults + 1, "a fault counts once a read");
    int ends[2];
    REQUIRE(pipe(ends) == 0);
    REQUIRE(write(ends[1], lost, page) == -1 && (errno == EFAULT || errno == EHWPOISON),
            "write() of a lost page: %s", strerror(errno));
    close(ends[0]);
    close(ends[1]);
    REQUIRE(answer_of_child([&] { return static_cast<uint64_t>(is_lost(lost, false)); }) == 1,
            "a child can touch it");
    check_neighbours(base, kPages, kLost);
    REQUIRE(lunar_discard(lost, page) == 0);
    REQUIRE(!is_lost(lost, false) && tier::stamp_holds(lost, page, kLost, 0),
            "a discarded page is no zeros");
    tier::stamp_write(lost, page, kLost, 1);
    for (int i = 0; i < 100; ++i) {  // its handler may not have released it yet
      REQUIRE(lunar_evict(base, kPages * page) >= 0);
      if (lunar::pager_page_state(lost) != static_cast<int>(lunar::PageState::kResident)) break;
      usleep(10000);
    }
    REQUIRE(lunar::pager_page_state(lost) != static_cast<int>(lunar::PageState::kResident),
            "it is not tiered any more");
    check_neighbours(base, kPages, kPages);
  }
  REQUIRE(tier::stats().poisoned == kRounds, "%lu pages are counted as lost",
          tier::stats().poisoned);
  char line[64];
  snprintf(line, sizeof line, "page %p cannot be read back: slot ", static_cast<void*>(lost));
  const char* why = "content does not match its hash; it is poisoned";
  for (const char* words : {static_cast<const char*>(line), why})
    REQUIRE(lines_with(log, words) == kRounds, "%u lines with `%s`", lines_with(log, words), words);
  unlink(log.c_str());
  REQUIRE(tier::validate());
}

// Neighbours that are read in one command are checked one by one: only the damaged page is lost.
TEST_CASE("lost-page-of-a-run") {
  constexpr uint64_t kPages = 64, kLost = 21;
  tier::start_tier(16 * kMega, 128 * kMega, nullptr, "log_file=/dev/null");
  const size_t page = lunar_page_bytes();
  char* base = new_region(kPages * page);
  char* lost = base + kLost * page;
  catch_sigbus();
  for (uint64_t i = 0; i < kPages; ++i) tier::stamp_write(base + i * page, page, i, 1);
  REQUIRE(lunar_evict(base, kPages * page) == kPages);
  lose(lost);
  const lunar_range range = {base, kPages * page};
  REQUIRE(lunar_prefetch(&range, 1) == -EIO);
  REQUIRE(is_lost(lost, false), "a damaged page of a run was installed");
  check_neighbours(base, kPages, kLost);
  REQUIRE(tier::stats().poisoned == 1);
  REQUIRE(tier::validate());
}

// ---- processes that end -------------------------------------------------------------------------

// The standard error of a child that ends by a FATAL line.
template <class Body>
std::string last_words(Body body) {
  int status = 0;
  const std::string text = lunar_test::stderr_of(body, &status);
  REQUIRE(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT, "status %x: %s",
          static_cast<unsigned>(status), text.c_str());
  return text;
}

// The program itself takes tiered memory away by a raw call while it is evicted and faulted in. The
// line contains `says`.
template <class Call>
void refused(Call call, const char* says) {
  const std::string text = last_words([&call] {
    tier::start_tier(16 * kMega, 256 * kMega, nullptr, "handlers=4");
    const size_t bytes = 4 * kMega, page = lunar_page_bytes();
    char *faulted = new_region(24 * kMega), *base = new_region(bytes);
    memset(faulted, 1, 24 * kMega);
    memset(base, 1, bytes);
    std::vector<std::thread> threads;
    for (unsigned t = 0; t < 4; ++t)
      threads.emplace_back([faulted, page] {
        for (uint64_t at = 0;; at = (at + 37 * page) % (24 * kMega))
          *static_cast<volatile char*>(faulted + at) = 2;
      });
    threads.emplace_back([base, bytes] {
      for (;;) (void)lunar_evict(base, bytes);
    });
    usleep(20000);
    call(base, bytes / 2);
    for (;;) pause();
  });
  REQUIRE(text.find(says) != std::string::npos &&
              text.find("lunar_region_destroy") != std::string::npos,
          "it says: %s", text.c_str());
}

TEST_CASE("raw-call") {
  constexpr int kPrivate = MAP_PRIVATE | MAP_ANONYMOUS;
  refused([](char* at, size_t bytes) { (void)syscall(SYS_munmap, at, bytes); },
          "FATAL: munmap (or mremap to less) of 2048 KiB");
  refused(
      [](char* at, size_t bytes) {
        (void)syscall(SYS_mmap, at, bytes, PROT_READ, kPrivate | MAP_FIXED, -1, 0);
      },
      "FATAL: mmap with MAP_FIXED (or mremap) of 2048 KiB");
  refused([](char* at, size_t bytes) { (void)syscall(SYS_mremap, at, bytes, bytes / 2, 0); },
          "FATAL: munmap (or mremap to less) of 1024 KiB");
  refused(
      [](char* at, size_t bytes) {
        while (syscall(SYS_mremap, at, bytes, bytes, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, nullptr) ==
               -1) {}
      },
      "FATAL: mremap of 2048 KiB");
}

char* g_region = nullptr;

// Memory is moved or unmapped between the pager's step of a fork and the kernel's copy, so the
// child's maps have a hole there, and the parent's event comes too late for the child. (The parent
// has no event here.)
TEST_CASE("hole-in-fork") {
  const std::string text = last_words([] {
    pthread_atfork(  // runs after the pager's
        [] {
          const size_t page = lunar_page_bytes();
          (void)lunar::sys::uffd_unregister(lunar::pager_state().uffd, g_region + page, page);
          (void)syscall(SYS_munmap, g_region + page, page);
        },
        nullptr, nullptr);
    tier::start_tier(16 * kMega, 128 * kMega);
    g_region = new_region(64 * lunar_page_bytes());
    memset(g_region, 1, 64 * lunar_page_bytes());
    REQUIRE(lunar_evict(g_region, 64 * lunar_page_bytes()) >= 0);
    const pid_t child = fork();
    if (child == 0) _exit(g_region[0]);
    int status = 0;
    REQUIRE(waitpid(child, &status, 0) == child && WIFSIGNALED(status), "the child: status %x",
            static_cast<unsigned>(status));
    raise(WTERMSIG(status));
  });
  REQUIRE(text.find("at the same moment") != std::string::npos, "it says: %s", text.c_str());
}

// ---- old_kernel ---------------------------------------------------------------------------------

// With support/old_kernel.c: a kernel before 6.8 is refused in one line.
TEST_CASE("old-kernel") {
  lunar_config config{};
  config.struct_size = sizeof config;
  REQUIRE(lunar_init(&config) == -EOPNOTSUPP, "an old kernel is accepted");
  REQUIRE(strstr(lunar_error(), "Linux 6.8 or newer") != nullptr &&
              strchr(lunar_error(), '\n') == nullptr,
          "it says: %s", lunar_error());
}

}  // namespace

TEST_CASE("evicted-bytes") { evicted_bytes(); }
TEST_CASE("ksm") { ksm(false); }
TEST_CASE("ksm-later") { ksm(true); }
TEST_CASE("map-over-beside-eviction") { map_over_beside_eviction(false); }
TEST_CASE("map-over-unreadable") { map_over_beside_eviction(true); }
