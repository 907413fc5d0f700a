// SPDX-License-Identifier: Apache-2.0
// libarkdb, where programs go wrong: what refused calls leave behind, places and their rights,
// threads that cannot start.
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ark_support.h"
#include "tests/catch.h"

using namespace ark_test;

namespace {

char some[] = "12345";

}  // namespace

namespace {

struct Arguments {
  uint64_t key_bytes = 5, bytes = 5;
  void *key = some, *data = some;
  int64_t res = 7;
  uint64_t size = 7, other = 7;
  int64_t* to_res = &res;
  uint64_t *to_size = &size, *to_other = &other;
  void (*callback)(int, uint64_t, int64_t) = Finished::callback;
};

// Wrong arguments, by the letter that a call has in `bad`.
struct Bad {
  char letter;
  void (*make)(Arguments& a);
};
constexpr Bad kBad[] = {{'k', [](Arguments& a) { a.key = nullptr; }},
                        {'k', [](Arguments& a) { a.key_bytes = ~0ull; }},
                        {'k', [](Arguments& a) { a.key_bytes = (100ull << 30) + 1; }},
                        {'d', [](Arguments& a) { a.data = nullptr; }},
                        {'l', [](Arguments& a) { a.bytes = ~0ull; }},
                        {'0', [](Arguments& a) { a.bytes = 0; }},
                        {'r', [](Arguments& a) { a.to_res = nullptr; }},
                        {'s', [](Arguments& a) { a.to_size = nullptr; }},
                        {'o', [](Arguments& a) { a.to_other = nullptr; }},
                        {'c', [](Arguments& a) { a.callback = nullptr; }}};

int error_of(bool failed) { return failed ? errno : 0; }

struct Call {
  const char *name, *bad;
  int (*call)(ARK* ark, const Arguments& a);
};
#define CALL(name, bad, ...) \
  {name, bad, [](ARK* ark, [[maybe_unused]] const Arguments& a) { return __VA_ARGS__; }}
constexpr Call kCalls[] = {
    CALL("set", "kdlr", ark_set(ark, a.key_bytes, a.key, a.bytes, a.data, a.to_res)),
    CALL("get", "kdr", ark_get(ark, a.key_bytes, a.key, a.bytes, a.data, 0, a.to_res)),
    CALL("del", "kr", ark_del(ark, a.key_bytes, a.key, a.to_res)),
    CALL("exists", "kr", ark_exists(ark, a.key_bytes, a.key, a.to_res)),
    CALL("set_async_cb", "kdlc",
         ark_set_async_cb(ark, a.key_bytes, a.key, a.bytes, a.data, a.callback, 0)),
    CALL("get_async_cb", "kdc",
         ark_get_async_cb(ark, a.key_bytes, a.key, a.bytes, a.data, 0, a.callback, 0)),
    CALL("del_async_cb", "kc", ark_del_async_cb(ark, a.key_bytes, a.key, a.callback, 0)),
    CALL("exists_async_cb", "kc", ark_exists_async_cb(ark, a.key_bytes, a.key, a.callback, 0)),
    CALL("count", "r", ark_count(ark, a.to_res)),
    CALL("allocated", "s", ark_allocated(ark, a.to_size)),
    CALL("inuse", "s", ark_inuse(ark, a.to_size)),
    CALL("actual", "s", ark_actual(ark, a.to_size)),
    CALL("stats", "so", ark_stats(ark, a.to_size, a.to_other)),
    CALL("random", "0sd", ark_random(ark, a.bytes, a.to_size, a.data)),
    CALL("first", "0dr", error_of(ark_first(ark, a.bytes, a.to_res, a.data) == nullptr)),
    CALL("flush", "", ark_flush(ark)),
    CALL("fork", "", error_of(ark_fork(ark) == -1)),
    CALL("fork_done", "", ark_fork_done(ark)),
    CALL("delete", "", ark_delete(ark)),
    CALL("disconnect", "", ark_disconnect(ark))};
constexpr Call kOfIterators[] = {CALL("next", "0d", ark_next(ark, a.bytes, a.to_res, a.data)),
                                 CALL("nextN", "0d", ark_nextN(ark, a.bytes, a.data, a.to_res))};
#undef CALL

void refuses(const Call& call, ARK* ark, const Bad* bad) {
  Arguments a;
  if (bad) bad->make(a);
  errno = 0;
  INFO("ark_" << call.name << " of " << ark << ", " << (bad ? bad->letter : '-'));
  CHECK(call.call(ark, a) == EINVAL);
  CHECK((a.res == 7 && a.size == 7 && a.other == 7));
}

}  // namespace

