// SPDX-License-Identifier: Apache-2.0
// The arena: alignment, zeroing, no overlap under threads, usable after fork, private mappings that
// do or do not fork.
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <utility>
#include <vector>

#include "sys/arena.h"
#include "tests/catch.h"
#include "tests/support/meanwhile.h"

using namespace lunar;

namespace {
bool all_zero(const void* memory, size_t bytes) {
  const char* p = static_cast<const char*>(memory);
  return std::all_of(p, p + bytes, [](char c) { return c == 0; });
}
}  // namespace

TEST_CASE("arena_alloc gives zeroed memory at the alignment asked for") {
  for (size_t align : {size_t{1}, size_t{8}, size_t{64}, size_t{128}, size_t{1024}, size_t{4096},
                       size_t{1} << 20}) {
    for (size_t bytes : {size_t{0}, size_t{1}, size_t{63}, size_t{64}, size_t{1000}, size_t{40000},
                         size_t{300000}, size_t{3} << 20}) {
      void* memory = arena_alloc(bytes, align);
      REQUIRE(memory != nullptr);
      CHECK(reinterpret_cast<uintptr_t>(memory) % align == 0);
      CHECK(all_zero(memory, bytes));
      memset(memory, 0xff, bytes);
    }
  }
}

TEST_CASE("arena_alloc refuses nonsense") {
  CHECK(arena_alloc(1, 0) == nullptr);
  CHECK(arena_alloc(1, 3) == nullptr);
  CHECK(arena_alloc(SIZE_MAX, 64) == nullptr);
}

TEST_CASE("arena objects of concurrent threads never overlap") {
  constexpr int kThreads = 4, kObjects = 5000;
  std::vector<std::vector<std::pair<uintptr_t, size_t>>> found(kThreads);
  lunar_test::in_parallel(kThreads, [&](int t) {
    for (int i = 0; i < kObjects; ++i) {
      size_t bytes = static_cast<size_t>(1 + (i * 37 + t * 101) % 900);
      found[static_cast<size_t>(t)].emplace_back(reinterpret_cast<uintptr_t>(arena_alloc(bytes)),
                                                 bytes);
    }
  });
  std::vector<std::pair<uintptr_t, size_t>> all;
  for (auto& part : found) all.insert(all.end(), part.begin(), part.end());
  std::sort(all.begin(), all.end());
  CHECK(all.front().first != 0);
  bool overlap = false;
  for (size_t i = 1; i < all.size(); ++i)
    overlap |= all[i - 1].first + all[i - 1].second > all[i].first;
  CHECK_FALSE(overlap);
}

TEST_CASE("arena_new constructs") {
  struct Pair {
    int a, b;
    Pair(int x, int y) : a(x), b(y) {}
  };
  Pair* pair = arena_new<Pair>(3, 4);
  REQUIRE(pair != nullptr);
  CHECK(pair->a + pair->b == 7);
}

TEST_CASE("private mappings are counted, and forked as their policy says") {
  size_t before = arena_bytes();
  char* inherit = static_cast<char*>(map_private(1 << 20, ForkPolicy::kInherit));
  char* dont = static_cast<char*>(map_private(1 << 20, ForkPolicy::kDontFork));
  REQUIRE(inherit != nullptr);
  REQUIRE(dont != nullptr);
  CHECK(arena_bytes() == before + (2u << 20));
  inherit[0] = 'i';
  dont[0] = 'd';
  pid_t child = fork();
  if (child == 0) {
    unsigned char present;
    bool gone = mincore(dont, 4096, &present) != 0;  // ENOMEM: nothing is mapped there
    bool usable = arena_alloc(100) != nullptr;
    _exit(inherit[0] == 'i' && gone && usable ? 0 : 1);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(status == 0);
  unmap_private(inherit, 1 << 20);
  unmap_private(dont, 1 << 20);
  CHECK(arena_bytes() == before);
  CHECK(map_private(0, ForkPolicy::kInherit) == nullptr);
}

#ifndef __SANITIZE_THREAD__  // which needs mappings of its own
TEST_CASE("a huge mapping leaves nothing behind where there can be no mapping more") {
  size_t most = 0;
  std::ifstream("/proc/sys/vm/max_map_count") >> most;
  if (most > 200'000) LUNAR_SKIP("memory", "vm.max_map_count is too large to be used up");
  const pid_t child = fork();
  if (child == 0) {
    constexpr size_t kPage = 4096;
    const size_t bytes = 2 * most * kPage;
    void* many =
        mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    void* neighbour = map_private(2 * kHugeBytes, ForkPolicy::kWipe);
    if (many == MAP_FAILED || !neighbour) _exit(2);
    for (size_t at = 0; at < bytes; at += 2 * kPage)
      if (mprotect(static_cast<char*>(many) + at, kPage, PROT_READ) != 0) break;
    const size_t before = arena_bytes();
    void* huge = map_private_huge(kHugeBytes, ForkPolicy::kWipe);
    const size_t with = arena_bytes();
    if (huge) *static_cast<char*>(huge) = 1;
    _exit(with == before + (huge ? kHugeBytes : 0) ? 0 : 1);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(status == 0);
}
#endif
