// SPDX-License-Identifier: Apache-2.0
// Bounce buffers of several blocks lie in huge pages, each by itself, however many threads take them.
#include "tests/catch.h"

#include <atomic>
#include <cstring>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "base/units.h"
#include "cblk/bounce.h"

using namespace lunar;
using namespace lunar::cblk;

namespace {

// Whether the mapping that holds `address` may have huge pages (hg of VmFlags).
bool takes_huge_pages(const void* address) {
  std::ifstream maps("/proc/self/smaps");
  const auto wanted = reinterpret_cast<uintptr_t>(address);
  bool inside = false;
  for (std::string line; std::getline(maps, line);) {
    unsigned long from = 0, to = 0;
    if (sscanf(line.c_str(), "%lx-%lx ", &from, &to) == 2) inside = from <= wanted && wanted < to;
    if (inside && line.rfind("VmFlags:", 0) == 0) return line.find(" hg") != std::string::npos;
  }
  return false;
}

struct Pool : BouncePool {
  Pool() { open(64); }
  ~Pool() { close(); }
};

}  // namespace

TEST_CASE("a buffer of several blocks is one piece of memory for the device") {
  Pool pool;
  for (const size_t bytes : {8 * kKiB, 64 * kKiB, 68 * kKiB, 512 * kKiB, 2 * kMiB, 16 * kMiB}) {
    Bounce bounce;
    REQUIRE(pool.take(bytes, &bounce) == 0);
    const auto at = reinterpret_cast<uintptr_t>(bounce.memory);
    if (bytes <= 2 * kMiB) REQUIRE(at / (2 * kMiB) == (at + bytes - 1) / (2 * kMiB));
    REQUIRE(takes_huge_pages(bounce.memory));
    memset(bounce.memory, 1, bytes);
    pool.give(&bounce);
    REQUIRE(bounce.memory == nullptr);
  }
  Bounce block;
  REQUIRE(pool.take(4 * kKiB, &block) == 0);
  REQUIRE(!takes_huge_pages(block.memory));  // most chunks need no more than that
  pool.give(&block);
}

TEST_CASE("more than the slabs hold gets mappings, and what comes back is used again") {
  Pool pool;
  std::vector<Bounce> all(40);
  for (int round = 0; round < 2; ++round) {
    for (size_t i = 0; i < all.size(); ++i) {
      REQUIRE(pool.take(512 * kKiB, &all[i]) == 0);
      memset(all[i].memory, static_cast<int>(i), 512 * kKiB);
    }
    for (size_t i = 0; i < all.size(); ++i) {
      REQUIRE(all[i].memory[0] == static_cast<char>(i));
      REQUIRE(all[i].memory[512 * kKiB - 1] == static_cast<char>(i));
      pool.give(&all[i]);
    }
  }
  Bounce again;
  REQUIRE(pool.take(2 * kMiB, &again) == 0);  // a whole slab is free
  REQUIRE(takes_huge_pages(again.memory));
  pool.give(&again);
}

TEST_CASE("no two buffers overlap") {
  Pool pool;
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      for (size_t i = 0; i < 2000; ++i) {
        const size_t bytes = (1 + (i * 7 + static_cast<size_t>(t)) % 40) * 4 * kKiB;
        Bounce bounce;
        if (pool.take(bytes, &bounce) < 0) {
          ++wrong;
          continue;
        }
        memset(bounce.memory, t + 1, bytes);
        for (size_t at = 0; at < bytes; at += 4 * kKiB) wrong += bounce.memory[at] != t + 1;
        pool.give(&bounce);
      }
    });
  for (std::thread& thread : threads) thread.join();
  REQUIRE(wrong == 0);
}
