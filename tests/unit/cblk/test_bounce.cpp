// SPDX-License-Identifier: Apache-2.0
// Bounce buffers of more than 64 KiB lie in huge pages of their own, however many threads take
// them, and use a bounded amount of memory.
#include "tests/catch.h"

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "base/units.h"
#include "cblk/bounce.h"
#include "tests/support/meanwhile.h"

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

// From /proc/self/statm: mapped, and in memory.
struct Used {
  Used() {
    std::ifstream("/proc/self/statm") >> mapped >> resident;
    mapped *= 4 * kKiB;
    resident *= 4 * kKiB;
  }
  size_t mapped = 0, resident = 0;
};

struct Pool : BouncePool {
  Pool() { open(64); }
  ~Pool() { close(); }
};

}  // namespace

TEST_CASE("a large buffer is one piece of memory for the device") {
  Pool pool;
  for (const size_t bytes : {68 * kKiB, 512 * kKiB, 2 * kMiB, 16 * kMiB}) {
    Bounce bounce;
    REQUIRE(pool.take(bytes, &bounce) == 0);
    const auto at = reinterpret_cast<uintptr_t>(bounce.memory);
    if (bytes <= 2 * kMiB) REQUIRE(at / (2 * kMiB) == (at + bytes - 1) / (2 * kMiB));
    REQUIRE(takes_huge_pages(bounce.memory));
    memset(bounce.memory, 1, bytes);
    pool.give(&bounce);
    REQUIRE(bounce.memory == nullptr);
  }
  for (const size_t bytes :
       {4 * kKiB, 8 * kKiB, 64 * kKiB}) {  // most chunks need no more than that
    Bounce few;
    REQUIRE(pool.take(bytes, &few) == 0);
    REQUIRE(!takes_huge_pages(few.memory));
    pool.give(&few);
  }
}

#ifndef __SANITIZE_THREAD__  // which keeps memory of its own for what is used
TEST_CASE("many chunks use no more memory than their I/O and 16 MiB") {
  for (const size_t bytes : {8 * kKiB, 68 * kKiB}) {
    std::vector<Pool> pools(200);
    const size_t before = Used().resident;
    unsigned huge = 0;
    for (Pool& pool : pools) {
      Bounce bounce;
      REQUIRE(pool.take(bytes, &bounce) == 0);
      memset(bounce.memory, 1, bytes);
      huge += takes_huge_pages(bounce.memory);
      pool.give(&bounce);
    }
    REQUIRE(huge == (bytes > 64 * kKiB ? 8 : 0));
    const size_t now = Used().resident;
    REQUIRE(now < before + 200 * bytes + 20 * kMiB);
  }
  Pool next;  // the others gave theirs back
  Bounce bounce;
  REQUIRE(next.take(kMiB, &bounce) == 0);
  REQUIRE(takes_huge_pages(bounce.memory));
  next.give(&bounce);
}
#endif

TEST_CASE("a large buffer needs no more address space than its own") {
  const pid_t child = fork();
  if (child == 0) {
    Pool pool;
    const rlim_t most = Used().mapped + 4 * kMiB + 512 * kKiB;
    const rlimit limit = {most, most};
    Bounce bounce;
    _exit(setrlimit(RLIMIT_AS, &limit) == 0 && pool.take(4 * kMiB, &bounce) == 0 ? 0 : 1);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  REQUIRE(status == 0);
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
  lunar_test::in_parallel(4, [&](int t) {
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
  REQUIRE(wrong == 0);
}
