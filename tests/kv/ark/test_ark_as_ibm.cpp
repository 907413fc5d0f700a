// SPDX-License-Identifier: Apache-2.0
// Behaviour that programs for IBM's library, and its own tests, expect: random keys without
// repeats, a flush that empties, sizes that fall, several stores on one LUN. The tests use the
// library's public header only. Threading: one thread, except in cases that say so.
#include <lunar/kv.h>
#include <stdlib.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "ark_support.h"
#include "tests/catch.h"

using namespace ark_test;

namespace {

std::string random_key(const Store& store) {
  char key[64];
  uint64_t length = 0;
  const int rc = ark_random(store.ark, sizeof key, &length, key);
  return rc == 0 ? std::string(key, length) : "(error " + std::to_string(rc) + ")";
}

int del(const Store& store, const std::string& key) {
  int64_t res;
  return ark_del(store.ark, key.size(), data_of(key), &res);
}

uint64_t told(const Store& store, int (*what)(ARK*, uint64_t*)) {
  uint64_t bytes = ~0ull;
  return what(store.ark, &bytes) == 0 ? bytes : ~0ull;
}

void fill(const Store& store, int keys, size_t bytes) {
  int refused = 0;
  const std::string value(bytes, 'v');
  for (int i = 0; i < keys; ++i) refused += store.set(std::to_string(i), value) != 0;
  REQUIRE(refused == 0);
}

// Numbers below `keys` in any order.
std::vector<int> shuffled(int keys) {
  std::vector<int> order(static_cast<size_t>(keys));
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), std::minstd_rand(1));
  return order;
}

}  // namespace

TEST_CASE("ark-as-ibm: random gives each key once before it gives one again") {
  setenv("LUNAR_KV_DRAM", "16m", 1);
  for (const char* place : {"mem:64m", "sim:64m"}) {
    INFO(place);
    const Store store(place);
    REQUIRE(store.status == 0);
    constexpr int kKeys = 4931;
    fill(store, kKeys, 1000);  // on a device most of it is cold
    for (int round = 0; round < 2; ++round) {
      std::set<std::string> seen;
      for (int i = 0; i < kKeys; ++i) seen.insert(random_key(store));
      CHECK(seen.size() == kKeys);
    }
  }
  unsetenv("LUNAR_KV_DRAM");
}

TEST_CASE(
    "ark-as-ibm: random gives no key that is gone, and one that alone is left again and again") {
  const Store store;
  constexpr int kKeys = 500;
  fill(store, kKeys, 10);
  CHECK(random_key(store) != "");  // from here on it is on its way
  for (int i = 0; i < kKeys; ++i)
    if (i != 17) REQUIRE(del(store, std::to_string(i)) == 0);
  for (int i = 0; i < 10; ++i) CHECK(random_key(store) == "17");
  REQUIRE(del(store, "17") == 0);
  CHECK(random_key(store) == "(error " + std::to_string(ENOENT) + ")");
}

TEST_CASE("ark-as-ibm: threads that take random keys and delete them get each key once") {
  const Store store;
  constexpr int kKeys = 4000, kThreads = 4;
  fill(store, kKeys, 10);
  std::vector<int> taken(kThreads);
  lunar_test::in_parallel(kThreads, [&](int t) {
    char key[64];
    uint64_t length = 0;
    int64_t res;
    while (ark_random(store.ark, sizeof key, &length, key) == 0)
      taken[static_cast<size_t>(t)] += ark_del(store.ark, length, key, &res) == 0;
  });
  int all = 0;
  for (const int some : taken) all += some;
  CHECK(all == kKeys);
  CHECK(store.count() == 0);
}

