// SPDX-License-Identifier: Apache-2.0
// libarkdb, the blocking calls: results, edges and errors, one behaviour a case.
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <set>
#include <string>
#include <vector>

#include "ark_support.h"
#include "tests/catch.h"

using namespace ark_test;

namespace {

char some[] = "12345";

int create(const char* path, uint64_t flags, ARK** ark) {
  return ark_create(const_cast<char*>(path), ark, flags);
}

}  // namespace

TEST_CASE("ark: a value comes back whole, cut, and from an offset; no byte beyond is touched") {
  Store store;
  REQUIRE(store.status == 0);
  int64_t res = -2;
  REQUIRE(store.set("key", "0123456789", &res) == 0);
  CHECK(res == 10);
  for (const uint64_t offset : {0ull, 3ull, 10ull, 11ull, 1ull << 40, ~0ull}) {
    for (const uint64_t room : {0ull, 4ull, 16ull}) {
      char buffer[32];
      memset(buffer, '.', sizeof buffer);
      REQUIRE(ark_get(store.ark, 3, data_of("key"), room, buffer, offset, &res) == 0);
      CHECK(res == 10);
      const std::string text = "0123456789", wanted = offset < 10 ? text.substr(offset, room) : "";
      CHECK(std::string(buffer, 32) == wanted + std::string(32 - wanted.size(), '.'));
    }
  }
  char buffer[16];
  REQUIRE(ark_get(store.ark, 3, data_of("key"), ~0ull, buffer, 0, &res) ==
          0);  // it is as long as it need be
  CHECK(std::string(buffer, 10) == "0123456789");
}

TEST_CASE("ark: keys and values of no length are keys and values, also behind NULL") {
  Store store;
  int64_t res = -2;
  CHECK(ark_exists(store.ark, 0, nullptr, &res) == ENOENT);
  CHECK(res == -1);
  CHECK(ark_set(store.ark, 0, nullptr, 5, some, &res) == 0);
  CHECK(ark_set(store.ark, 5, some, 0, nullptr, &res) == 0);
  CHECK(res == 0);
  CHECK(ark_exists(store.ark, 5, some, &res) == 0);
  CHECK(res == 0);
  CHECK(ark_get(store.ark, 0, nullptr, 0, nullptr, 0, &res) == 0);
  CHECK(res == 5);
  CHECK(store.count() == 2);
  CHECK(ark_del(store.ark, 0, nullptr, &res) == 0);
  CHECK(res == 5);
  CHECK(ark_del(store.ark, 0, nullptr, &res) == ENOENT);
  CHECK(store.count() == 1);
}

TEST_CASE("ark: a closed handle is EINVAL, also after others were opened") {
  ARK* closed = nullptr;
  {
    Store store;
    closed = store.ark;
  }
  int64_t res;
  CHECK(ark_delete(closed) == EINVAL);
  for (int i = 0; i < 100; ++i) {
    Store other("mem:1m", 1);
    REQUIRE(other.status == 0);
    CHECK(other.ark != closed);
    CHECK(ark_set(closed, 5, some, 5, some, &res) == EINVAL);
    CHECK(ark_delete(closed) == EINVAL);
  }
}

TEST_CASE(
    "ark: nothing is stored in a value's place when there is no room, and deleting makes some") {
  Store store("mem:2m", 1);
  const std::string value(1000, 'v');
  int rc = 0, stored = 0;
  while ((rc = store.set("key " + std::to_string(stored), value)) == 0) ++stored;
  CHECK(rc == ENOSPC);
  CHECK(stored > 1000);
  CHECK(store.count() == stored);
  CHECK(store.get("key 0") == value);
  CHECK(store.set("key 0", std::string(3 << 20, 'x')) == ENOSPC);
  CHECK(store.get("key 0") == value);
  int64_t res;
  for (int i = 0; i < stored; i += 2) {
    const std::string key = "key " + std::to_string(i);
    REQUIRE(ark_del(store.ark, key.size(), data_of(key), &res) == 0);
    CHECK(res == 1000);
  }
  CHECK(store.set("new", value) == 0);
}

