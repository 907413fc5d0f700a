// SPDX-License-Identifier: Apache-2.0
// libarkdb against a std::map, by asynchronous chains that re-enter, with blocking threads and an
// iterator meanwhile.
//
//   ark_model [--path PATH] [--operations N]      LUNAR_SEED=.. replays
//
// Each of 64 chains owns 40 keys and knows what they must hold; its next operation is issued by the
// callback of the one before. Two threads do the same with blocking calls on keys of their own. A
// third iterates: every key that nothing ever deletes must come exactly once each time. At the end
// all values are compared and counted.
#include <arkdb.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/cases.h"
#include "tests/support/seed.h"

namespace {

using lunar_test::option;
using lunar_test::text_option;

constexpr int kChains = 64, kKeys = 40, kThreads = 2, kStaying = 100;

ARK* ark = nullptr;
std::atomic<int64_t> operations_left{0};
std::atomic<int> chains_left{kChains};

struct Actor {
  uint64_t random = 0;
  std::string owner, key, value, buffer;
  std::map<std::string, std::string> model;
  int kind = 0;
  uint64_t offset = 0;
  uint64_t tally = 0;

  uint64_t next() {
    random ^= random << 13, random ^= random >> 7, random ^= random << 17;
    return random;
  }
  // Mostly short values, now and then one that takes segments of its own.
  size_t length() {
    const uint64_t dice = next() % 1000;
    return dice < 5 ? 60'000 + next() % 100'000 : dice < 100 ? next() % 9000 : next() % 300;
  }
  void choose() {
    key = owner + std::to_string(next() % kKeys);
    kind = static_cast<int>(next() % 4);
    if (kind == 0) {
      value.assign(length(), static_cast<char>('a' + next() % 26));
      for (size_t i = 0; i < value.size(); i += 97) value[i] = static_cast<char>(next());
    }
    if (kind == 1) {
      offset = next() % 8 ? 0 : next() % 400;
      buffer.assign(length(), '#');
    }
  }
  void check(int errcode, int64_t res) {
    const auto place = model.find(key);
    const bool there = place != model.end();
    ++tally;
    if (kind == 0) {
      if (errcode != 0 || res != static_cast<int64_t>(value.size()))
        FAIL("set " + key + ": " + std::to_string(errcode));
      model[key] = value;
      return;
    }
    if (errcode != (there ? 0 : ENOENT) ||
        res != (there ? static_cast<int64_t>(place->second.size()) : -1))
      FAIL(key + ", kind " + std::to_string(kind) + ": " + std::to_string(errcode) + ", " +
           std::to_string(res));
    if (kind == 1 && there) {
      const std::string wanted =
          offset < place->second.size() ? place->second.substr(offset, buffer.size()) : "";
      if (buffer != wanted + std::string(buffer.size() - wanted.size(), '#'))
        FAIL("get " + key + ": other bytes");
    }
    if (kind == 2 && there) model.erase(place);
  }
  int issue(void (*callback)(int, uint64_t, int64_t)) {
    const auto tag = reinterpret_cast<uint64_t>(this);
    switch (kind) {
      case 0:
        return ark_set_async_cb(ark, key.size(), key.data(), value.size(), value.data(), callback,
                                tag);
      case 1:
        return ark_get_async_cb(ark, key.size(), key.data(), buffer.size(), buffer.data(), offset,
                                callback, tag);
      case 2:
        return ark_del_async_cb(ark, key.size(), key.data(), callback, tag);
      default:
        return ark_exists_async_cb(ark, key.size(), key.data(), callback, tag);
    }
  }
  void carry_out() {
    int64_t res = -2;
    int rc = 0;
    switch (kind) {
      case 0:
        rc = ark_set(ark, key.size(), key.data(), value.size(), value.data(), &res);
        break;
      case 1:
        rc = ark_get(ark, key.size(), key.data(), buffer.size(), buffer.data(), offset, &res);
        break;
      case 2:
        rc = ark_del(ark, key.size(), key.data(), &res);
        break;
      default:
        rc = ark_exists(ark, key.size(), key.data(), &res);
        break;
    }
    check(rc, res);
  }
};

void came_back(int errcode, uint64_t dt, int64_t res) {
  auto* actor = reinterpret_cast<Actor*>(dt);
  actor->check(errcode, res);
  if (operations_left.fetch_sub(1) <= 0) {
    --chains_left;
    return;
  }
  actor->choose();
  if (const int rc = actor->issue(came_back); rc != 0)
    FAIL("a callback's operation was refused: " + std::to_string(rc));
}

std::string staying(int i) { return "staying " + std::to_string(i); }

void iterate() {
  std::vector<int> seen(kStaying);
  const auto note = [&](const char* key, uint64_t length) {
    int number;
    if (sscanf(std::string(key, length).c_str(), "staying %d", &number) == 1)
      ++seen[static_cast<size_t>(number)];
  };
  char buffer[1000];
  int64_t length = 0, keys = 0;
  ARI* iterator = ark_first(ark, sizeof buffer, &length, buffer);
  if (!iterator) FAIL("ark_first: " + std::to_string(errno));
  note(buffer, static_cast<uint64_t>(length));
  int rc;
  while ((rc = ark_nextN(iterator, sizeof buffer, buffer, &keys)) == 0) {
    auto* one = reinterpret_cast<keye_t*>(buffer);
    for (int64_t i = 0; i < keys; ++i, one = BMP_KEYE(one))
      note(reinterpret_cast<const char*>(one->p), one->len);
  }
  if (rc != ENOENT) FAIL("ark_nextN: " + std::to_string(rc));
  for (const int times : seen) {
    if (times != 1) FAIL("a key that stays came " + std::to_string(times) + " times");
  }
}

}  // namespace

