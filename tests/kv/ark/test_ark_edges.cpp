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

TEST_CASE("ark-edges: a call with an argument that cannot be writes nothing") {
  Store store;
  ARK* ark = store.ark;
  REQUIRE(store.set("12345", "v") == 0);
  char key[8] = "first";
  int64_t found = 0;
  ARI* iterator = ark_first(ark, sizeof key, &found, key);
  REQUIRE(iterator != nullptr);
  for (const bool handle : {false, true}) {
    ARK* bad = handle ? ark : nullptr;
    ARI* walk = handle ? iterator : nullptr;
    void* none = handle ? nullptr : some;  // a bad handle, or a bad argument
    const uint64_t room = handle ? 0 : 5;
    int64_t res = 7;
    uint64_t size = 7, other = 7;
    CHECK((ark_set(bad, 5, none, 5, some, &res) == EINVAL && res == 7));
    CHECK((ark_set(bad, 5, some, 5, none, &res) == EINVAL && res == 7));
    CHECK((ark_get(bad, 5, none, 5, some, 0, &res) == EINVAL && res == 7));
    CHECK((ark_get(bad, 5, some, 5, none, 0, &res) == EINVAL && res == 7));
    CHECK((ark_del(bad, 5, none, &res) == EINVAL && res == 7));
    CHECK((ark_exists(bad, 5, none, &res) == EINVAL && res == 7));
    CHECK((ark_random(bad, 5, &size, none) == EINVAL && size == 7));
    CHECK((ark_random(bad, room, &size, none) == EINVAL && size == 7));
    errno = 0;
    CHECK((ark_first(bad, 5, &res, none) == nullptr && res == 7 && errno == EINVAL));
    errno = 0;
    CHECK((ark_first(bad, room, &res, none) == nullptr && res == 7 && errno == EINVAL));
    CHECK((ark_next(walk, 5, &res, none) == EINVAL && res == 7));
    CHECK((ark_next(walk, room, &res, none) == EINVAL && res == 7));
    CHECK((ark_nextN(walk, 5, none, &res) == EINVAL && res == 7));
    CHECK((ark_nextN(walk, room, none, &res) == EINVAL && res == 7));
    if (!handle) {
      CHECK((ark_count(bad, &res) == EINVAL && res == 7));
      CHECK((ark_allocated(bad, &size) == EINVAL && size == 7));
      CHECK((ark_inuse(bad, &size) == EINVAL && size == 7));
      CHECK((ark_actual(bad, &size) == EINVAL && size == 7));
    }
    CHECK((ark_stats(bad, &size, handle ? nullptr : &other) == EINVAL && size == 7));
  }
  ARK* made = ark;
  CHECK((ark_create_verbose(nullptr, &made, 0, 0, 0, 0, 0, 0, 0) == EINVAL && made == ark));
  CHECK((ark_connect(&made, nullptr) == EINVAL && made == ark));
  CHECK((ark_create_verbose(const_cast<char*>("/nowhere/at all"), &made, 0, 0, 0, 1, 0, 0, 0) ==
             ENOENT &&
         made == ark));
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
  const auto resident = [] {
    unsigned long pages[2] = {0, 0};
    FILE* file = fopen("/proc/self/statm", "r");
    if (!file || fscanf(file, "%lu %lu", &pages[0], &pages[1]) != 2) pages[1] = 0;
    if (file) fclose(file);
    return pages[1] * static_cast<unsigned long>(sysconf(_SC_PAGESIZE));
  };
  const unsigned long before = resident();
  REQUIRE(before != 0);
  ARC* connection = nullptr;
  REQUIRE(ark_connect_verbose(&connection, store.ark, 1 << 20) == 0);
  CHECK(resident() < before + (16ul << 20));
  CHECK(ark_disconnect(connection) == 0);
}

TEST_CASE(
    "ark-edges: a store whose descriptors the program closed fails, and writes nothing to the "
    "program's files") {
  setenv("LUNAR_KV_DRAM", "6m", 1);
  for (const uint64_t flags : {uint64_t{0}, uint64_t{ARK_KV_PERSIST_STORE}}) {
    const File file(16 << 20), own(0);
    const pid_t pid = fork();
    if (pid == 0) {
      const Store store(file.path, 2, 0, 0, flags);
      if (store.status != 0 || store.set("a", "b") != 0) _exit(2);
      for (int fd = 3; fd < 4096; ++fd) close(fd);
      for (int i = 0; i < 20; ++i)
        if (open(own.path, O_RDWR) < 0) _exit(3);
      int refused = 0;
      for (int i = 0; i < 6000; ++i)
        refused += store.set(std::to_string(i % 2000), std::string(2000, 'v')) != 0;
      const bool flushed = ark_flush(store.ark) == 0;
      _exit(refused == 0 || (flags != 0 && flushed) ? 4 : 0);
    }
    int ended = -1;
    REQUIRE((waitpid(pid, &ended, 0) == pid && WIFEXITED(ended)));
    CHECK(WEXITSTATUS(ended) == 0);
    struct stat status;
    REQUIRE(stat(own.path, &status) == 0);
    CHECK(status.st_size == 0);
  }
  unsetenv("LUNAR_KV_DRAM");
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