TEST_CASE("ark: a connection is a store until it is closed; closing the store closes all") {
  Store store;
  ARC *one = nullptr, *two = nullptr, *three = nullptr;
  REQUIRE(ark_connect(&one, store.ark) == 0);
  REQUIRE(ark_connect_verbose(&two, one, 10) == 0);
  int64_t res;
  REQUIRE(ark_set(one, 5, some, 5, some, &res) == 0);
  CHECK(ark_exists(two, 5, some, &res) == 0);
  CHECK(ark_disconnect(one) == 0);
  CHECK(ark_disconnect(one) == EINVAL);
  CHECK(ark_exists(one, 5, some, &res) == EINVAL);
  CHECK(ark_exists(two, 5, some, &res) == 0);
  CHECK(ark_disconnect(store.ark) == 0);  // as the original: nothing happens
  CHECK(store.count() == 1);
  REQUIRE(ark_connect(&three, store.ark) == 0);
  CHECK(ark_delete(two) == 0);
  CHECK(store.count() == -1);
  CHECK(ark_exists(three, 5, some, &res) == EINVAL);
  CHECK(ark_disconnect(three) == EINVAL);
  CHECK(ark_delete(store.ark) == EINVAL);
}

TEST_CASE("ark: counts and statistics tell what is there") {
  Store store;
  uint64_t allocated, in_use, actual, ops, ios;
  REQUIRE(ark_allocated(store.ark, &allocated) == 0);
  CHECK(allocated == 64u << 20);
  REQUIRE(ark_inuse(store.ark, &in_use) == 0);
  REQUIRE(store.set("abc", "defgh") == 0);
  REQUIRE(ark_actual(store.ark, &actual) == 0);
  CHECK(actual == 8);
  uint64_t more;
  REQUIRE(ark_inuse(store.ark, &more) == 0);
  CHECK(more > in_use);
  CHECK(store.get("abc") == "defgh");
  REQUIRE(ark_stats(store.ark, &ops, &ios) == 0);
  CHECK(ops == 3);
  CHECK(ios == 0);
  CHECK(ark_flush(store.ark) == 0);
  CHECK(ark_fork_done(store.ark) == 0);
}

TEST_CASE(
    "ark: an iterator sees every key once, cuts those that are too long, and ends by itself") {
  Store store;
  char key[8];
  int64_t length = 0;
  errno = 0;
  CHECK(ark_first(store.ark, sizeof key, &length, key) == nullptr);
  CHECK(errno == ENOENT);
  CHECK(length == -1);
  std::set<std::string> left;
  for (int i = 0; i < 500; ++i) {
    const std::string name = std::to_string(i);
    REQUIRE(store.set(name, "v") == 0);
    left.insert(name);
  }
  ARI* iterator = ark_first(store.ark, sizeof key, &length, key);
  REQUIRE(iterator != nullptr);
  int rc = 0;
  for (; rc == 0; rc = ark_next(iterator, sizeof key, &length, key)) {
    const std::string name(key, static_cast<size_t>(length));
    CHECK((left.erase(name) == 1 || name[0] == 'n'));
    REQUIRE(store.set("new " + std::to_string(length), "v") == 0);
    if (length == 1) CHECK(ark_next(iterator, 0, &length, key) == EINVAL);
  }
  CHECK(rc == ENOENT);
  CHECK(length == -1);
  CHECK(left.empty());
  CHECK(ark_next(iterator, sizeof key, &length, key) == EINVAL);  // gone

  Store one;
  REQUIRE(one.set("a key that is longer", "v") == 0);
  memset(key, '.', sizeof key);
  iterator = ark_first(one.ark, 4, &length, key);
  REQUIRE(iterator != nullptr);
  CHECK(length == 20);
  CHECK(std::string(key, 8) == "a ke....");
  uint64_t some_length = 0;
  CHECK(ark_random(one.ark, 4, &some_length, key) == 0);
  CHECK(some_length == 20);
  CHECK(std::string(key, 8) == "a ke....");
}

