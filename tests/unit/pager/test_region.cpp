// SPDX-License-Identifier: Apache-2.0
// Regions: addresses and pages, and the table of regions: look-ups against a model, and during
// writes. LUNAR_SEED=N replays a run.
#include <errno.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <random>
#include <vector>

#include "pager/page/region.h"
#include "sys/mem.h"
#include "tests/catch.h"
#include "tests/support/meanwhile.h"
#include "tests/support/seed.h"

using namespace lunar;

namespace {

// Address space that nothing touches: only its numbers count.
char* place(uint64_t page) {
  return reinterpret_cast<char*>(uint64_t{1} << 40) + page * sys::page_bytes();
}

std::unique_ptr<Region> region_at(uint64_t page, uint64_t pages) {
  auto region = std::make_unique<Region>();
  region->base = place(page);
  region->pages = pages;
  return region;
}

}  // namespace

TEST_CASE("a region holds its first and last byte, and neither neighbour") {
  const auto region = region_at(10, 3);
  const size_t page = sys::page_bytes();
  CHECK_FALSE(region->holds(region->base - 1));
  CHECK(region->holds(region->base));
  CHECK(region->holds(region->base + 3 * page - 1));
  CHECK_FALSE(region->holds(region->base + 3 * page));
  for (uint64_t i = 0; i < 3; ++i) {
    CHECK(region->page_of(region->address_of(PageIndex(i))) == PageIndex(i));
    CHECK(region->page_of(region->address_of(PageIndex(i)) + page - 1) == PageIndex(i));
  }
}

TEST_CASE("patterns of access: the advice of a page's group, and none before there is any") {
  const auto region = region_at(0, 200);
  std::atomic<Access> patterns[4] = {};
  region->patterns = patterns;
  CHECK(region->pattern_count() == 4);  // the last one is not full
  patterns[1].store(Access::kRandom);
  CHECK(region->access_of(PageIndex(64)) == Access::kNormal);
  region->has_patterns.store(true);
  CHECK(region->access_of(PageIndex(63)) == Access::kNormal);
  CHECK(region->access_of(PageIndex(64)) == Access::kRandom);
  CHECK(region->access_of(PageIndex(127)) == Access::kRandom);
  CHECK(region->access_of(PageIndex(128)) == Access::kNormal);
}

TEST_CASE("an empty table finds nothing; adjacent regions are told apart") {
  auto table = std::make_unique<RegionTable>();
  CHECK(table->find(place(0)) == nullptr);
  const auto low = region_at(10, 5), high = region_at(15, 5);
  REQUIRE(table->insert(high.get()) == 0);  // in the wrong order
  REQUIRE(table->insert(low.get()) == 0);
  CHECK(table->find(place(10) - 1) == nullptr);
  CHECK(table->find(place(10)) == low.get());
  CHECK(table->find(place(15) - 1) == low.get());
  CHECK(table->find(place(15)) == high.get());
  CHECK(table->find(place(20) - 1) == high.get());
  CHECK(table->find(place(20)) == nullptr);
  CHECK(table->find(nullptr) == nullptr);
  table->remove(low.get());
  CHECK(table->find(place(12)) == nullptr);
  CHECK(table->find(place(17)) == high.get());
  table->remove(low.get());  // not there any more: nothing else goes
  CHECK(table->find(place(17)) == high.get());
  CHECK(table->count.load() == 1);
}

TEST_CASE("a full table refuses one more, and takes it when there is room again") {
  auto table = std::make_unique<RegionTable>();
  std::vector<std::unique_ptr<Region>> regions;
  for (uint64_t i = 0; i < kRegionsMax; ++i) {
    regions.push_back(region_at(i * 4, 2));
    REQUIRE(table->insert(regions.back().get()) == 0);
  }
  const auto more = region_at(kRegionsMax * 4, 2);
  CHECK(table->insert(more.get()) == -EMFILE);
  CHECK(table->find(more->base) == nullptr);
  for (uint64_t i = 0; i < kRegionsMax; ++i) {
    REQUIRE(table->find(place(i * 4 + 1)) == regions[i].get());
    REQUIRE(table->find(place(i * 4 + 2)) == nullptr);
  }
  table->remove(regions[kRegionsMax / 2].get());
  CHECK(table->insert(more.get()) == 0);
  CHECK(table->find(more->base) == more.get());
  CHECK(table->find(place(kRegionsMax / 2 * 4)) == nullptr);
}

TEST_CASE("property: look-ups agree with a model") {
  std::mt19937_64 random(tier::run_seed());
  auto table = std::make_unique<RegionTable>();
  std::map<uint64_t, std::unique_ptr<Region>> model;  // by first page
  constexpr uint64_t kPages = 4000;
  for (int step = 0; step < 20'000; ++step) {
    const uint64_t page = random() % kPages;
    auto after = model.upper_bound(page);
    Region* holder = nullptr;
    if (after != model.begin()) {
      const auto before = std::prev(after);
      if (page < before->first + before->second->pages) holder = before->second.get();
    }
    REQUIRE(table->find(place(page)) == holder);
    REQUIRE(table->find(place(page) + random() % sys::page_bytes()) == holder);
    if (holder && random() % 2) {
      table->remove(holder);
      model.erase(static_cast<uint64_t>(holder->base - place(0)) / sys::page_bytes());
    } else if (!holder && model.size() < 300) {
      const uint64_t room = (after == model.end() ? kPages + 50 : after->first) - page,
                     pages = 1 + random() % (room < 30 ? room : 30);
      auto& made = model[page] = region_at(page, pages);
      REQUIRE(table->insert(made.get()) == 0);
    }
    REQUIRE(table->count.load() == model.size());
    REQUIRE(table->sequence.load() % 2 == 0);
  }
}

TEST_CASE("a look-up during writes finds what stays, and never what is elsewhere") {
  auto table = std::make_unique<RegionTable>();
  std::vector<std::unique_ptr<Region>> stay, come_and_go;
  for (uint64_t i = 0; i < 64; ++i) {
    stay.push_back(region_at(i * 10, 4));
    come_and_go.push_back(region_at(i * 10 + 5, 4));
    REQUIRE(table->insert(stay.back().get()) == 0);
  }
  std::atomic<bool> stop{false};
  std::atomic<uint64_t> looks{0}, lost{0}, wrong{0};
  auto readers = lunar_test::start_threads(2u, [&](unsigned t) {
    std::mt19937_64 random(tier::run_seed() + t);
    while (!stop.load(std::memory_order_relaxed)) {
      const uint64_t i = random() % 64;
      if (table->find(place(i * 10 + 3)) != stay[i].get()) ++lost;
      Region* other = table->find(place(i * 10 + 6));
      if (other != nullptr && other != come_and_go[i].get()) ++wrong;
      if (table->find(place(i * 10 + 9)) != nullptr) ++wrong;  // belongs to none
      ++looks;
    }
  });
  uint64_t changes = 0;
  while (changes < 3000 || looks.load() < 20'000) {
    for (auto& region : come_and_go) REQUIRE(table->insert(region.get()) == 0);
    for (auto& region : come_and_go) table->remove(region.get());
    changes += 128;
  }
  stop.store(true);
  readers.clear();
  CHECK(lost == 0);
  CHECK(wrong == 0);
}
