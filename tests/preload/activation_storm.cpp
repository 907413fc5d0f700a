// SPDX-License-Identifier: Apache-2.0
// `activation_storm THREADS SEED`: threads write, check, discard, move, protect and unmap memory of
// their own, with and without huge pages, and fork, while the process grows from plain to tiered
// memory. Every page is checked against a model that plain arrays keep.
//
// Idea: each thread owns a few maps; version 0 of a page means zeros, others a stamp at both ends.
// The main thread grows the heap beyond the budget meanwhile. Prints "sound", or what was wrong.
#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "tests/support/cases.h"
#include "tests/support/seed.h"

namespace {

using tier::mix;

constexpr size_t kPage = 4096, kMapPages = 1280;  // 5 MiB: two huge pages and what is around them
constexpr unsigned kMaps = 2;

uint64_t g_seed = 1;
std::atomic<bool> g_stop{false};
std::atomic<uint64_t> g_done{0};

struct Map {
  char* base = nullptr;
  size_t pages = 0;
  uint64_t id = 0;
  std::vector<uint32_t> version;

  uint64_t stamp(size_t page) const {
    return version[page] == 0 ? 0 : mix(id * 1000003 + page * 64 + version[page]);
  }
  uint64_t* word(size_t page, bool last) const {
    return reinterpret_cast<uint64_t*>(base + page * kPage + (last ? kPage - 8 : 0));
  }
  void make(uint64_t new_id, bool huge) {
    id = new_id;
    pages = kMapPages;
    void* at =
        mmap(nullptr, pages * kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    REQUIRE(at != MAP_FAILED);
    base = static_cast<char*>(at);
    if (huge) (void)madvise(base, pages * kPage, MADV_HUGEPAGE);
    version.assign(pages, 0);
  }
  void write(size_t page, uint32_t v) {
    version[page] = v;
    *word(page, false) = *word(page, true) = stamp(page);
  }
  void check(size_t page, const char* when) const {
    for (const bool last : {false, true})
      REQUIRE(*word(page, last) == stamp(page), "%s: %lx, not %lx", when, *word(page, last),
              stamp(page));
  }
  void check_all(const char* when) const {
    for (size_t page = 0; page < pages; ++page) check(page, when);
  }
};

struct Worker {
  uint64_t state;
  uint64_t ids = 0;
  Map maps[kMaps];

  explicit Worker(uint64_t seed) : state(mix(seed + 77)) {
    ids = seed << 32;
    for (unsigned i = 0; i < kMaps; ++i) maps[i].make(++ids, i == 0);
  }
  uint64_t below(uint64_t n) { return mix(state += 0x9e3779b97f4a7c15) % n; }

  void step() {
    Map& map = maps[below(kMaps)];
    const size_t page = below(map.pages),
                 count = 1 + below(map.pages - page > 700 ? 700 : map.pages - page);
    char* at = map.base + page * kPage;
    switch (below(16)) {
      case 0:
      case 1:
        REQUIRE(madvise(at, count * kPage, MADV_DONTNEED) == 0);
        for (size_t i = page; i < page + count; ++i) map.version[i] = 0;
        break;
      case 2: {
        REQUIRE(mprotect(at, count * kPage, PROT_READ) == 0);
        for (size_t i = page; i < page + count; i += 7) map.check(i, "read-only");
        REQUIRE(mprotect(at, count * kPage, PROT_READ | PROT_WRITE) == 0, "mprotect back");
        break;
      }
      case 3: {
        const size_t more = map.pages < 2 * kMapPages ? map.pages + 1 + below(300) : kMapPages;
        void* moved = mremap(map.base, map.pages * kPage, more * kPage, MREMAP_MAYMOVE);
        // the kernel does not move across pieces of different advice
        if (moved == MAP_FAILED && errno == EFAULT) break;
        REQUIRE(moved != MAP_FAILED);
        map.base = static_cast<char*>(moved);
        map.version.resize(more, 0);
        map.pages = more;
        break;
      }
      case 4:
        if (below(4) != 0) break;
        map.check_all("before munmap");
        REQUIRE(munmap(map.base, map.pages * kPage) == 0);
        map.make(++ids, below(2) == 0);
        break;
      case 5:
        (void)madvise(at, count * kPage, below(2) == 0 ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
        break;
      case 6:
      case 7:
      case 8:
        for (size_t i = page; i < page + count; i += 1 + below(5)) map.check(i, "in passing");
        break;
      default:
        for (size_t i = page; i < page + count && i < page + 200; ++i)
          map.write(i, 1 + static_cast<uint32_t>(below(1u << 30)));
    }
    g_done.fetch_add(1, std::memory_order_relaxed);
  }

  void fork_and_check() {
    const pid_t child = fork();
    if (child < 0) return;  // the tree is full: allowed
    if (child == 0) {
      for (Map& map : maps) {
        map.check_all("in a child");
        for (size_t page = 0; page < map.pages; page += 3) map.write(page, 7);
        map.check_all("in a child, after its writes");
      }
      _exit(0);
    }
    int status = 0;
    for (Map& map : maps) map.write(below(map.pages), 5);
    REQUIRE(waitpid(child, &status, 0) == child && status == 0, "status %x",
            static_cast<unsigned>(status));
    for (Map& map : maps) map.check_all("after a fork");
  }

  void run() {
    for (uint64_t i = 0; !g_stop.load(std::memory_order_relaxed); ++i) {
      step();
      if (i % 400 == 399) fork_and_check();
    }
    for (Map& map : maps) map.check_all("at the end");
  }
};

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) return 2;
  const unsigned threads = static_cast<unsigned>(strtoul(argv[1], nullptr, 10));
  g_seed = strtoull(argv[2], nullptr, 10);
  std::vector<std::unique_ptr<Worker>> workers;
  for (unsigned t = 0; t < threads; ++t)
    workers.push_back(std::make_unique<Worker>(g_seed * 64 + t));
  std::vector<std::thread> running;
  for (auto& worker : workers) running.emplace_back([&worker] { worker->run(); });
  std::vector<uint64_t*> blocks;
  constexpr size_t kBlock = 128 << 10;
  uint64_t random = mix(g_seed);
  for (size_t i = 0; i < 400; ++i) {  // 50 MiB
    auto* block = static_cast<uint64_t*>(malloc(kBlock));
    REQUIRE(block != nullptr);
    for (size_t w = 0; w < kBlock / 8; w += 64) block[w] = mix(i * 4096 + w);
    blocks.push_back(block);
    timespec pause{0, static_cast<long>((random = mix(random)) % 6000000)};
    nanosleep(&pause, nullptr);
  }
  g_stop.store(true);
  for (auto& thread : running) thread.join();
  for (size_t i = 0; i < blocks.size(); ++i)
    for (size_t w = 0; w < kBlock / 8; w += 64)
      REQUIRE(blocks[i][w] == mix(i * 4096 + w), "block %zu holds %lx", i, blocks[i][w]);
  printf("sound: %llu operations\n", static_cast<unsigned long long>(g_done.load()));
  return 0;
}