TEST_CASE("ark: nextN packs as many keys as fit and never writes beyond the buffer") {
  Store store;
  std::set<std::string> left;
  for (int i = 0; i < 300; ++i) {
    const std::string name(static_cast<size_t>(i % 37), static_cast<char>('a' + i % 26));
    if (left.insert(name).second) REQUIRE(store.set(name, "v") == 0);
  }
  for (const size_t room : {44u, 45u, 61u, 100u, 4096u}) {
    std::set<std::string> missing = left;
    char first[64];
    int64_t length = 0, keys = -2;
    ARI* iterator = ark_first(store.ark, sizeof first, &length, first);
    REQUIRE(iterator != nullptr);
    CHECK(missing.erase(std::string(first, static_cast<size_t>(length))) == 1);
    std::vector<char> buffer(room + 16, '#');
    int rc;
    while ((rc = ark_nextN(iterator, room, buffer.data(), &keys)) == 0) {
      REQUIRE(keys > 0);
      auto* one = reinterpret_cast<keye_t*>(buffer.data());
      for (int64_t i = 0; i < keys; ++i) {
        REQUIRE(reinterpret_cast<char*>(one->p) + one->len <= buffer.data() + room);
        CHECK(missing.erase(std::string(reinterpret_cast<char*>(one->p), one->len)) == 1);
        one = BMP_KEYE(one);
      }
      CHECK(std::string(buffer.data() + room, 16) == std::string(16, '#'));
    }
    CHECK(rc == ENOENT);
    CHECK(keys == 0);
    CHECK(missing.empty());
    CHECK(ark_nextN(iterator, room, buffer.data(), &keys) == EINVAL);
  }
}

TEST_CASE("ark: a key that nextN has no room for stays the next one") {
  Store store;
  REQUIRE(store.set(std::string(100, 'k'), "v") == 0);
  REQUIRE(store.set(std::string(101, 'k'), "v") == 0);
  char buffer[128];
  int64_t length = 0, keys = -2;
  ARI* iterator = ark_first(store.ark, sizeof buffer, &length, buffer);
  REQUIRE(iterator != nullptr);
  for (const uint64_t room : {1, 7, 8, 50, 107}) {
    CHECK(ark_nextN(iterator, room, buffer, &keys) == ENOSPC);
    CHECK(keys == 0);
  }
  CHECK(ark_nextN(iterator, 109, buffer, &keys) == 0);
  CHECK(keys == 1);
  CHECK(ark_nextN(iterator, sizeof buffer, buffer, &keys) == ENOENT);
}