TEST_CASE("ark-edges: a call with an argument that cannot be is EINVAL, and writes nothing") {
  Store store;
  ARK* ark = store.ark;
  REQUIRE(store.set("12345", "v") == 0);
  char key[8] = "first";
  int64_t found = 0;
  uint64_t number = 0;
  ARI* iterator = ark_first(ark, sizeof key, &found, key);
  REQUIRE(iterator != nullptr);
  for (ARK* none : {static_cast<ARK*>(nullptr), reinterpret_cast<ARK*>(8),
                    reinterpret_cast<ARK*>(~7ull), reinterpret_cast<ARK*>(&number),
                    reinterpret_cast<ARK*>(reinterpret_cast<uint64_t>(ark) + (1 << 19))}) {
    for (const Call& call : kCalls) refuses(call, none, nullptr);
    for (const Call& call : kOfIterators) refuses(call, none, nullptr);
    ARK* made = ark;
    CHECK((ark_connect(&made, none) == EINVAL && made == ark));
  }
  for (const Bad& bad : kBad) {
    for (const Call& call : kCalls)
      if (strchr(call.bad, bad.letter)) refuses(call, ark, &bad);
    for (const Call& call : kOfIterators)
      if (strchr(call.bad, bad.letter)) refuses(call, iterator, &bad);
  }
  ARK* made = ark;
  CHECK(ark_create(nullptr, nullptr, 0) == EINVAL);
  CHECK(ark_connect(nullptr, ark) == EINVAL);
  CHECK((ark_create_verbose(nullptr, &made, 0, 0, 0, 0, 0, 0, 0) == EINVAL && made == ark));
  CHECK((ark_create_verbose(const_cast<char*>("/nowhere/at all"), &made, 0, 0, 0, 1, 0, 0, 0) ==
             ENOENT &&
         made == ark));
  CHECK(store.count() == 1);
  CHECK(ark_next(iterator, sizeof key, &found, key) == ENOENT);
}

TEST_CASE("ark-edges: a call that fails for another reason leaves -1, or no keys") {
  const Store store;
  int64_t res = 7;
  CHECK((ark_get(store.ark, 5, some, 0, nullptr, 0, &res) == ENOENT && res == -1));
  res = 7;
  CHECK((ark_exists(store.ark, 5, some, &res) == ENOENT && res == -1));
  res = 7;
  CHECK((ark_del(store.ark, 5, some, &res) == ENOENT && res == -1));
  res = 7;
  CHECK((ark_first(store.ark, 5, &res, some) == nullptr && res == -1 && errno == ENOENT));
  uint64_t length = 7;
  CHECK((ark_random(store.ark, 5, &length, some) == ENOENT && length == ~0ull));
}

TEST_CASE("ark-edges: in a full store in memory a value is replaced by any shorter one") {
  Store store("mem:2m", 1);
  int stored = 0;
  while (store.set(std::to_string(stored), std::string(1000, 'v')) == 0) ++stored;
  REQUIRE(stored > 1000);
  for (const size_t bytes : {1000u, 600u, 499u, 100u, 1u, 0u}) {
    int refused = 0, wrong = 0;
    const std::string value(bytes, static_cast<char>('a' + bytes % 26));
    for (int i = 0; i < stored; ++i) {
      refused += store.set(std::to_string(i), value) != 0;
      wrong += store.get(std::to_string(i)) != value;
    }
    INFO(bytes << " bytes");
    CHECK((refused == 0 && wrong == 0));
  }
}

