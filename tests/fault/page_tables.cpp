// SPDX-License-Identifier: Apache-2.0
// The DRAM that page tables take from the budget, and its limit.
//
// page_tables CASE:
//   sparse         one page in each of 2,048 chunks of 2 MiB: at most 1 MiB of tables
//   given-back     new addresses are touched and discarded, again and again: the tables do not grow
//   all-used       512 MiB in a budget of 16 MiB are written and read again (all-used-full: 3 GiB)
//   refused        memory whose tables cannot fit is refused, with a line; the rest works
//   forked         a child of sparse memory reads it, changes it, and discards it
//   forked-early   a fork before activation, while another thread reads the table
//   shrunk         a budget that the tables of committed memory may fill is refused
//   shrunk-early   a budget changed before activation is the account's at once
//   reused         faults, discards, prefetches and evictions of neighbours in the same leaves:
//                  every page has its last content
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "lunar/lunar.h"
#include "pager/state/state.h"
#include "pager/table/table_promise.h"
#include "pager/table/tables.h"
#include "sys/mem.h"
#include "tests/support/stderr_of.h"
#include "tests/support/test_tier.h"

namespace {

using tier::kMega;
using tier::new_region;

constexpr uint64_t kChunk = 2 * kMega, kGiga = 1024 * kMega;
constexpr uint64_t kKept = 256 * 1024;  // empty tables that stay until there are more of them

uint64_t table_bytes() {
  return static_cast<uint64_t>(lunar::table_pages()) * lunar::sys::page_bytes();
}

// A pager that becomes active with the first commit that its budget has no room for.
void create_inactive(uint64_t dram_bytes) {
  lunar::Options options;
  lunar::ErrorText why;
  REQUIRE(lunar::options_load(&options, environ, &why) == 0, "options: %s", why.text);
  options.dram = dram_bytes;
  options.size = 2 * kGiga;
  if (lunar::pager_create(options, &why) < 0) SKIP("userfaultfd", why.text);
}

TEST_CASE("sparse") {
  constexpr uint64_t kChunks = 2048;
  tier::start_tier(64 * kMega, kChunks * kChunk + kGiga);
  char* base = new_region(kChunks * kChunk);
  const uint64_t before = table_bytes(), page = lunar_page_bytes();
  for (uint64_t i = 0; i < kChunks; ++i) tier::stamp_write(base + i * kChunk, page, i, 1);
  REQUIRE(table_bytes() - before <= kMega, "the tables take %lu KiB",
          (table_bytes() - before) / 1024);
  for (uint64_t i = 0; i < kChunks; ++i)
    REQUIRE(tier::stamp_holds(base + i * kChunk, page, i, 1), "page %lu", i);
  REQUIRE(tier::validate());
}

TEST_CASE("given-back") {
  constexpr uint64_t kBytes = 4 * kGiga, kPart = 64 * kMega;
  tier::start_tier(32 * kMega, kBytes + kGiga);
  char* base = new_region(kBytes);
  const uint64_t page = lunar_page_bytes();
  uint64_t most = 0;
  for (uint64_t at = 0; at < kBytes; at += kPart) {
    for (uint64_t i = 0; i < kPart; i += 8 * page) tier::stamp_write(base + at + i, 8, at + i, 1);
    REQUIRE(lunar_discard(base + at, kPart) == 0);
    if (at >= kBytes / 4 && most == 0) most = table_bytes() + 512 * 1024;
    REQUIRE(most == 0 || table_bytes() <= most, "the tables have grown to %lu KiB after %lu MiB",
            table_bytes() / 1024, at / kMega);
  }
  for (unsigned i = 0; i < tier::scaled(500) && table_bytes() > kMega; ++i) usleep(10000);
  REQUIRE(table_bytes() <= kMega, "the tables of nothing take %lu KiB", table_bytes() / 1024);
  REQUIRE(base[0] == 0 && base[kBytes - 1] == 0, "what was given up is there");
  REQUIRE(tier::validate());
}

void all_used(uint64_t bytes, uint64_t dram) {
  tier::start_tier(dram, bytes + kGiga);
  char* base = new_region(bytes);
  const uint64_t page = lunar_page_bytes();
  for (const bool writes : {true, false})
    for (uint64_t at = 0; at < bytes; at += page)
      if (writes)
        tier::stamp_write(base + at, 64, at, 1);
      else
        REQUIRE(tier::stamp_holds(base + at, 64, at, 1), "at %lu MiB", at / kMega);
  REQUIRE(tier::stats().dram_used_bytes <= dram, "above the budget");
}

TEST_CASE("refused") {
  int status = 0;
  const std::string text = lunar_test::stderr_of(
      [] {
        tier::start_tier(16 * kMega, 8 * kGiga, nullptr, "log=warning");
        char* first = new_region(64 * kMega);
        REQUIRE(lunar_region_create(7 * kGiga) == nullptr && errno == ENOMEM,
                "7 GiB in a budget of 16 MiB");
        const uint64_t page = lunar_page_bytes();
        char* second = new_region(64 * kMega);  // nothing of the refused one is left
        for (char* base : {first, second})
          for (uint64_t at = 0; at < 64 * kMega; at += page) base[at] = 1;
        std::vector<void*> more;
        while (void* one = lunar_region_create(256 * kMega)) more.push_back(one);
        REQUIRE(more.size() >= 10, "%zu times 256 MiB", more.size());
        REQUIRE(lunar_region_destroy(more.back(), 256 * kMega) == 0);
        REQUIRE(lunar_region_create(256 * kMega) != nullptr,
                "what was given back cannot be had again");
        for (uint64_t at = 0; at < 64 * kMega; at += page) static_cast<char*>(more[0])[at] = 1;
      },
      &status);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 77) _exit(77);
  REQUIRE(status == 0, "ended with %x: %s", status, text.c_str());
}