TEST_CASE("ark: a store that persists is there again, with what ark_flush or ark_delete kept") {
  constexpr uint64_t kStore = ARK_KV_PERSIST_STORE, kLoad = ARK_KV_PERSIST_LOAD;
  File file(64 << 20);
  setenv("LUNAR_KV_DRAM", "24m", 1);
  ARK* none = nullptr;
  CHECK(create(file.path, kLoad, &none) == ENOENT);
  {
    Store store(file.path, 2, 0, 0, kStore | kLoad);  // nothing is there yet
    REQUIRE(store.status == 0);
    REQUIRE(store.set("a", "1") == 0);
    REQUIRE(store.set("b", std::string(200'000, 'b')) == 0);
    REQUIRE(create(file.path, kStore | kLoad, &none) == EBUSY);
  }
  {
    Store store(file.path, 2, 0, 0, kStore | kLoad);
    REQUIRE(store.status == 0);
    CHECK(store.count() == 2);
    CHECK(store.get("b") == std::string(200'000, 'b'));
    CHECK(ark_fork(store.ark) == -1);
    REQUIRE(store.set("a", "2") == 0);
    REQUIRE(ark_flush(store.ark) == 0);
  }
  {
    Store store(file.path, 2, 0, 0, kLoad);  // its changes end with it, unless ark_flush keeps them
    REQUIRE(store.status == 0);
    CHECK(store.get("a") == "2");
    REQUIRE(store.set("a", "3") == 0);
  }
  {
    Store store(file.path, 2, 0, 0, kLoad);
    REQUIRE(store.status == 0);
    CHECK(store.get("a") == "2");
  }
  {
    Store scratch(file.path);
    CHECK(scratch.status == EEXIST);  // a store that persists is data
  }
  {
    Store store(file.path, 2, 0, 0, kStore);  // another one, in its place
    REQUIRE(store.status == 0);
    CHECK(store.count() == 0);
  }
  Store store(file.path, 2, 0, 0, kLoad);
  CHECK(store.count() == 0);
  unsetenv("LUNAR_KV_DRAM");
}

TEST_CASE("ark: with LUNAR_KV_DURABILITY what was set is there after a crash") {
  setenv("LUNAR_KV_DRAM", "24m", 1);
  for (const char* level : {"flush", "group", "each"}) {
    File file(64 << 20);
    setenv("LUNAR_KV_DURABILITY", level, 1);
    const pid_t child = fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      Store store(file.path, 2, 0, 0, ARK_KV_PERSIST_STORE);
      int64_t length = 0;
      const bool done = store.status == 0 && store.set("a", "1") == 0 && store.set("b", "2") == 0 &&
                        store.set("c", std::string(200'000, 'c')) == 0 &&
                        ark_del(store.ark, 1, const_cast<char*>("a"), &length) == 0;
      _exit(done ? 0 : 1);  // no ark_delete, no ark_flush
    }
    int status = -1;
    REQUIRE(waitpid(child, &status, 0) == child);
    REQUIRE(status == 0);
    {
      Store store(file.path, 2, 0, 0, ARK_KV_PERSIST_LOAD);
      REQUIRE(store.status == 0);
      const bool kept = strcmp(level, "flush") != 0;
      CHECK(store.count() == (kept ? 2 : 0));
      if (kept) CHECK((store.get("b") == "2" && store.get("c") == std::string(200'000, 'c')));
      REQUIRE(store.set("d", "4") == 0);  // not to be stored
    }
    Store store(file.path, 2, 0, 0, ARK_KV_PERSIST_LOAD);
    CHECK(store.count() == (strcmp(level, "flush") != 0 ? 2 : 0));
  }
  setenv("LUNAR_KV_DURABILITY", "always", 1);
  ARK* ark = nullptr;
  CHECK(create("", 0, &ark) == EINVAL);
  unsetenv("LUNAR_KV_DURABILITY");
  unsetenv("LUNAR_KV_DRAM");
}

TEST_CASE("ark: a store that persists takes an empty file") {
  setenv("LUNAR_KV_DRAM", "24m", 1);
  setenv("LUNAR_KV_SIZE", "40m", 1);
  const File empty(0);
  const Store store(empty.path, 2, 0, 0, ARK_KV_PERSIST_STORE);
  REQUIRE(store.status == 0);
  uint64_t bytes = 0;
  CHECK((ark_allocated(store.ark, &bytes) == 0 && bytes > 32 << 20 && bytes < 40 << 20));
  unsetenv("LUNAR_KV_DRAM");
  unsetenv("LUNAR_KV_SIZE");
}

TEST_CASE(
    "ark: stores lie in memory, on files, devices and stripes, one after the other on the same "
    "place") {
  File blank(64 << 20), empty(0), left(32 << 20), right(32 << 20), all_of(48 << 20);
  const std::string stripe = std::string(left.path) + "=" + right.path;
  setenv("LUNAR_KV_SIZE", "40m", 1);
  setenv("LUNAR_KV_DRAM", "24m", 1);
  for (const char* path :
       {static_cast<const char*>(blank.path), static_cast<const char*>(empty.path), stripe.c_str(),
        "/var/tmp", "sim:32m", "mem:20m", "mem:", "", static_cast<const char*>(nullptr)}) {
    for (int turn = 0; turn < 2; ++turn) {
      INFO((path ? path : "NULL") << ", turn " << turn);
      Store store(path, 2, 0, 0, ARK_KV_HTC);
      REQUIRE(store.status == 0);
      CHECK(store.count() == 0);
      uint64_t allocated = 0;
      REQUIRE(ark_allocated(store.ark, &allocated) == 0);
      CHECK(allocated >= 16u << 20);
      CHECK(allocated <= 64u << 20);
      const std::string large(200'000, 'L');
      for (int i = 0; i < 3000; ++i)
        REQUIRE(store.set("key " + std::to_string(i), std::string(3000, 'v')) == 0);
      REQUIRE(store.set("large", large) == 0);
      for (int i = 0; i < 3000; i += 7)
        REQUIRE(store.get("key " + std::to_string(i)) == std::string(3000, 'v'));
      CHECK(store.get("large") == large);
    }
  }
  {
    Store store(all_of.path, 2, 0, 0, ARK_KV_VIRTUAL_LUN);
    CHECK(store.status == 0);
    CHECK(store.set("a", "b") == 0);
  }
  unsetenv("LUNAR_KV_SIZE");
  Store store(all_of.path, 2);  // all that the device has
  uint64_t allocated = 0;
  REQUIRE(store.status == 0);
  REQUIRE(ark_allocated(store.ark, &allocated) == 0);
  CHECK(allocated > 40u << 20);
  unsetenv("LUNAR_KV_DRAM");
}

TEST_CASE(
    "ark: a device that fails now and then gives errors and never other bytes; an iterator goes "
    "on") {
  setenv("LUNAR_KV_DRAM", "16m", 1);
  Store store("sim:64m,seed=7,read_error=40", 1);
  unsetenv("LUNAR_KV_DRAM");
  REQUIRE(store.status == 0);
  const auto value_of = [](int i) { return std::string(2000, static_cast<char>('a' + i % 26)); };
  int stored = 0, errors = 0, read = 0;
  for (int i = 0; i < 15'000; ++i)
    stored += store.set("key " + std::to_string(i), value_of(i)) == 0;
  CHECK(stored > 14'000);
  for (int i = 0; i < 15'000; ++i) {
    const std::string value = store.get("key " + std::to_string(i));
    if (value == "(error)") ++errors;
    if (value[0] == '(') continue;
    REQUIRE(value == value_of(i));
    ++read;
  }
  CHECK(read + errors >= stored);
  CHECK(read > stored / 2);
  char key[32];
  int64_t length = 0;
  int seen = 1, left_out = 0;
  ARI* iterator = ark_first(store.ark, sizeof key, &length, key);
  REQUIRE(iterator != nullptr);
  for (int rc; (rc = ark_next(iterator, sizeof key, &length, key)) != ENOENT;) {
    REQUIRE((rc == 0 || rc == EIO || rc == EBADMSG));
    ++(rc == 0 ? seen : left_out);
  }
  CHECK(seen + left_out * 8 >= stored);
  CHECK(seen <= stored);
  uint64_t ops = 0, ios = 0;
  REQUIRE(ark_stats(store.ark, &ops, &ios) == 0);
  CHECK(ops > 30'000);
  CHECK(ios > 1000);
}

TEST_CASE(
    "ark: places that are not there, hold data, cannot persist or make no sense are refused") {
  constexpr uint64_t kStore = ARK_KV_PERSIST_STORE, kLoad = ARK_KV_PERSIST_LOAD;
  const File foreign(64 << 20), file(64 << 20);
  REQUIRE((std::ofstream(foreign.path, std::ios::in) << "somebody's data").good());
  const std::string volume = std::string(file.path) + "#lun";
  const struct {
    const char* path;
    uint64_t flags;
    int error;
  } places[] = {{foreign.path, 0, EEXIST},
                {foreign.path, kStore, EEXIST},
                {foreign.path, kStore | kLoad, EEXIST},
                {"/var/tmp/lunar-no-such-file", 0, ENOENT},
                {"mem:nonsense", 0, EINVAL},
                {"a=", 0, ENOENT},
                {"/nowhere/a=/nowhere/b", ARK_KV_VIRTUAL_LUN, EINVAL},
                {file.path, kLoad, ENOENT}};
  const struct {
    const char* path;
    uint64_t more;
    int error;
  } persistent[] = {{nullptr, 0, EINVAL},
                    {"", 0, EINVAL},
                    {"mem:64m", 0, EINVAL},
                    {"/var/tmp", 0, EINVAL},
                    {"/nonexistent/store", 0, ENOENT},
                    {volume.c_str(), 0, EINVAL},
                    {"/nonexistent/store#1", 0, ENOENT},
                    {file.path, ARK_KV_VIRTUAL_LUN, EINVAL}};
  ARK* ark = nullptr;
  for (const auto& one : places) {
    INFO(one.path << ", flags " << one.flags);
    CHECK(create(one.path, one.flags, &ark) == one.error);
  }
  for (const auto& one : persistent) {
    INFO((one.path ? one.path : "NULL") << ", flags " << one.more);
    for (const uint64_t flags : {kStore, kLoad, kStore | kLoad})
      CHECK(create(one.path, flags | one.more, &ark) == one.error);
  }
  CHECK(ark_create_verbose(nullptr, &ark, 0, 0, 0, -1, 0, 0, 0) == EINVAL);
  setenv("LUNAR_KV_DRAM", "much", 1);
  CHECK(create(nullptr, 0, &ark) == EINVAL);
  setenv("LUNAR_KV_DRAM", "64k", 1);
  CHECK(create("sim:64m", 0, &ark) == ENOMEM);
  unsetenv("LUNAR_KV_DRAM");
  CHECK(ark == nullptr);
  std::string head(15, '\0');
  REQUIRE(std::ifstream(foreign.path).read(head.data(), 15).good());
  CHECK(head == "somebody's data");
}

TEST_CASE("ark: a size is a limit in memory from a GiB on, and the other numbers may be anything") {
  setenv("LUNAR_KV_DRAM", "4g", 1);
  const auto allocated_for = [](uint64_t size, uint64_t flags) {
    ARK* ark = nullptr;
    uint64_t bytes = 0;
    if (ark_create_verbose(nullptr, &ark, size, ~0ull, ~0ull, 10000, INT32_MAX, INT32_MAX, flags) !=
        0)
      return bytes;
    CHECK(ark_allocated(ark, &bytes) == 0);
    CHECK(ark_delete(ark) == 0);
    return bytes;
  };
  CHECK(allocated_for(1 << 20, 0) == 1ull << 30);
  CHECK(allocated_for(2ull << 30, 0) == 2ull << 30);
  CHECK(allocated_for(~0ull, 0) == 3ull << 30);
  CHECK(allocated_for(1 << 20, ARK_KV_VIRTUAL_LUN) == 3ull << 30);
  CHECK(allocated_for(0, 0) == 3ull << 30);
  unsetenv("LUNAR_KV_DRAM");
}

TEST_CASE("ark: a store may be deleted while others use it") {
  for (int round = 0; round < 20; ++round) {
    ARK* ark = nullptr;
    REQUIRE(ark_create_verbose(const_cast<char*>("mem:4m"), &ark, 0, 0, 100, 2, 0, 0, 0) == 0);
    std::vector<int> last(4);
    auto threads = lunar_test::start_threads(size_t{4}, [&](size_t t) {
      char name[] = {'k', static_cast<char>('0' + t)};
      int64_t res;
      ARC* arc;
      while ((last[t] = ark_set(ark, 2, name, 5, some, &res)) == 0) {
        if (ark_connect(&arc, ark) == 0) (void)ark_disconnect(arc);
        ARI* iterator = ark_first(ark, 5, &res, name);
        while (iterator && ark_next(iterator, 2, &res, name) == 0) {}
      }
    });
    usleep(2000);
    CHECK(ark_delete(ark) == 0);
    threads.clear();
    for (const int rc : last) CHECK(rc == EINVAL);
  }
}
