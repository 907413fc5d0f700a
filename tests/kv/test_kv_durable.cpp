// SPDX-License-Identifier: Apache-2.0
// Sets that are durable when they return: levels, errors, damage, full stores. Crashes are
// kv_crash_durable.cpp's, kills kv_kill.cpp's.
#include <errno.h>

#include <map>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "kv/inspect.h"
#include "kv/store.h"
#include "tests/catch.h"
#include "tests/kv/kv_support.h"
#include "tests/support/lun_device.h"

using namespace lunar;
using namespace lunar::kv;
using kv_test::bytes_of;
using kv_test::value_of;

namespace {

constexpr uint64_t kBytes = 4 * kMiB;

struct Backing {
  std::vector<char> memory = std::vector<char>(kBytes);
  std::vector<lunar_test::MemoryDevice*> devices;
  ErrorText why;
  uint64_t replay_bytes_most = 0;
  ~Backing() {
    for (auto* device : devices) delete device;
  }
  int open(Contents contents, Durability durability, Store** store) {
    devices.push_back(new lunar_test::MemoryDevice(memory.data(), kBytes));
    return Store::open(options_for(contents, durability), store, &why);
  }
  StoreOptions options_for(Contents contents, Durability durability) {
    StoreOptions options;
    options.device = devices.back();
    options.contents = contents;
    options.durability = durability;
    options.replay_bytes_most = replay_bytes_most;
    options.log_bytes = 0;
    options.dram_bytes = 4 * kMiB;
    options.shards = 4;
    options.expected_keys = 16;
    return options;
  }
  Store* must_open(Contents contents, Durability durability) {
    Store* store = nullptr;
    const int status = open(contents, durability, &store);
    INFO(why.text);
    REQUIRE(status == 0);
    return store;
  }
};

void must_set(Store* store, const std::string& key, const std::string& value) {
  REQUIRE(store->set(bytes_of(key), bytes_of(value)) == 0);
}

}  // namespace