TEST_CASE("forked") {
  constexpr uint64_t kChunks = 512;
  tier::start_tier(32 * kMega, 5 * kGiga);
  char* base = new_region(kChunks * kChunk);
  const uint64_t page = lunar_page_bytes();
  for (uint64_t i = 0; i < kChunks; ++i) tier::stamp_write(base + i * kChunk, page, i, 1);
  (void)lunar_evict(base, kChunks / 2 * kChunk);
  for (int generation = 0; generation < 2; ++generation) {
    const pid_t child = fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      const uint64_t before = table_bytes();
      for (uint64_t i = 0; i < kChunks; ++i)
        REQUIRE(tier::stamp_holds(base + i * kChunk, page, i, 1), "in the child: page %lu", i);
      for (uint64_t i = 0; i < kChunks; ++i)
        tier::stamp_write(base + i * kChunk + kMega, page, i, 2);
      for (uint64_t i = 0; i < kChunks; ++i)
        REQUIRE(tier::stamp_holds(base + i * kChunk + kMega, page, i, 2), "of the child: page %lu",
                i);
      REQUIRE(lunar_discard(base, kChunks * kChunk) == 0);
      for (unsigned i = 0; i < tier::scaled(500) && table_bytes() > before + kKept; ++i)
        usleep(10000);
      REQUIRE(table_bytes() <= before + kKept, "the child's tables");
      REQUIRE(base[kMega] == 0, "what the child gave up is there");
      REQUIRE(tier::validate(), "the child's page table");
      _exit(0);
    }
    int status = 0;
    REQUIRE(waitpid(child, &status, 0) == child && status == 0, "the child ended with %x", status);
  }
  for (uint64_t i = 0; i < kChunks; ++i)
    REQUIRE(tier::stamp_holds(base + i * kChunk, page, i, 1), "page %lu", i);
  REQUIRE(tier::validate());
}

TEST_CASE("forked-early") {
  create_inactive(16 * kMega);
  std::atomic<bool> looks{false}, done{false};
  std::jthread looking([&] {
    const lunar::sys::ScopedSignalBlock signals;
    const lunar::TableScope scope;
    looks.store(true);
    while (!done.load()) usleep(1000);
  });
  while (!looks.load()) usleep(1000);
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    constexpr uint64_t kBytes = kGiga;
    lunar::Region* region = nullptr;
    REQUIRE(lunar::region_create(kBytes, lunar::kRegionStrict, &region) == 0 &&
            lunar::region_commit(region, 0, kBytes) == 0 && lunar::pager_active());
    char* base = lunar::region_base(region);
    const uint64_t leaf = lunar::kLeafPages * lunar::sys::page_bytes();
    for (uint64_t round = 0; round < 4; ++round) {
      for (uint64_t at = 0; at < kBytes; at += leaf) base[at] = 1;
      REQUIRE(lunar::pager_discard(base, kBytes, lunar::Discard::kContents) == 0);
    }
    for (unsigned i = 0; i < tier::scaled(500) && table_bytes() > kMega; ++i) usleep(10000);
    REQUIRE(table_bytes() <= kMega, "the child's tables of nothing take %lu KiB",
            table_bytes() / 1024);
    _exit(0);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child && status == 0, "the child ended with %x", status);
  done.store(true);
}

