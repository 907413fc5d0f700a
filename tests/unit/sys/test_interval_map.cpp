// SPDX-License-Identifier: Apache-2.0
// IntervalMap against a model that marks every unit of a small space, and against std::map in a
// large one; gaps are compared with a linear search. One thread. The seed is printed.
#include <map>
#include <random>
#include <vector>

#include "sys/interval_map.h"
#include "tests/catch.h"
#include "tests/support/seed.h"

using namespace lunar;

namespace {

struct Item {
  uint64_t begin = 0, end = 0;
  int value = 0;
  bool alike(const Item& other) const { return value == other.value; }
};
using Map = IntervalMap<Item>;
using DeepMap = IntervalMap<Item, 192>;  // few entries a node, many levels

template <class Map>
void must_reserve(Map& map) {
  REQUIRE(map.reserve() == 0);
}

template <class Map>
std::vector<Item> items_of(const Map& map) {
  std::vector<Item> out;
  for (const Item* item = map.find(0); item != nullptr; item = map.find(item->end))
    out.push_back(*item);
  return out;
}

// A value for each unit; 0: free.
struct Model {
  std::vector<int> units;
  explicit Model(size_t count) : units(count) {}
  void set(uint64_t begin, uint64_t end, int value) {
    for (uint64_t at = begin; at < end; ++at) units[at] = value;
  }
  std::vector<Item> items() const {
    std::vector<Item> out;
    for (uint64_t at = 0, stop; at < units.size(); at = stop) {
      for (stop = at + 1; stop < units.size() && units[stop] == units[at]; ++stop) {}
      if (units[at] != 0) out.push_back({at, stop, units[at]});
    }
    return out;
  }
  bool find_free(uint64_t from, uint64_t limit, uint64_t bytes, uint64_t* place) const {
    uint64_t run = 0;
    for (uint64_t at = from; at < limit; ++at) {
      run = units[at] == 0 ? run + 1 : 0;
      if (run < bytes) continue;
      *place = at + 1 - bytes;
      return true;
    }
    return false;
  }
};

template <class Map>
void check_equal(const Map& map, const Model& model) {
  const std::vector<Item> have = items_of(map), want = model.items();
  REQUIRE(map.validate());
  REQUIRE(map.count() == want.size());
  REQUIRE(have.size() == want.size());
  for (size_t i = 0; i < want.size(); ++i) {
    REQUIRE(have[i].begin == want[i].begin);
    REQUIRE(have[i].end == want[i].end);
    REQUIRE(have[i].value == want[i].value);
  }
}

}  // namespace

TEST_CASE("an interval map that is empty is free everywhere") {
  Map map;
  uint64_t place = 0;
  const Item* item = nullptr;
  CHECK(map.count() == 0);
  CHECK(map.find(0) == nullptr);
  CHECK(map.is_free(0, 100));
  CHECK(map.piece(3, 7, &item) == 7);
  CHECK(item == nullptr);
  CHECK(map.find_free(5, 10, 5, &place));
  CHECK(place == 5);
  CHECK_FALSE(map.find_free(5, 10, 6, &place));
  CHECK(map.validate());
}

TEST_CASE("intervals that touch and are alike are one") {
  Map map;
  must_reserve(map);
  map.set(10, 20, {0, 0, 1});
  map.set(30, 40, {0, 0, 1});
  CHECK(map.count() == 2);
  must_reserve(map);
  map.set(20, 30, {0, 0, 1});
  CHECK(map.count() == 1);
  must_reserve(map);
  map.set(15, 25, {0, 0, 2});
  CHECK(map.count() == 3);
  const Item* item = nullptr;
  CHECK(map.piece(12, 100, &item) == 15);
  CHECK(item->value == 1);
  CHECK(map.piece(20, 22, &item) == 22);
  CHECK(item->value == 2);
  must_reserve(map);
  map.erase(0, 100);
  CHECK(map.count() == 0);
  CHECK(map.validate());
}

TEMPLATE_TEST_CASE("an interval map is what its model is after any changes", "", Map, DeepMap) {
  constexpr uint64_t kUnits = 6000;
  std::mt19937_64 random(tier::run_seed());
  for (int round = 0; round < 6; ++round) {
    TestType map;
    Model model(kUnits);
    const uint64_t longest = round % 3 == 0 ? 3 : round % 3 == 1 ? 40 : 1500;
    for (int step = 0; step < 8000; ++step) {
      const uint64_t begin = random() % kUnits,
                     most = kUnits - begin < longest ? kUnits - begin : longest;
      const uint64_t end = begin + 1 + random() % most;
      must_reserve(map);
      if (const bool sets = random() % 5 < (step % 4000 < 2000 ? 4u : 1u); sets) {
        const int value = 1 + static_cast<int>(random() % 3);
        map.set(begin, end, {0, 0, value});
        model.set(begin, end, value);
      } else {
        map.erase(begin, end);
        model.set(begin, end, 0);
      }
      const uint64_t from = random() % kUnits, limit = from + random() % (kUnits - from),
                     bytes = 1 + random() % longest;
      uint64_t have = 0, want = 0;
      const bool found = map.find_free(from, limit, bytes, &have);
      REQUIRE(found == model.find_free(from, limit, bytes, &want));
      if (found) REQUIRE(have == want);
      if (step % 200 == 0) check_equal(map, model);
    }
    check_equal(map, model);
  }
}

TEST_CASE("maps of equal size are placed first-fit among 100,000 others, and memory is reused") {
  constexpr uint64_t kSize = 80, kLimit = uint64_t{1} << 40;
  std::mt19937_64 random(tier::run_seed());
  Map map;
  std::map<uint64_t, uint64_t> model;  // begin -> end
  std::vector<uint64_t> live;
  const auto add = [&] {
    uint64_t place = 0;
    REQUIRE(map.find_free(0, kLimit, kSize, &place));
    must_reserve(map);
    map.set(place, place + kSize, {0, 0, 1});
    must_reserve(map);
    map.set(place, place + 1, {0, 0, 2});  // its guard
    REQUIRE(model.emplace(place, place + kSize).second);
    live.push_back(place);
  };
  for (int i = 0; i < 100000; ++i) add();
  CHECK(map.count() == 200000);
  const size_t before = arena_bytes();
  for (int i = 0; i < 100000; ++i) {
    const size_t at = random() % live.size();
    must_reserve(map);
    map.erase(live[at], live[at] + kSize);
    model.erase(live[at]);
    live[at] = live.back();
    live.pop_back();
    if (i % 3 != 0) add();
  }
  CHECK(arena_bytes() <= before + (size_t{2} << 20));
  REQUIRE(map.validate());
  REQUIRE(map.count() == 2 * model.size());
  for (const auto& [begin, end] : model) {
    const Item* item = map.find(begin + 1);
    REQUIRE(item->begin == begin + 1);
    REQUIRE(item->end == end);
  }
}