TEST_CASE("ark-model") {
  const char* path = text_option("--path", "mem:128m");
  operations_left = static_cast<int64_t>(option("--operations", 300000));
  const uint64_t seed = tier::run_seed();
  setenv("LUNAR_KV_DRAM", "160m", 1);
  setenv("LUNAR_KV_SIZE", "512m", 1);
  if (const int rc =
          ark_create_verbose(const_cast<char*>(path), &ark, 0, 4096, 1000, 4, 48, kChains, 0);
      rc != 0)
    FAIL("ark_create: " + std::to_string(rc));
  char value[] = "v";
  int64_t res = 0;
  for (int i = 0; i < kStaying; ++i) {
    std::string key = staying(i);
    REQUIRE(ark_set(ark, key.size(), key.data(), 1, value, &res) == 0);
  }
  std::vector<Actor> actors(kChains + kThreads);
  for (size_t i = 0; i < actors.size(); ++i) {
    actors[i].random = (seed + i) * 0x9e3779b97f4a7c15 | 1;
    actors[i].owner = "owner " + std::to_string(i) + " ";
    actors[i].choose();
  }
  std::atomic<bool> done{false};
  std::vector<std::thread> threads;
  for (size_t i = kChains; i < actors.size(); ++i) {
    threads.emplace_back([&, i] {
      for (; !done; actors[i].choose()) actors[i].carry_out();
    });
  }
  threads.emplace_back([&] {
    while (!done) iterate();
  });
  for (int i = 0; i < kChains; ++i) {
    int rc;
    while ((rc = actors[static_cast<size_t>(i)].issue(came_back)) == EAGAIN) usleep(100);
    if (rc != 0) FAIL("issue: " + std::to_string(rc));
  }
  while (chains_left != 0) usleep(1000);
  done = true;
  for (std::thread& thread : threads) thread.join();
  int64_t wanted = kStaying, count = -1;
  uint64_t tally = 0;
  for (Actor& actor : actors) {
    wanted += static_cast<int64_t>(actor.model.size());
    tally += actor.tally;
    for (const auto& [key, content] : actor.model) {
      actor.key = key;
      actor.kind = 1;
      actor.offset = 0;
      actor.buffer.assign(content.size() + 1, '#');
      actor.carry_out();
    }
  }
  if (ark_count(ark, &count) != 0 || count != wanted)
    FAIL("count " + std::to_string(count) + ", wanted " + std::to_string(wanted));
  REQUIRE(ark_delete(ark) == 0);
  printf("ok: %lu operations\n", tally);
}
