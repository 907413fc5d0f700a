// SPDX-License-Identifier: Apache-2.0
// libarkdb across fork.
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <thread>
#include <vector>

#include "ark_support.h"
#include "tests/catch.h"

#ifdef __SANITIZE_THREAD__
// Forked children of a program with threads start threads of their own here.
extern "C" const char* __tsan_default_options() { return "die_after_fork=0"; }
#endif

using namespace ark_test;

namespace {

#define IN_CHILD(condition)                      \
  do {                                           \
    if (!(condition)) _exit(__LINE__ % 200 + 1); \
  } while (0)

// Whether a descriptor of this process leads to the file.
bool has_open(const char* path) {
  struct stat wanted, own;
  if (stat(path, &wanted) != 0) return false;
  for (int fd = 3; fd < 2048; ++fd)
    if (fstat(fd, &own) == 0 && own.st_ino == wanted.st_ino && own.st_dev == wanted.st_dev)
      return true;
  return false;
}

int status_of(pid_t pid) {
  int status = -1;
  return waitpid(pid, &status, 0) == pid && WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

}  // namespace

TEST_CASE(
    "ark-fork: the child has the store as it was, all calls work there, and neither sees the "
    "other's changes") {
  Store store("mem:16m", 2);
  Store other("mem:4m", 1);
  for (int i = 0; i < 200; ++i) REQUIRE(store.set("key " + std::to_string(i), "before") == 0);
  REQUIRE(other.set("a", "b") == 0);
  ARC* arc = nullptr;
  REQUIRE(ark_connect(&arc, store.ark) == 0);
  char key[16];
  int64_t length = 0;
  ARI* iterator = ark_first(arc, sizeof key, &length, key);
  REQUIRE(iterator != nullptr);
  Finished warm;  // threads of the parent's that the child has not
  REQUIRE(ark_exists_async_cb(arc, 1, key, Finished::callback, warm.tag()) == 0);
  warm.wait_for(1);
  const pid_t pid = ark_fork(arc);
  REQUIRE(pid >= 0);
  if (pid == 0) {
    IN_CHILD(store.count() == 200);
    IN_CHILD(store.get("key 7") == "before");
    IN_CHILD(store.set("key 7", "child") == 0);
    IN_CHILD(store.get("key 7") == "child");
    int64_t res;
    IN_CHILD(ark_exists(other.ark, 1, key, &res) == EINVAL);
    IN_CHILD(ark_delete(other.ark) == EINVAL);
    Finished done;
    IN_CHILD(ark_set_async_cb(arc, 1, key, 5, key, Finished::callback, done.tag()) == 0);
    done.wait_for(1);
    IN_CHILD(done.errcode == 0);
    int seen = 1;
    while (ark_next(iterator, sizeof key, &length, key) == 0) ++seen;
    IN_CHILD(seen >= 200);
    IN_CHILD(ark_fork_done(arc) == 0);
    IN_CHILD(ark_disconnect(arc) == 0);
    IN_CHILD(ark_delete(store.ark) == 0);
    store.ark = other.ark = nullptr;
    Store fresh("mem:4m", 1);
    IN_CHILD(fresh.status == 0 && fresh.set("a", "b") == 0);
    _exit(0);
  }
  CHECK(status_of(pid) == 0);
  CHECK(ark_fork_done(store.ark) == 0);
  CHECK(store.get("key 7") == "before");
  CHECK(store.count() == 200);
  CHECK(other.get("a") == "b");
}

TEST_CASE("ark-fork: under load the child's store is whole and stands still") {
  Store store("mem:32m", 4, 0, 64);
  for (int i = 0; i < 100; ++i) REQUIRE(store.set(std::to_string(i), std::string(100, 'a')) == 0);
  std::atomic<bool> stop{false};
  std::atomic<int> wrong{0};
  auto threads = lunar_test::start_threads(3, [&](int t) {
    for (int i = 0; !stop; ++i) {
      const std::string key = std::to_string((i * 3 + t) % 100);
      wrong += store.set(key, std::string(static_cast<size_t>(50 + i % 100),
                                          static_cast<char>('a' + i % 26))) != 0;
      static char shared[] = "shared";
      const int rc =
          ark_set_async_cb(store.ark, 6, shared, 6, shared, [](int, uint64_t, int64_t) {}, 0);
      wrong += rc != 0 && rc != EAGAIN;
    }
  });
  for (int round = 0; round < 10; ++round) {
    const pid_t pid = ark_fork(store.ark);
    REQUIRE(pid >= 0);
    if (pid == 0) {
      // Does not use the heap, because AddressSanitizer's stays locked in a child if another thread
      // was in it.
      for (int turn = 0; turn < 2; ++turn) {
        for (int i = 0; i < 100; ++i) {
          char value[200];
          int64_t length = 0;
          const std::string key = std::to_string(i);
          IN_CHILD(ark_get(store.ark, key.size(), data_of(key), sizeof value, value, 0, &length) ==
                   0);
          IN_CHILD(length >= 50 && length <= 150);
          for (int64_t at = 0; at < length; ++at) IN_CHILD(value[at] == value[0]);
        }
        const int64_t count = store.count();
        IN_CHILD(count == 100 || count == 101);
      }
      _exit(0);
    }
    CHECK(status_of(pid) == 0);
    CHECK(ark_fork_done(store.ark) == 0);
  }
  stop = true;
  threads.clear();
  CHECK(wrong == 0);
}

TEST_CASE("ark-fork: a store on a device does not fork, and says so") {
  Store store("sim:64m", 1);
  REQUIRE(store.status == 0);
  REQUIRE(store.set("a", "b") == 0);
  errno = 0;
  CHECK(ark_fork(store.ark) == -1);
  CHECK(errno == ENOTSUP);
  CHECK(store.get("a") == "b");
}

// Not with ThreadSanitizer: there, a forked child of any program crashes when its last thread
// returns from its start routine.
#ifndef __SANITIZE_THREAD__
TEST_CASE(
    "ark-fork: a callback that forks and returns in the child ends it there, and nothing runs "
    "twice") {
  Store store("mem:4m", 1);
  static std::atomic<pid_t> child;
  child = 0;
  Finished done;
  static char key[] = "k";
  REQUIRE(ark_set_async_cb(
              store.ark, 1, key, 1, key, [](int, uint64_t, int64_t) { child = fork(); }, 0) == 0);
  for (int i = 0; i < 20; ++i)
    REQUIRE(ark_set_async_cb(store.ark, 1, key, 1, key, Finished::callback, done.tag()) == 0);
  done.wait_for(20);
  REQUIRE(child > 0);
  CHECK(status_of(child) == 0);
  CHECK(done.count() == 20);
}
#endif

TEST_CASE("ark-fork: in a child of a plain fork all handles are closed") {
  Store store("mem:4m", 1);
  REQUIRE(store.set("a", "b") == 0);
  const pid_t pid = fork();
  REQUIRE(pid >= 0);
  if (pid == 0) {
    char key[4];
    int64_t length;
    IN_CHILD(store.count() == -1);
    IN_CHILD(ark_first(store.ark, sizeof key, &length, key) == nullptr && errno == EINVAL);
    IN_CHILD(ark_delete(store.ark) == EINVAL);
    Store fresh("mem:4m", 1);
    IN_CHILD(fresh.status == 0 && fresh.set("c", "d") == 0 && fresh.get("c") == "d");
    _exit(0);
  }
  CHECK(status_of(pid) == 0);
  CHECK(store.get("a") == "b");
}

// Descriptors of this process that are command rings. Allocates nothing, because a child of threads
// calls it.
static int rings() {
  int count = 0;
  for (int fd = 0; fd < 256; ++fd) {
    char name[32], target[64];
    snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
    const ssize_t bytes = readlink(name, target, sizeof target - 1);
    if (bytes < 0) continue;
    target[bytes] = 0;
    count += strstr(target, "io_uring") != nullptr;
  }
  return count;
}

// Threads that read have rings, which hold the files.
static void read_by_callbacks(const Store& store) {
  Finished done;
  std::string keys[2000], buffers[2000];
  for (size_t i = 0; i < 2000; ++i) {
    keys[i] = "key " + std::to_string(i), buffers[i].resize(2000);
    while (ark_get_async_cb(store.ark, keys[i].size(), data_of(keys[i]), 2000, buffers[i].data(), 0,
                            Finished::callback, done.tag()) == EAGAIN)
      sched_yield();
  }
  done.wait_for(2000);
  CHECK(done.errcode == 0);
}

// The child: says that it runs, and ends when `end` does.
[[noreturn]] static void keep_nothing(int end, int runs, bool stripe) {
  char byte = 'r';
  IN_CHILD(stripe || rings() == 0);  // a stripe has more: of its blocking calls
  IN_CHILD(write(runs, &byte, 1) == 1);
  int own[16];  // numbers that were the store's among them: no business of a later fork
  for (int& fd : own) fd = dup(end);
  const pid_t grandchild = fork();
  IN_CHILD(grandchild >= 0);
  for (const int fd : own) IN_CHILD(fcntl(fd, F_GETFD) >= 0);
  if (grandchild == 0) _exit(0);
  IN_CHILD(status_of(grandchild) == 0);
  _exit(read(end, &byte, 1) == 0 ? 0 : 1);
}

TEST_CASE("ark-fork: a child of a plain fork keeps no store's place in use") {
  setenv("LUNAR_KV_DRAM", "6m", 1);
  setenv("LUNAR_KV_SIZE", "16m", 1);
  constexpr uint64_t kKept = ARK_KV_PERSIST_STORE | ARK_KV_PERSIST_LOAD;
  struct Place {
    uint64_t file_bytes, flags;
    bool stripe;
  };
  for (const Place& place : {Place{0, 0, false}, Place{32 << 20, 0, false},
                             Place{32 << 20, kKept, false}, Place{32 << 20, 0, true}}) {
    char left[] = "/var/tmp/lunar-test-ark-fork-XXXXXX",
         right[] = "/var/tmp/lunar-test-ark-fork-XXXXXX";
    for (char* name : {left, right}) {
      const int fd = mkstemp(name);
      REQUIRE(
          (fd >= 0 && ftruncate(fd, static_cast<off_t>(place.file_bytes)) == 0 && close(fd) == 0));
    }
    const std::string path = place.stripe ? std::string(left) + "=" + right : left;
    INFO(path << ", " << place.file_bytes << " bytes, flags " << place.flags);
    int fds[2], runs[2];
    REQUIRE((pipe(fds) == 0 && pipe(runs) == 0));
    pid_t pid;
    {
      Store store(path.c_str(), 2, 0, 0, place.flags);
      REQUIRE((store.status == 0 && store.set("a", "b") == 0));
      for (int i = 0; i < 6000; ++i)
        REQUIRE(store.set("key " + std::to_string(i % 2000), std::string(2000, 'v')) == 0);
      read_by_callbacks(store);
      uint64_t ops = 0, ios = 0;
      REQUIRE((ark_stats(store.ark, &ops, &ios) == 0 && ios > 500));
      char key[32];
      int64_t length = 0;
      REQUIRE(ark_first(store.ark, sizeof key, &length, key) !=
              nullptr);  // also reads ahead, by a ring
      pid = fork();
      REQUIRE(pid >= 0);
      if (pid == 0) {  // until the parent's end of the pipe is closed
        close(fds[1]);
        keep_nothing(fds[0], runs[1], place.stripe);
      }
      char byte;
      close(runs[1]);
      CHECK(read(runs[0], &byte, 1) == 1);
      CHECK(store.get("a") == "b");
    }
    {
      Store again(path.c_str(), 2, 0, 0, place.flags);
      CHECK(again.status == 0);
      if (place.flags) CHECK(again.get("a") == "b");
    }
    close(fds[1]);
    CHECK(status_of(pid) == 0);
    for (const int fd : {fds[0], runs[0]}) close(fd);
    unlink(left);
    unlink(right);
  }
  unsetenv("LUNAR_KV_SIZE");
  unsetenv("LUNAR_KV_DRAM");
}

TEST_CASE(
    "ark-fork: a child that is forked while another thread opens or closes a store keeps nothing "
    "of it") {
  setenv("LUNAR_KV_DRAM", "6m", 1);
  const File file(16 << 20);
  constexpr uint64_t kKept = ARK_KV_PERSIST_STORE | ARK_KV_PERSIST_LOAD;
  std::atomic<bool> stop{false};
  std::atomic<int> refused{0};
  std::thread thread([&] {
    while (!stop) {
      const Store store(file.path, 1, 0, 0, kKept);
      refused += store.status != 0 || store.set("a", "b") != 0;
    }
  });
  int kept = 0, failed = 0;
  for (int i = 0; i < 200; ++i) {
    for (int tries = 0; tries < 200 && !has_open(file.path); ++tries) usleep(50);
    const pid_t pid = fork();
    if (pid == 0) _exit(has_open(file.path) ? 1 : 0);
    const int status = status_of(pid);
    kept += status == 1;
    failed += status > 1 || status < 0;
  }
  stop = true;
  thread.join();
  CHECK(kept == 0);
  CHECK(failed == 0);
  CHECK(refused == 0);
  unsetenv("LUNAR_KV_DRAM");
}