TEST_CASE("what was set is there again without a flush, at each level and from one to another") {
  Backing backing;
  const Durability levels[] = {Durability::kGroup, Durability::kEach, Durability::kFlush};
  std::map<std::string, std::string> model;
  unsigned version = 0;
  const std::string large(300'000, 'x');
  for (unsigned round = 0; round < 18; ++round) {
    const Durability level = levels[round * 2 % 3 == 1 ? 2 : round % 3];
    Store* store = backing.must_open(round ? Contents::kKept : Contents::kNew, level);
    kv_test::check_store(store);
    REQUIRE(store->count() == model.size());
    for (const auto& [key, value] : model) CHECK(value_of(store, key) == value);
    for (unsigned i = 0; i < 300; ++i) {
      const std::string key = "key " + std::to_string(kv_test::mix(version) % 200);
      if (++version % 4 == 0) {
        CHECK(store->del(bytes_of(key)) ==
              (model.count(key) ? static_cast<int64_t>(model[key].size()) : -ENOENT));
        model.erase(key);
      } else {
        model[key] = std::string(version % 60, 'v') + std::to_string(version);
        must_set(store, key, model[key]);
      }
    }
    REQUIRE(store->set({"large", 5}, bytes_of(large)) == 0);
    REQUIRE(store->del({"large", 5}) == static_cast<int64_t>(large.size()));
    if (level == Durability::kFlush) REQUIRE(store->flush() == 0);
    CHECK((store->commits() == 0) == (level == Durability::kFlush));
    store->close();
  }
}

TEST_CASE("a store that is not kept is not durable") {
  Store* store = nullptr;
  ErrorText why;
  StoreOptions options;
  options.durability = Durability::kGroup;
  CHECK(Store::open(options, &store, &why) == -EINVAL);
  CHECK(std::string(why.text).find("durable") != std::string::npos);
}

// An error at each write and flush in turn: what was acknowledged is there, what failed is there or
// not, and from the first error on nothing is set any more.
TEST_CASE("a device that refuses to make something durable ends the writing") {
  unsigned refused_large = 0, saved_later = 0;
  for (int after = 0; after < 70; ++after) {
    Backing backing;
    Store* store =
        backing.must_open(Contents::kNew, after % 2 ? Durability::kGroup : Durability::kEach);
    for (unsigned i = 0; i < 5; ++i) must_set(store, "key " + std::to_string(i), "old");
    backing.devices.back()->fail_after = after;
    unsigned done = 0;
    int status = 0;
    for (; done < 100 && status == 0; ++done) {
      const std::string key = "key " + std::to_string(done % 7);
      if (done % 10 == 9)
        status = static_cast<int>(store->del(bytes_of(key)));
      else if (done == 13)
        status = store->flush();
      else if (done == 24)
        status = store->set(bytes_of(key), bytes_of(std::string(200'000, 'x')));
      else
        status = store->set(bytes_of(key), bytes_of("value " + std::to_string(done)));
      if (status > 0) status = 0;
    }
    REQUIRE(status == -EIO);
    refused_large += done == 25 ? 1 : 0;
    --done;  // that one failed
    const std::string before = value_of(store, "key 0");
    backing.devices.back()->fail_after = -1;
    // A large pair whose own bytes could not be written has changed nothing; nor has a state that
    // could not.
    const bool goes_on = (done == 24 || done == 13) && store->set({"another", 7}, {"x", 1}) == 0;
    if (!goes_on) {
      CHECK(store->set({"key 0", 5}, {"x", 1}) == -EIO);
      CHECK(store->del({"key 0", 5}) == -EIO);
    }
    saved_later += done == 13 && goes_on ? 1 : 0;
    CHECK(store->flush() == (goes_on ? 0 : -EIO));
    CHECK(value_of(store, "key 0") == before);
    store->close();
    store = backing.must_open(Contents::kKept, Durability::kGroup);
    kv_test::check_store(store);
    for (unsigned key = 0; key < 7; ++key) {
      std::string wanted = key < 5 ? "old" : "none", other = "?";
      for (unsigned i = 0; i <= done; ++i) {
        if (i % 7 != key || i == 13) continue;
        (i == done ? other : wanted) = i % 10 == 9 ? "none"
                                       : i == 24   ? std::string(100, 'x')
                                                   : "value " + std::to_string(i);
      }
      char buffer[100];
      const std::string name = "key " + std::to_string(key);
      const int64_t length = store->get(bytes_of(name), buffer, sizeof buffer, 0);
      const std::string found =
          length < 0 ? "none"
                     : std::string(buffer, static_cast<size_t>(length > 100 ? 100 : length));
      INFO(name << " after " << after);
      CHECK((found == wanted || (!goes_on && found == other)));
    }
    store->close();
  }
  CHECK(refused_large >= 2);
  CHECK(saved_later >= 1);
}

// A bit is changed at each 2 KiB. What is in front of the last commit was acknowledged and must not
// be missed; the last commit itself cannot be told from one that a crash tore.
TEST_CASE("a damaged log is reported, wherever it is damaged") {
  Backing backing;
  Store* store = backing.must_open(Contents::kNew, Durability::kEach);
  constexpr unsigned kKeys = 150;
  // three quarters of a block, or a bit more than one: both kinds of batch
  const std::string filler(3000, 'f');
  for (unsigned i = 0; i < kKeys; ++i) {
    const std::string key = "key " + std::to_string(i);
    must_set(store, key, i % 3 ? key + filler : key);
  }
  store->close();
  const std::vector<char> sound = backing.memory;
  unsigned refused = 0, whole = 0, shorter = 0;
  for (uint64_t at = lunar::kv::media::kHeadBytes + 100; at < kBytes - lunar::kv::media::kTailBytes;
       at += 2048) {
    backing.memory = sound;
    backing.memory[at] = static_cast<char>(backing.memory[at] ^ 1);
    const int status = backing.open(Contents::kKept, Durability::kGroup, &store);
    if (status < 0) {
      CHECK(status == -EBADMSG);
      ++refused;
      continue;
    }
    if (store->count() != kKeys) CHECK(store->count() == kKeys - 1);
    ++(store->count() == kKeys ? whole : shorter);
    store->close();
  }
  CHECK(refused >= kKeys);
  CHECK(shorter <= 3);  // the last commit has two blocks at most
  CHECK(whole > 100);
}

TEST_CASE("threads share commits") {
  Backing backing;
  lunar_test::MemoryDevice device(backing.memory.data(), kBytes);
  device.before = [](const Command& command) {
    if (command.op != Op::kRead) sys::sleep_ns(300'000);
    return 0;
  };
  StoreOptions options;
  options.device = &device;
  options.contents = Contents::kNew;
  options.durability = Durability::kGroup;
  options.log_bytes = 0;
  options.dram_bytes = 4 * kMiB;
  options.expected_keys = 16;
  Store* store = kv_test::open_store(options);
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < 8; ++i) {
    threads.emplace_back([&, i] {
      for (unsigned n = 0; n < 50; ++n) {
        const unsigned key = i * 100 + n % 10;
        if (store->set({&key, sizeof key}, {&n, sizeof n}) != 0) FAIL("set");
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(store->commits() < 130);  // of 400 sets
  store->close();
}

// Full, all keys can be deleted, and the store filled again; and what is durable at each point
// comes back.
TEST_CASE("a full store lets keys be deleted, durably") {
  Backing backing;
  Store* store = backing.must_open(Contents::kNew, Durability::kGroup);
  uint64_t first = 0;
  for (unsigned round = 0; round < 2; ++round) {
    uint64_t keys = 0;
    const std::string value(700, 'v');
    while (store->set({&keys, sizeof keys}, bytes_of(value)) == 0) ++keys;
    if (round == 0) first = keys;
    CHECK(keys + keys / 10 > first);
    CHECK(keys > 2000);  // of 4 MiB
    for (uint64_t key = 0; key < keys; ++key) REQUIRE(store->del({&key, sizeof key}) == 700);
    CHECK(store->count() == 0);
    store->close();
    store = backing.must_open(Contents::kKept, Durability::kGroup);
    CHECK(store->count() == 0);
    kv_test::check_store(store);
  }
  store->close();
}

TEST_CASE("a state is saved before the log is longer than an open may read") {
  Backing backing;
  backing.replay_bytes_most = 256 * kKiB;
  Store* store = backing.must_open(Contents::kNew, Durability::kEach);
  const std::string value(3000, 'v');
  const auto root_sequence = [&] {
    uint64_t most = 0;
    for (unsigned slot = 0; slot < 2; ++slot) {
      uint64_t sequence;
      memcpy(&sequence, backing.memory.data() + lunar::kv::media::kFrontRootsAt * (1 + slot) + 32,
             sizeof sequence);
      if (sequence > most) most = sequence;
    }
    return most;
  };
  const uint64_t before = root_sequence();
  for (unsigned i = 0; i < 1000; ++i)
    must_set(store, "key " + std::to_string(i % 50), value);  // 4 MiB of batches
  const uint64_t saves = root_sequence() - before;
  CHECK(saves >= 10);
  CHECK(saves <= 25);
  uint64_t features;  // what code that knows no log refuses
  memcpy(&features, backing.memory.data() + lunar::kv::media::kFrontRootsAt + 88, sizeof features);
  CHECK(features == lunar::kv::media::kFeatureLog);
  store->close();
}

// Cleaning moves records, some of whose entries look alike (one tag, one segment): replay must find
// those they had.
TEST_CASE("records that cleaning moved replace themselves when the log is replayed") {
  Backing backing;
  auto* device = new lunar_test::MemoryDevice(backing.memory.data(), kBytes);
  backing.devices.push_back(device);
  // What a crash would leave just before a younger state counts: then the log is at its longest.
  std::vector<std::vector<char>> images;
  device->before = [&](const Command& command) {
    const bool root = command.offset.value - lunar::kv::media::kFrontRootsAt < 2 * 4096;
    if (command.op == Op::kWrite && root) images.push_back(device->snapshot());
    return 0;
  };
  StoreOptions options = backing.options_for(Contents::kNew, Durability::kGroup);
  Store* store = kv_test::open_store(options);
  // Of the hash an entry has 24 bits of tag and its place: 4 bits of the bucket at first. Shards:
  // the 2 highest.
  std::unordered_map<uint64_t, uint64_t> seen;
  std::vector<std::pair<uint64_t, uint64_t>> pairs;
  for (uint64_t key = 0; pairs.size() < 3; ++key) {
    const uint64_t hash = hash_of({&key, sizeof key}),
                   known = (hash & 0xfffffff) | hash >> 62 << 28;
    if (const auto [other, fresh] = seen.emplace(known, key); !fresh)
      pairs.emplace_back(other->second, key);
  }
  const std::string value(200, 'v');
  for (const auto& [one, two] : pairs) {
    REQUIRE(store->set({&one, sizeof one}, {"one", 3}) == 0);
    REQUIRE(store->set({&two, sizeof two}, {"two", 3}) == 0);
  }
  REQUIRE(store->flush() == 0);
  for (uint64_t i = 0; i < 7000; ++i) {
    if (i == 5000) images.clear();
    must_set(store, "key " + std::to_string(i < 5000 ? i : kv_test::mix(i) % 5000), value);
  }
  store->close();
  REQUIRE(images.size() > 3);
  Backing crashed;
  for (const auto& image : images) {
    crashed.memory = image;
    store = crashed.must_open(Contents::kKept, Durability::kFlush);
    kv_test::check_store(store);
    CHECK(store->count() == 5000 + 2 * pairs.size());
    for (const auto& [one, two] : pairs) {
      char buffer[4] = {};
      REQUIRE(store->get({&one, sizeof one}, buffer, 3, 0) == 3);
      CHECK(std::string(buffer) == "one");
      REQUIRE(store->get({&two, sizeof two}, buffer, 3, 0) == 3);
      CHECK(std::string(buffer) == "two");
    }
    store->close();
  }
}

// Of two entries that look alike (one tag, one segment) cleaning has moved one when a write fails,
// and the other not: only what the records hold tells whose place it takes. Both moved, a wrong
// choice would not be seen.
TEST_CASE(
    "a record that cleaning moved takes the place of its own entry, not of one that looks alike") {
  constexpr unsigned kPairs = 3, kKeys = 400, kRounds = 8;
  std::unordered_map<uint64_t, uint64_t> seen;
  std::vector<std::pair<uint64_t, uint64_t>> pairs;
  for (uint64_t key = 0; pairs.size() < kPairs; ++key) {
    const uint64_t hash = hash_of({&key, sizeof key}),
                   known = (hash & 0xfffffff) | hash >> 62 << 28;
    if (const auto [other, fresh] = seen.emplace(known, key); !fresh)
      pairs.emplace_back(other->second, key);
  }
  const auto set = [](Store* store, uint64_t key, char content) {
    return store->set({&key, sizeof key}, bytes_of(std::string(900, content)));
  };
  unsigned failed = 0;
  for (unsigned round = 0; round < kRounds; ++round) {
    Backing backing;
    Store* store = backing.must_open(Contents::kNew, Durability::kFlush);
    const auto filler = [](unsigned i) { return "filler " + std::to_string(i); };
    // Each pair in a segment of its own, at both of its ends: 64 KiB hold 68 records.
    for (unsigned i = 0; i < kKeys; ++i) {
      must_set(store, filler(i), std::string(900, 'f'));
      if (i % 66 == 5 && i / 66 < kPairs) REQUIRE(set(store, pairs[i / 66].first, '1') == 0);
      if (i % 66 == 55 && i / 66 < kPairs) REQUIRE(set(store, pairs[i / 66].second, '2') == 0);
    }
    // These segments are emptied first, the first of them last; a segment ends somewhere within
    // what is moved of one.
    for (unsigned i = 0; i < kKeys; ++i) {
      const bool stays = i % 3 == 0 || (i % 3 == 1 && (i < 3 * round || i > 66 * kPairs));
      if (!stays) REQUIRE(store->del(bytes_of(filler(i))) == 900);
    }
    REQUIRE(store->flush() == 0);
    store->close();
    const std::vector<char> before = backing.memory;
    for (int writes = 0; writes < 40; ++writes) {
      backing.memory = before;
      store = backing.must_open(Contents::kKept, Durability::kEach);
      backing.devices.back()->fail_after = writes;
      const int status = store->compact();
      store->close();
      store = backing.must_open(Contents::kKept, Durability::kFlush);
      kv_test::check_store(store);
      for (const auto& [one, two] : pairs) {
        char buffer[900] = {};
        REQUIRE(store->get({&one, sizeof one}, buffer, sizeof buffer, 0) == sizeof buffer);
        CHECK(buffer[0] == '1');
        REQUIRE(store->get({&two, sizeof two}, buffer, sizeof buffer, 0) == sizeof buffer);
        CHECK(buffer[0] == '2');
      }
      store->close();
      if (status == 0) break;
      ++failed;
    }
  }
  CHECK(failed > kRounds);
}

// Where less than a record's head is left of a block, the mark behind a batch takes the next block
// too, and is longer than any pair's record in segments of 64 KiB.
TEST_CASE("marks of every length are read again, by cleaning and by a look") {
  for (const bool replayed : {true, false}) {
    Backing backing;
    Store* store = backing.must_open(Contents::kNew, Durability::kEach);
    for (unsigned i = 0; i < 150; ++i)
      must_set(store, "key " + std::to_string(1000 + i), std::string(3870 + i, 'v'));
    for (unsigned i = 0; i < 150; i += 2)
      REQUIRE(store->del(bytes_of("key " + std::to_string(1000 + i))) > 0);
    if (!replayed) REQUIRE(store->flush() == 0);
    store->close();
    const std::vector<char> before = backing.memory;
    backing.devices.push_back(new lunar_test::MemoryDevice(backing.memory.data(), kBytes));
    StoreOptions options = backing.options_for(Contents::kKept, Durability::kFlush);
    options.read_only = true;
    REQUIRE(Store::open(options, &store, &backing.why) == 0);
    Sweep sweep;
    sweep.on_damage = [](void*, const Damage&) {};
    kv::CheckReport report;
    CHECK(store->sweep(sweep, &report) == 0);
    CHECK(report.damages == 0);
    CHECK(report.records + report.large_pairs == 75);
    store->close();
    CHECK(before == backing.memory);
    store = backing.must_open(Contents::kKept, Durability::kFlush);
    CHECK(store->compact() == 0);
    StoreInfo info;
    store->info(&info);
    CHECK(info.segments[static_cast<unsigned>(SegmentState::kDamaged)] == 0);
    kv_test::check_store(store);
    store->close();
  }
}

// What cleaning has moved to the newest batch: changed in place there, it would not tell any more
// what the record was that it takes the place of.
TEST_CASE("what cleaning moved and a set changes next is replayed with its right length") {
  for (unsigned trial = 0; trial < 60; ++trial) {
    Backing backing;
    Store* store = backing.must_open(Contents::kNew, Durability::kFlush);
    const auto set = [&](uint64_t number, uint64_t length) {
      return store->set({&number, sizeof number}, bytes_of(std::string(length, 'v')));
    };
    for (uint64_t i = 0; i < 3000; ++i) REQUIRE(set(i, 600) == 0);
    for (uint64_t i = 0; i < 3000; i += 2) REQUIRE(store->del({&i, sizeof i}) == 600);
    REQUIRE(store->flush() == 0);
    store->close();
    store = backing.must_open(Contents::kKept, Durability::kEach);
    backing.devices.back()->fail_after = static_cast<int>(1 + trial % 20);
    std::thread writer([&] {
      for (uint64_t i = 0; set(kv_test::mix(i + trial * 1000) % 1500 * 2 + 1, 600 - i % 200) == 0;)
        ++i;
    });
    (void)store->compact();
    writer.join();
    store->close();
    backing.devices.push_back(new lunar_test::MemoryDevice(backing.memory.data(), kBytes));
    StoreOptions options = backing.options_for(Contents::kKept, Durability::kFlush);
    options.read_only = true;
    REQUIRE(Store::open(options, &store, &backing.why) == 0);
    uint64_t bytes = 0;
    Sweep sweep;
    sweep.context = &bytes;
    sweep.on_damage = [](void*, const Damage&) {};
    sweep.on_pair = [](void* sum, Bytes key, Bytes value) {
      *static_cast<uint64_t*>(sum) += key.size + value.size;
      return true;
    };
    kv::CheckReport report;
    REQUIRE(store->sweep(sweep, &report) == 0);
    CHECK(report.damages == 0);
    CHECK(store->bytes_actual() == bytes);
    store->close();
  }
}

// Such records lie in the segment that replay begins in, and in front of what it replays.
TEST_CASE(
    "a record of the saved state that is damaged in the segment where the log goes on is not given "
    "out or moved") {
  for (const bool header : {false, true}) {
    INFO("its header: " << header);
    Backing backing;
    const std::string early(1000, 'e'), after(1000, 'a');
    Store* store = backing.must_open(Contents::kNew, Durability::kGroup);
    must_set(store, "early", early);
    must_set(store, "next to it", after);
    REQUIRE(store->flush() == 0);
    must_set(store, "later", after);
    const std::vector<char> killed = backing.memory;
    store->close();
    backing.memory = killed;
    const std::string all(backing.memory.begin(), backing.memory.end());
    const uint64_t value_at = all.find(early);
    REQUIRE(value_at != std::string::npos);
    if (header)
      memset(backing.memory.data() + value_at - 8 - sizeof(Record), 0, sizeof(Record));
    else
      backing.memory[value_at + 500] ^= 1;
    for (unsigned open = 0; open < 3; ++open) {
      store =
          backing.must_open(Contents::kKept, open == 2 ? Durability::kFlush : Durability::kGroup);
      char value[1000];
      CHECK(store->get(bytes_of("early"), value, sizeof value, 0) == -EBADMSG);
      CHECK(value_of(store, "next to it") == after);
      CHECK(value_of(store, "later") == after);
      // It is moved with the frame that it lies in, or as what is written out of that.
      const std::string other(2000, 'o');
      for (unsigned i = 0; open == 1 && i < 1500; ++i)
        must_set(store, "filler " + std::to_string(i % 7), other);
      if (open == 1) REQUIRE(store->compact() == 0);
      CHECK(store->get(bytes_of("early"), value, sizeof value, 0) == -EBADMSG);
      store->close();
    }
  }
}