TEST_CASE("ark-edges: loading from an empty file finds no store, and leaves it empty") {
  char path[] = "/var/tmp/lunar-test-ark-edges-XXXXXX";
  const int fd = mkstemp(path);
  REQUIRE(fd >= 0);
  ARK* ark = nullptr;
  CHECK(ark_create(path, &ark, ARK_KV_PERSIST_LOAD) == ENOENT);
  struct stat status;
  REQUIRE(fstat(fd, &status) == 0);
  CHECK(status.st_size == 0);
  close(fd);
  unlink(path);
}

TEST_CASE("ark-edges: a thread that is to be cancelled still deletes a store whole") {
  Store store("mem:4m", 1);
  Finished done;
  REQUIRE(ark_exists_async_cb(store.ark, 5, some, Finished::callback, done.tag()) == 0);
  done.wait_for(1);
  static int rc;
  rc = -1;
  pthread_t thread;
  const auto main = [](void* ark) -> void* {
    pthread_cancel(pthread_self());  // at the next cancellation point
    rc = ark_delete(static_cast<ARK*>(ark));
    pthread_testcancel();
    return nullptr;
  };
  REQUIRE(pthread_create(&thread, nullptr, main, store.ark) == 0);
  void* result = nullptr;
  REQUIRE(pthread_join(thread, &result) == 0);
  CHECK(result == PTHREAD_CANCELED);
  CHECK(rc == 0);
  store.ark = nullptr;
}

TEST_CASE(
    "ark-edges: a place beyond the limit of file sizes is refused, not the end of the program") {
  char path[] = "/var/tmp/lunar-ark-limit-XXXXXX";
  const int fd = mkstemp(path);
  REQUIRE(fd >= 0);
  constexpr rlim_t kBytes = 1 << 30;
  REQUIRE(ftruncate(fd, kBytes) == 0);  // as long as it will be: nothing has to be appended
  rlimit before{};
  REQUIRE(getrlimit(RLIMIT_FSIZE, &before) == 0);
  const rlimit lower{kBytes / 16, before.rlim_max};
  REQUIRE(setrlimit(RLIMIT_FSIZE, &lower) == 0);
  setenv("LUNAR_KV_DRAM", "32m", 1);
  {
    Store store(path);
    for (int i = 0; store.status == 0 && i < 60'000; ++i)
      (void)store.set(std::to_string(i), std::string(4000, 'v'));
    CHECK(store.status == EFBIG);
  }
  unsetenv("LUNAR_KV_DRAM");
  CHECK(setrlimit(RLIMIT_FSIZE, &before) == 0);
  close(fd);
  unlink(path);
}

TEST_CASE(
    "ark-edges: a connection takes memory for the calls that it has under way, not for those that "
    "it may") {
  const Store store;
  const uint64_t before = resident();
  REQUIRE(before != 0);
  ARC* connection = nullptr;
  REQUIRE(ark_connect_verbose(&connection, store.ark, 1 << 20) == 0);
  CHECK(resident() < before + (16ull << 20));
  CHECK(ark_disconnect(connection) == 0);
}

TEST_CASE("ark-edges: a size beyond what the place has is refused, and takes nothing of it") {
  const File physical(48 << 20);
  const std::string stripe = "/var/tmp=/var/tmp";
  constexpr uint64_t kTooMuch = uint64_t{1} << 60;
  for (const char* path : {static_cast<const char*>("/var/tmp"), stripe.c_str(), physical.path}) {
    const uint64_t flags = path == physical.path ? ARK_KV_VIRTUAL_LUN : 0;
    INFO(path);
    ARK* ark = nullptr;
    CHECK(ark_create_verbose(const_cast<char*>(path), &ark, kTooMuch, 0, 0, 1, 0, 0, flags) ==
          ENOSPC);
    CHECK(ark == nullptr);
    setenv("LUNAR_KV_SIZE", "100t", 1);
    CHECK(ark_create_verbose(const_cast<char*>(path), &ark, 0, 0, 0, 1, 0, 0, flags) == ENOSPC);
    CHECK(ark == nullptr);
    unsetenv("LUNAR_KV_SIZE");
  }
  const Store store(physical.path, 1, 0, 0, ARK_KV_VIRTUAL_LUN);  // the default size is a wish
  CHECK(store.status == 0);
}
