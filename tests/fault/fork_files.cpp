// SPDX-License-Identifier: Apache-2.0
// fork_files: a multi-threaded program forks while its open FILEs lie in tiered memory.
//
// Idea. libc itself walks all open FILEs in the child, before any handler of ours runs. malloc of
// this program serves one thread from lunar_malloc while it opens FILEs; their objects and buffers
// are evicted, other threads keep DRAM short and the FILE locks busy, and then it forks. The child
// must come up, find what was buffered, and print.
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>

#include <vector>

#include "base/host_guard.h"
#include "tests/support/test_tier.h"

extern "C" {
void* __libc_malloc(size_t);
void* __libc_calloc(size_t, size_t);
void* __libc_realloc(void*, size_t);
void* __libc_memalign(size_t, size_t);
void __libc_free(void*);
}

namespace {

constinit thread_local int t_tiered = 0;  // > 0: malloc is lunar_malloc

bool tiered_now() { return __builtin_expect(t_tiered > 0, 0) && !lunar::HostGuard::active(); }

}  // namespace

extern "C" {
void* malloc(size_t bytes) {
  if (!tiered_now()) return __libc_malloc(bytes);
  t_tiered = -t_tiered;
  void* pointer = lunar_malloc(bytes);
  t_tiered = -t_tiered;
  return pointer;
}
void free(void* pointer) {
  if (pointer != nullptr && lunar_is_tiered(pointer))
    lunar_free(pointer);
  else
    __libc_free(pointer);
}
void* calloc(size_t count, size_t bytes) { return __libc_calloc(count, bytes); }
void* realloc(void* pointer, size_t bytes) { return __libc_realloc(pointer, bytes); }
void* memalign(size_t alignment, size_t bytes) { return __libc_memalign(alignment, bytes); }
void* aligned_alloc(size_t alignment, size_t bytes) { return __libc_memalign(alignment, bytes); }
int posix_memalign(void** out, size_t alignment, size_t bytes) {
  *out = __libc_memalign(alignment, bytes);
  return *out != nullptr ? 0 : ENOMEM;
}
}

namespace {

FILE* open_tiered(const char* text) {
  char path[] = "/var/tmp/lunar-test-XXXXXX";
  int fd = mkstemp(path);
  REQUIRE(fd >= 0);
  unlink(path);
  t_tiered = 1;
  FILE* file = fdopen(fd, "w+");
  REQUIRE(file != nullptr);
  setvbuf(file, static_cast<char*>(malloc(65536)), _IOFBF, 65536);
  fputs(text, file);
  t_tiered = 0;
  REQUIRE(lunar_is_tiered(file), "the FILE is not in tiered memory: this test proves nothing");
  return file;
}

void check_file(FILE* file, const char* expected, const char* who) {
  char line[64] = {};
  REQUIRE(fseek(file, 0, SEEK_SET) == 0, "%s: fseek: %s", who, strerror(errno));
  REQUIRE(fgets(line, sizeof line, file) != nullptr && strcmp(line, expected) == 0,
          "%s reads '%s' of '%s'", who, line, expected);
}

}  // namespace

TEST_CASE("fork-files") {
  constexpr unsigned kFiles = 64, kForks = 12, kBusy = 3;
  constexpr uint64_t kMemory = 96 * tier::kMega;
  uint64_t seed = tier::run_seed();
  tier::start_tier(24 * tier::kMega, 1536 * tier::kMega);
  size_t page = lunar_page_bytes();
  char* base = tier::new_region(kMemory);
  std::atomic<uint64_t> rounds{0};
  std::atomic<bool> stop{false};
  tier::Watchdog watchdog(rounds, 60);
  auto busy = lunar_test::start_threads(kBusy, [&](unsigned t) {
    tier::Random random(seed * 8 + t);
    FILE* own = open_tiered("busy\n");
    while (!stop.load()) {
      for (int k = 0; k < 50; ++k)
        *reinterpret_cast<volatile uint64_t*>(base + random.below(kMemory / page) * page) =
            random.next();
      fprintf(own, "%lu\n", random.next());
    }
    fclose(own);
  });
  std::vector<FILE*> files;
  char text[64];
  for (unsigned i = 0; i < kFiles; ++i) {
    snprintf(text, sizeof text, "file %u\n", i);
    files.push_back(open_tiered(text));
  }
  for (unsigned round = 0; round < kForks; ++round, ++rounds) {
    usleep(50000);  // the FILEs grow cold
    for (FILE* file : files) REQUIRE(lunar_evict(file, sizeof(FILE)) >= 0);
    pid_t child = fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      unsigned i = round % kFiles;
      snprintf(text, sizeof text, "file %u\n", i);
      check_file(files[i], text, "child");
      fprintf(files[i], "and more");
      REQUIRE(fflush(files[i]) == 0);
      _exit(0);
    }
    int status = 0;
    REQUIRE(waitpid(child, &status, 0) == child && status == 0, "child %u ended with %x", round,
            status);
  }
  stop.store(true);
  busy.clear();
  for (unsigned i = kForks; i < kFiles; ++i) {
    snprintf(text, sizeof text, "file %u\n", i);
    check_file(files[i], text, "parent");
    fclose(files[i]);
  }
  REQUIRE(tier::validate());
}
