// SPDX-License-Identifier: Apache-2.0
// hygiene: the pager's threads do not touch the program's locks, heap, signals and descriptors.
//
// Idea. This program replaces malloc and friends, and pthread_mutex_lock, by versions that end it
// when a thread of the pager calls them while pages are faulted, evicted and read ahead. The pager
// counts faults of its service threads; only the evictor may have one. The threads block all
// signals, hold no descriptor of the program, and continue when the program closes all of its own.
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>

#include <string>
#include <vector>

#include "base/host_guard.h"
#include "pager/state/state.h"
#include "sys/fatal.h"
#include "sys/thread.h"
#include "tests/fault/versioned_pages.h"
#include "tests/support/test_tier.h"

extern "C" {
void* __libc_malloc(size_t);
void* __libc_calloc(size_t, size_t);
void* __libc_realloc(void*, size_t);
void* __libc_memalign(size_t, size_t);
void __libc_free(void*);
}

namespace {

std::atomic<bool> g_trap{false};

void trap(const char* what) {
  if (!g_trap.load(std::memory_order_relaxed) || !lunar::sys::in_service_thread()) return;
  // pthread_create of a forked child's threads: announced, and before any fault
  if (lunar::host_guard_depth > 1) return;
  g_trap.store(false);
  // (its own descriptor 2 is closed)
  lunar::fatal("thread %d of the pager called %s", lunar::sys::thread_id(), what);
}

}  // namespace

extern "C" {
void* malloc(size_t bytes) { return trap("malloc"), __libc_malloc(bytes); }
void* calloc(size_t count, size_t bytes) { return trap("calloc"), __libc_calloc(count, bytes); }
void* realloc(void* pointer, size_t bytes) {
  return trap("realloc"), __libc_realloc(pointer, bytes);
}
void* memalign(size_t alignment, size_t bytes) {
  return trap("memalign"), __libc_memalign(alignment, bytes);
}
void* aligned_alloc(size_t alignment, size_t bytes) {
  return trap("aligned_alloc"), __libc_memalign(alignment, bytes);
}
int posix_memalign(void** out, size_t alignment, size_t bytes) {
  trap("posix_memalign");
  *out = __libc_memalign(alignment, bytes);
  return *out != nullptr ? 0 : ENOMEM;
}
void free(void* pointer) {
  trap("free");
  __libc_free(pointer);
}
int pthread_mutex_lock(pthread_mutex_t* mutex) {
  static auto* const real =
      reinterpret_cast<int (*)(pthread_mutex_t*)>(dlsym(RTLD_NEXT, "pthread_mutex_lock"));
  constexpr int kRobust = 16;  // only the pager's shared account has such ones
  if ((mutex->__data.__kind & kRobust) == 0) trap("pthread_mutex_lock");
  return real(mutex);
}
}

namespace {

constexpr uint64_t kMemory = 96 * tier::kMega, kDram = 24 * tier::kMega;

std::string text_of(const std::string& path) {
  std::string text(8192, 0);
  int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  ssize_t n = fd < 0 ? 0 : read(fd, text.data(), text.size());
  if (fd >= 0) close(fd);
  text.resize(n > 0 ? static_cast<size_t>(n) : 0);
  return text;
}

struct Service {
  std::string name, status;
  int tid;
};

std::vector<Service> service_threads() {
  std::vector<Service> found;
  DIR* directory = opendir("/proc/self/task");
  while (dirent* entry = readdir(directory)) {
    if (entry->d_name[0] == '.') continue;
    std::string base = std::string("/proc/self/task/") + entry->d_name,
                name = text_of(base + "/comm");
    if (name.compare(0, 6, "lunar-") == 0)
      found.push_back(
          {name.substr(0, name.find('\n')), text_of(base + "/status"), atoi(entry->d_name)});
  }
  closedir(directory);
  return found;
}

void check_signals() {
  unsigned housekeeping = 0, evictors = 0, handlers = 0;
  for (const Service& thread : service_threads()) {
    size_t at = thread.status.find("SigBlk:");
    REQUIRE(at != std::string::npos, "no SigBlk of %s", thread.name.c_str());
    uint64_t blocked = strtoull(thread.status.c_str() + at + 7, nullptr, 16);
    // the last two are libc's own
    uint64_t never = 1ull << (SIGKILL - 1) | 1ull << (SIGSTOP - 1) | 1ull << 31 | 1ull << 32;
    REQUIRE((blocked | never) == ~0ull, "%s blocks %lx only", thread.name.c_str(), blocked);
    housekeeping += thread.name == "lunar-housekeep";
    evictors += thread.name == "lunar-evict";
    handlers += thread.name.compare(0, 11, "lunar-fault") == 0;
  }
  REQUIRE(housekeeping == 1 && evictors == 1 && handlers >= 1,
          "threads: %u housekeeping threads, %u evictors, %u handlers", housekeeping, evictors,
          handlers);
}

struct Memory : tier::VersionedPages {
  Memory() : VersionedPages(kMemory) { write_all(1); }
  void write_next(uint64_t i) { write(i, versions[i] + 1); }
};

// Calls every function of the pager, from two threads.
void exercise(Memory& m, uint64_t seed, int rounds) {
  lunar_test::in_parallel(2u, [&](unsigned t) {
    tier::Random random(seed * 2 + t);
    for (int k = 0; k < rounds; ++k) {
      uint64_t i = random.below(m.count / 2) * 2 + t;
      if (random.one_in(3))
        m.write_next(i);
      else
        m.check(i, "between");
      if (random.one_in(50)) {
        REQUIRE(lunar_discard(m.at(i), m.page) == 0);
        m.versions[i] = 0;
      }
      lunar_range range{m.at(random.below(m.count)), m.page};
      if (random.one_in(100)) REQUIRE(lunar_prefetch(&range, 1) == 0);
      if (random.one_in(300)) REQUIRE(lunar_evict(range.address, range.bytes) >= 0);
    }
  });
  m.check_all("in sequence");  // with read-ahead
}

}  // namespace

TEST_CASE("hygiene") {
  uint64_t seed = tier::run_seed();
  int ends[2];
  REQUIRE(pipe2(ends, O_CLOEXEC) == 0);  // before the tier: its threads must not hold it
  tier::start_tier(kDram, 4 * kMemory);
  Memory m;
  std::atomic<uint64_t> none{0};

  g_trap.store(true);
  exercise(m, seed, 8000);
  check_signals();
  usleep(200000);  // a few rounds of the housekeeping thread
  uint64_t own_faults = lunar::counters().service_faults;
  REQUIRE(own_faults == 0, "%lu faults by the pager's own threads", own_faults);

  close(ends[1]);
  char byte;
  REQUIRE(read(ends[0], &byte, 1) == 0,
          "the pipe has no end: a service thread holds the program's descriptor");

  // The threads that serve a forked child keep the same rules.
  pid_t child = fork();
  if (child == 0) {
    exercise(m, seed + 1, 2000);
    check_signals();
    _exit(0);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child && status == 0, "the child ended with %x", status);

  // The program closes all descriptors that it finds. Faults are still answered.
  for (int fd = 3; fd < 4096; ++fd) close(fd);
  tier::Random random(seed);
  for (int k = 0; k < 5000; ++k) {
    uint64_t i = random.below(m.count);
    if (random.one_in(3))
      m.write_next(i);
    else
      m.check(i, "between");
  }
  m.check_all("at the end");
  g_trap.store(false);
}