TEST_CASE("ark-as-ibm: ark_flush empties a store that does not persist, and it fills again") {
  setenv("LUNAR_KV_DRAM", "48m", 1);
  for (const char* place : {"mem:64m", "sim:96m", "/var/tmp"}) {
    INFO(place);
    const Store store(place);
    REQUIRE(store.status == 0);
    for (int round = 0; round < 3; ++round) {
      fill(store, 20'000, 1000);
      REQUIRE(store.set("large", std::string(3 << 20, 'l')) == 0);
      CHECK(store.get("17") == std::string(1000, 'v'));
      char key[64];
      int64_t length = 0;
      ARI* iterator = ark_first(store.ark, sizeof key, &length, key);
      CHECK(iterator != nullptr);
      REQUIRE(ark_flush(store.ark) == 0);
      CHECK(store.count() == 0);
      CHECK(told(store, ark_inuse) == 0);
      CHECK(told(store, ark_actual) == 0);
      CHECK(store.get("17") == "(none)");
      CHECK(store.get("large") == "(none)");
      CHECK(random_key(store) == "(error " + std::to_string(ENOENT) + ")");
      CHECK(ark_next(iterator, sizeof key, &length, key) == ENOENT);
      CHECK(ark_next(iterator, sizeof key, &length, key) == EINVAL);
      CHECK(ark_first(store.ark, sizeof key, &length, key) == nullptr);
    }
  }
  unsetenv("LUNAR_KV_DRAM");
}

TEST_CASE("ark-as-ibm: ark_flush may come at any time: threads go on, and a callback may call it") {
  const Store store;
  std::vector<int> wrong(4);
  auto threads = lunar_test::start_threads(size_t{4}, [&](size_t t) {
    for (int i = 0; i < 20'000; ++i) {
      const std::string key = std::to_string(t) + "/" + std::to_string(i % 300),
                        value = std::to_string(i);
      wrong[t] += store.set(key, value) != 0;
      const std::string found = store.get(key);
      wrong[t] +=
          found != value && found != "(none)" && found != "(error)";  // a flush may come between
    }
  });
  int refused = 0;
  for (int i = 0; i < 200; ++i) refused += ark_flush(store.ark) != 0;
  threads.clear();
  for (const int bad : wrong) CHECK(bad == 0);
  CHECK(refused == 0);

  static ARK* ark;
  static int rc;
  ark = store.ark;
  rc = -1;
  Finished done;
  const auto callback = [](int errcode, uint64_t tag, int64_t res) {
    rc = ark_flush(ark);
    Finished::callback(errcode, tag, res);
  };
  REQUIRE(ark_exists_async_cb(store.ark, 1, data_of("k"), callback, done.tag()) == 0);
  done.wait_for(1);
  CHECK(rc == 0);
}

TEST_CASE(
    "ark-as-ibm: what ark_inuse says is what lives, whichever pairs are deleted, to nothing with "
    "the last, also after an open") {
  setenv("LUNAR_KV_DRAM", "96m", 1);
  const File scratch(96 << 20), kept(96 << 20);
  constexpr uint64_t kPersist = ARK_KV_PERSIST_STORE;
  struct Place {
    const char* path;
    uint64_t flags;
  };
  const auto near = [](const Store& store) {
    const uint64_t in_use = told(store, ark_inuse), actual = told(store, ark_actual);
    INFO(in_use << " of " << actual);
    CHECK((in_use >= actual && in_use <= actual * 5 / 4));
  };
  for (const Place& place :
       {Place{"mem:64m", 0}, {"sim:96m", 0}, {scratch.path, 0}, {kept.path, kPersist}}) {
    INFO(place.path);
    {
      const Store store(place.path, 4, 0, 0, place.flags);
      REQUIRE(store.status == 0);
      for (int round = 0; round < 2; ++round) {
        fill(store, 10'000, 4000);
        near(store);
        for (const int i : shuffled(10'000))
          if (i % 10 != 7) REQUIRE(del(store, std::to_string(i)) == 0);
        near(store);
        if (place.flags != 0) break;
        for (int i = 7; i < 10'000; i += 10) REQUIRE(del(store, std::to_string(i)) == 0);
        CHECK((told(store, ark_inuse) == 0 && told(store, ark_actual) == 0));
      }
    }
    if (place.flags == 0) continue;
    const Store store(place.path, 4, 0, 0, ARK_KV_PERSIST_LOAD);
    REQUIRE(store.status == 0);
    CHECK(store.count() == 1000);
    near(store);
  }
  unsetenv("LUNAR_KV_DRAM");
}

#ifndef __SANITIZE_ADDRESS__  // which keeps freed memory for a while
TEST_CASE(
    "ark-as-ibm: a store in memory keeps at most about twice of what lives, whatever was deleted "
    "or replaced") {
  const Store store("mem:256m");
  REQUIRE(store.status == 0);
  constexpr int kKeys = 50'000;
  constexpr uint64_t kLive = uint64_t{kKeys} / 10 * 4064, kMost = kLive * 9 / 4 + (24ull << 20);
  const uint64_t before = resident();
  fill(store, kKeys, 4000);
  REQUIRE(resident() > before + 9 * kLive);
  for (const int i : shuffled(kKeys))  // every segment holds some that stay
    if (i % 10 != 7) REQUIRE(del(store, std::to_string(i)) == 0);
  CHECK(resident() < before + kMost);
  int wrong = 0;
  for (int i = 7; i < kKeys; i += 10)
    wrong += store.get(std::to_string(i)) != std::string(4000, 'v');
  CHECK(wrong == 0);

  fill(store, kKeys, 4000);
  REQUIRE(resident() > before + 9 * kLive);
  for (const int i : shuffled(kKeys))
    if (i % 10 != 7) REQUIRE(store.set(std::to_string(i), "short") == 0);
  CHECK(resident() < before + kMost + kKeys * 64ull * 9 / 4);
}
#endif

TEST_CASE(
    "ark-as-ibm: stores on one LUN share it: each has what it asked for, and grows into what is "
    "free") {
  setenv("LUNAR_KV_DRAM", "16m", 1);
  const File lun(512 << 20);
  const std::string value(4000, 'v');
  struct Small {
    ARK* ark = nullptr;
    ~Small() { (void)ark_delete(ark); }
  };
  {
    std::vector<Small> stores(6);
    for (Small& one : stores) {
      REQUIRE(ark_create_verbose(const_cast<char*>(lun.path), &one.ark, 40 << 20, 4096, 1000, 2, 0,
                                 0, ARK_KV_VIRTUAL_LUN) == 0);
      uint64_t bytes = 0;
      CHECK((ark_allocated(one.ark, &bytes) == 0 && bytes >= 40u << 20 && bytes < 80u << 20));
    }
    int64_t res;
    const auto set = [&](ARK* ark, const std::string& key) {
      return ark_set(ark, key.size(), data_of(key), value.size(), data_of(value), &res);
    };
    for (Small& one : stores)
      for (int i = 0; i < 8000; ++i) REQUIRE(set(one.ark, std::to_string(i)) == 0);
    int most = 8000;  // in the first, which takes all that is left
    while (set(stores[0].ark, std::to_string(most)) == 0) ++most;
    CHECK(most * uint64_t{4000} > 200u << 20);
    for (int i = 0; i < 20'000; ++i)
      REQUIRE(set(stores[1].ark, std::to_string(i % 8000)) == 0);  // by cleaning
    REQUIRE(ark_delete(stores[2].ark) == 0);
    stores[2].ark = nullptr;
    usleep(1'100'000);  // a LUN that was full is not asked again at once
    for (int i = 8000; i < 16'000; ++i) REQUIRE(set(stores[1].ark, std::to_string(i)) == 0);
    REQUIRE(ark_delete(stores[4].ark) == 0);
    stores[4].ark = nullptr;
    usleep(1'100'000);
    const std::string large(20 << 20, 'l');
    CHECK(ark_set(stores[3].ark, 5, data_of("large"), large.size(), data_of(large), &res) == 0);
    std::string found(large.size(), '.');
    CHECK(ark_get(stores[3].ark, 5, data_of("large"), found.size(), found.data(), 0, &res) == 0);
    CHECK((found == large));
    std::string one(4000, '.');
    int wrong = 0;
    for (int i = 0; i < most; ++i) {
      const std::string key = std::to_string(i);
      wrong +=
          ark_get(stores[0].ark, key.size(), data_of(key), one.size(), one.data(), 0, &res) != 0 ||
          one != value;
    }
    CHECK(wrong == 0);
  }
  std::vector<Small> many(20);  // of the size that the original begins with
  for (Small& one : many)
    CHECK(ark_create(const_cast<char*>(lun.path), &one.ark, ARK_KV_VIRTUAL_LUN) == 0);
  unsetenv("LUNAR_KV_DRAM");
}

TEST_CASE(
    "ark-as-ibm: a store in a directory grows beyond its size, unless LUNAR_KV_SIZE limits it") {
  setenv("LUNAR_KV_DRAM", "16m", 1);
  {
    const Store store("/var/tmp");
    REQUIRE(store.status == 0);
    const uint64_t first = told(store, ark_allocated);
    CHECK(first < 64u << 20);
    fill(store, 30'000, 4000);
    CHECK(told(store, ark_allocated) > 120u << 20);
    CHECK(store.get("29999") == std::string(4000, 'v'));
    for (int i = 0; i < 3; ++i) fill(store, 20'000, 4000);
    CHECK(told(store, ark_allocated) < 300u << 20);  // what is dead is cleaned
  }
  setenv("LUNAR_KV_SIZE", "32m", 1);
  const Store store("/var/tmp");
  CHECK(told(store, ark_allocated) == 32u << 20);
  int rc = 0;
  for (int i = 0; i < 20'000 && rc == 0; ++i)
    rc = store.set(std::to_string(i), std::string(4000, 'v'));
  CHECK(rc == ENOSPC);
  unsetenv("LUNAR_KV_SIZE");
  unsetenv("LUNAR_KV_DRAM");
}