TEST_CASE("shrunk") {
  constexpr uint64_t kBytes = 8 * kGiga;
  tier::start_tier(64 * kMega, kBytes + kGiga);
  char* base = new_region(kBytes);
  const uint64_t leaf = lunar::kLeafPages * lunar_page_bytes();
  REQUIRE(lunar_set_dram(16 * kMega) == -EBUSY,
          "a budget that cannot hold the page tables was taken");
  REQUIRE(tier::stats().dram_budget_bytes == 64 * kMega, "the budget has changed");
  REQUIRE(lunar_set_dram(48 * kMega) == 0, "a budget that holds the page tables was refused");
  for (uint64_t at = 0; at < kBytes; at += leaf) base[at] = 1;  // all tables that there may be
  REQUIRE(lunar_region_destroy(base, kBytes) == 0);
  for (unsigned i = 0; i < tier::scaled(500) && lunar_set_dram(16 * kMega) != 0; ++i) usleep(10000);
  REQUIRE(tier::stats().dram_budget_bytes == 16 * kMega, "what was given back is still promised");
}

// A process that is not active also keeps to the new budget, which the account has. Memory above it
// becomes tiered and leaves DRAM.
TEST_CASE("shrunk-early") {
  constexpr uint64_t kBytes = 96 * kMega;
  create_inactive(256 * kMega);
  const uint64_t page = lunar::sys::page_bytes();
  REQUIRE(lunar::pager_set_dram(192 * kMega) == 0 && !lunar::pager_active());
  REQUIRE(lunar::pager_budget_pages() == 192 * kMega / page, "the account keeps the old budget");
  lunar::Region* region = nullptr;
  REQUIRE(lunar::region_create(kBytes, lunar::kRegionStrict, &region) == 0 &&
          lunar::region_commit(region, 0, kBytes) == 0 && !lunar::pager_active());
  char* base = lunar::region_base(region);
  for (uint64_t i = 0; i < kBytes / page; ++i) tier::stamp_write(base + i * page, page, i, 1);
  REQUIRE(lunar::pager_set_dram(48 * kMega) == 0 && lunar::pager_active());
  lunar_stats now{};
  lunar::pager_stats(&now);
  REQUIRE(now.resident_bytes <= 48 * kMega, "%lu MiB are resident", now.resident_bytes / kMega);
  for (uint64_t i = 0; i < kBytes / page; ++i)
    REQUIRE(tier::stamp_holds(base + i * page, page, i, 1), "page %lu", i);
}

// Pages are distributed over the threads, so that a leaf's pages have several owners.
TEST_CASE("reused") {
  constexpr unsigned kThreads = 4;
  constexpr uint64_t kPages = 4096, kSteps = 12'000;
  const uint64_t seed = tier::run_seed();
  tier::start_tier(16 * kMega, 128 * kMega);
  const uint64_t page = lunar_page_bytes();
  char* base = new_region(kPages * page);
  std::vector<uint32_t> version(kPages);
  const auto run = [&](unsigned self) {
    tier::Random random(seed + self);
    for (uint64_t step = 0; step < kSteps; ++step) {
      const uint64_t group = random.below(kPages / 64) * 64,
                     p = group + random.below(64 / kThreads) * kThreads + self;
      char* at = base + p * page;
      switch (random.below(6)) {
        case 0:
        case 1:
          tier::stamp_write(at, page, p, ++version[p]);
          break;
        case 2:
          for (uint64_t q = group + self; q < group + 64; q += kThreads) {
            REQUIRE(lunar_discard(base + q * page, page) == 0);
            version[q] = 0;
          }
          break;
        case 3: {
          const lunar_range range{base + group * page, 64 * page};
          REQUIRE(lunar_prefetch(&range, 1) == 0);
          break;
        }
        case 4:
          if (random.one_in(16)) (void)lunar_evict(base + group * page, 64 * page);
          break;
        default:
          if (version[p] == 0)
            REQUIRE(*reinterpret_cast<volatile uint64_t*>(at) == 0, "page %lu is not empty", p);
          else
            REQUIRE(tier::stamp_holds(at, page, p, version[p]), "page %lu has not version %u", p,
                    version[p]);
      }
    }
  };
  lunar_test::in_parallel(kThreads, run);
  REQUIRE(tier::validate());
  REQUIRE(lunar_discard(base, kPages * page) == 0);
  REQUIRE(tier::validate());
}

}  // namespace

TEST_CASE("all-used") { all_used(512 * kMega, 16 * kMega); }
TEST_CASE("all-used-full") { all_used(3 * kGiga, 16 * kMega); }
