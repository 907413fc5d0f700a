// SPDX-License-Identifier: Apache-2.0
// libarkdb, asynchronous gets of records that lie on a device: many at one time, their order with
// sets (durable ones as well), reads that fail, callbacks that issue. The device is a file, or sim:
// with latency and errors.
#include <dirent.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include "ark_support.h"
#include "tests/catch.h"

using namespace ark_test;

namespace {

constexpr size_t kKeys = 6000;

std::string value_of(size_t key, size_t version) {
  std::string text = std::to_string(key) + "/" + std::to_string(version) + "/";
  while (text.size() < 200 + (key * 7919 + version) % 5000) text += text;
  return text;
}

// 16 MB of records on a device, with 8 MiB of DRAM. With ARK_KV_PERSIST_LOAD it sets none.
struct ColdStore : Store {
  explicit ColdStore(const std::string& faults, int threads = 4)
      : ColdStore("sim:128m" + faults, threads, 0) {}
  ColdStore(const std::string& path, int threads, uint64_t flags)
      : Store((setenv("LUNAR_KV_DRAM", "8m", 1), path.c_str()), threads, 10'000, 10'000, flags) {
    unsetenv("LUNAR_KV_DRAM");
    for (size_t i = 0; (flags & ARK_KV_PERSIST_LOAD) == 0 && status == 0 && i < kKeys; ++i) {
      if (set(std::to_string(i), value_of(i, 0)) != 0) status = -1;
    }
  }
  uint64_t ios() const {
    uint64_t operations = 0, ios = 0;
    return ark_stats(ark, &operations, &ios) == 0 ? ios : 0;
  }
};

// One get, and what it should find.
struct Get {
  std::string key, expected, buffer;
  Finished* done = nullptr;
  std::atomic<int>*wrong = nullptr, *failed = nullptr;
  uint64_t done_ns = 0;

  int issue(ARK* ark, size_t number, size_t version) {
    key = std::to_string(number);
    expected = value_of(number, version);
    buffer.assign(expected.size() + 1, '.');
    return ark_get_async_cb(ark, key.size(), data_of(key), buffer.size(), buffer.data(), 0,
                            callback, reinterpret_cast<uint64_t>(this));
  }
  static void callback(int errcode, uint64_t dt, int64_t res) {
    auto* get = reinterpret_cast<Get*>(dt);
    if (errcode == EIO || errcode == EBADMSG || errcode == EBADF)
      ++*get->failed;
    else if (errcode != 0 || res != static_cast<int64_t>(get->expected.size()) ||
             get->buffer != get->expected + ".")
      ++*get->wrong;
    timespec now{};
    clock_gettime(CLOCK_MONOTONIC, &now);
    get->done_ns =
        static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(now.tv_nsec);
    get->done->note(0, 0);
  }
};

}  // namespace

// If reads were made one after the other, no two would end within the time of one, on any machine.
TEST_CASE("ark-cold: many gets of few threads are under way at one time") {
  constexpr uint64_t kLatencyMs = 10;
  ColdStore store(",latency_us=" + std::to_string(kLatencyMs * 1000), 1);
  REQUIRE(store.status == 0);
  const uint64_t before = store.ios();
  Finished done;
  std::atomic<int> wrong{0}, failed{0};
  std::vector<Get> gets(3000);
  for (size_t i = 0; i < gets.size(); ++i) {
    gets[i].done = &done, gets[i].wrong = &wrong, gets[i].failed = &failed;
    REQUIRE(gets[i].issue(store.ark, i, 0) == 0);
  }
  done.wait_for(gets.size());
  CHECK(wrong == 0);
  CHECK(failed == 0);
  const uint64_t reads = store.ios() - before;
  CHECK(reads > 2000);
  std::vector<uint64_t> ends;
  for (const Get& get : gets) ends.push_back(get.done_ns);
  std::sort(ends.begin(), ends.end());
  uint64_t together = 0;
  for (size_t i = 1; i < ends.size(); ++i)
    together += ends[i] - ends[i - 1] < kLatencyMs * 1'000'000 ? 1 : 0;
  // that many took no read of their own, or one beside another's
  CHECK(together > gets.size() - reads / 2);
}

namespace {

constexpr size_t kChanging = 5400;  // keys; every third of them is set

// The numbers of gets that gave a wrong value, of gets that failed, of sets that failed.
struct Outcome {
  std::atomic<int> wrong{0}, failed{0}, sets{0};
};

// Three threads issue get, get, set, get for each of their keys, without waiting in between.
void get_and_set(const ColdStore& store, Outcome* outcome) {
  lunar_test::in_parallel(size_t{3}, [&](size_t t) {
    Finished done;
    const size_t count = kChanging / 9;
    std::vector<Get> gets(count * 3);
    std::vector<std::string> values;
    for (size_t i = 0; i < count; ++i) values.push_back(value_of(t * count * 3 + i * 3, 1));
    for (size_t i = 0; i < count; ++i) {
      const size_t number = t * count * 3 + i * 3;
      for (size_t j = 0; j < 3; ++j) {
        Get& get = gets[i * 3 + j];
        get.done = &done, get.wrong = &outcome->wrong, get.failed = &outcome->failed;
        if (j == 2) {
          std::string& key = gets[i * 3].key;
          if (ark_set_async_cb(
                  store.ark, key.size(), data_of(key), values[i].size(), data_of(values[i]),
                  [](int errcode, uint64_t dt, int64_t) {
                    *reinterpret_cast<std::atomic<int>*>(dt) += errcode != 0;
                  },
                  reinterpret_cast<uint64_t>(&outcome->sets)) != 0)
            ++outcome->sets;
        }
        if (get.issue(store.ark, number, j == 2 ? 1 : 0) != 0) ++outcome->wrong, done.note(0, 0);
      }
    }
    done.wait_for(gets.size());
  });
}

}  // namespace

TEST_CASE(
    "ark-cold: gets and sets of a key keep their order, also when reads fail or deliver damage") {
  for (const char* faults : {"", ",read_error=30,corrupt=30,seed=7"}) {
    ColdStore store(std::string(",latency_us=100") + faults);
    REQUIRE(store.status == 0);
    Outcome outcome;
    get_and_set(store, &outcome);
    // A set that failed (it could not read what was there) leaves the old value for one get.
    CHECK(outcome.wrong <= outcome.sets);
    CHECK(outcome.failed < 50);
    if (!*faults) { CHECK(outcome.wrong + outcome.failed + outcome.sets == 0); }
  }
}

// Sets wait for commits on threads of the pool, gets for the ring of one thread. A process that
// ends without ark_delete saves nothing at its end, so only committed pairs come back.
TEST_CASE("ark-cold: gets and sets by group commit keep their order, and what was set comes back") {
  const File file(128 << 20);
  { const ColdStore store(file.path, 4, ARK_KV_PERSIST_STORE); }
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    setenv("LUNAR_KV_DURABILITY", "group", 1);
    const ColdStore store(file.path, 24, ARK_KV_PERSIST_STORE | ARK_KV_PERSIST_LOAD);
    if (store.status != 0 || store.count() != kKeys) _exit(1);
    const uint64_t before = store.ios();
    Outcome outcome;
    get_and_set(store, &outcome);
    const bool right = outcome.wrong + outcome.failed + outcome.sets == 0;
    _exit(!right ? 2 : store.ios() - before < kChanging / 9 ? 3 : 0);
  }
  int status = -1;
  REQUIRE(waitpid(child, &status, 0) == child);
  REQUIRE(WIFEXITED(status));
  REQUIRE(WEXITSTATUS(status) == 0);
  const ColdStore store(file.path, 4, ARK_KV_PERSIST_LOAD);
  REQUIRE(store.status == 0);
  REQUIRE(store.count() == kKeys);
  size_t wrong = 0;
  for (size_t i = 0; i < kKeys; ++i)
    wrong +=
        store.get(std::to_string(i)) != value_of(i, i < kChanging && i % 3 == 0 ? 1 : 0) ? 1 : 0;
  CHECK(wrong == 0);
}

namespace {

// The threads that called back.
struct Callers {
  Finished done;
  std::mutex lock;
  std::set<pid_t> threads;
  std::atomic<int> failed{0};
  static void callback(int errcode, uint64_t dt, int64_t) {
    auto* callers = reinterpret_cast<Callers*>(dt);
    callers->failed += errcode != 0;
    {
      const std::lock_guard<std::mutex> guard(callers->lock);
      callers->threads.insert(gettid());
    }
    callers->done.note(0, 0);
  }
  uint64_t tag() { return reinterpret_cast<uint64_t>(this); }
};

}  // namespace

// A set waits for a commit or the device, and would delay all commands of its thread.
TEST_CASE("ark-cold: sets go to other threads than gets, where there are more than CPUs") {
  const int threads = static_cast<int>(std::thread::hardware_concurrency()) + 4;
  ColdStore store("", threads);
  REQUIRE(store.status == 0);
  std::vector<std::string> keys, buffers(1000, std::string(10'000, '.'));
  for (size_t i = 0; i < buffers.size(); ++i) keys.push_back(std::to_string(i));
  Callers sets, gets;
  for (std::string& key : keys)
    REQUIRE(ark_set_async_cb(store.ark, key.size(), data_of(key), 100, data_of(buffers[0]),
                             Callers::callback, sets.tag()) == 0);
  sets.done.wait_for(keys.size());
  for (size_t i = 0; i < keys.size(); ++i) {
    const std::string& key = keys[i] = std::to_string(keys.size() + i);
    REQUIRE(ark_get_async_cb(store.ark, key.size(), data_of(keys[i]), buffers[i].size(),
                             buffers[i].data(), 0, Callers::callback, gets.tag()) == 0);
  }
  gets.done.wait_for(keys.size());
  CHECK(sets.failed + gets.failed == 0);
  CHECK(!sets.threads.empty());
  for (const pid_t thread : gets.threads) CHECK(sets.threads.count(thread) == 0);
}

TEST_CASE(
    "ark-cold: callbacks issue the next get, beyond what a ring holds, and the store ends under "
    "them") {
  ColdStore store(",latency_us=50,read_error=200", 2);
  REQUIRE(store.status == 0);
  struct Chain : Get {
    ARK* ark = nullptr;
    size_t at = 0;
    std::atomic<int64_t>*calls = nullptr, *left = nullptr;
    std::atomic<int>* refused = nullptr;
    static void next(int errcode, uint64_t dt, int64_t res) {
      auto* chain = reinterpret_cast<Chain*>(dt);
      if (errcode != EIO && (errcode != 0 || res != static_cast<int64_t>(chain->expected.size()) ||
                             chain->buffer != chain->expected + "."))
        ++*chain->wrong;
      ++*chain->calls;
      if (--*chain->left <= 0 || chain->start() != 0) chain->done->note(0, 0);
    }
    int start() {
      at = (at * 5 + 1237) % kKeys;
      key = std::to_string(at);
      expected = value_of(at, 0);
      buffer.assign(expected.size() + 1, '.');
      const int rc = ark_get_async_cb(ark, key.size(), data_of(key), buffer.size(), buffer.data(),
                                      0, next, reinterpret_cast<uint64_t>(this));
      if (rc != 0 && rc != EINVAL) ++*refused;
      return rc;
    }
  };
  Finished done;
  std::atomic<int> wrong{0}, refused{0};
  std::atomic<int64_t> calls{0}, left{20'000};
  std::vector<Chain> chains(400);
  for (size_t i = 0; i < chains.size(); ++i) {
    Chain& chain = chains[i];
    chain.ark = store.ark, chain.at = i, chain.done = &done, chain.wrong = &wrong;
    chain.calls = &calls, chain.left = &left, chain.refused = &refused;
    REQUIRE(chain.start() == 0);
  }
  while (calls < 10'000) usleep(1000);
  REQUIRE(ark_delete(store.ark) == 0);
  store.ark = nullptr;
  CHECK(done.count() == chains.size());
  CHECK(wrong == 0);
  CHECK(refused == 0);
}

namespace {

std::set<int> descriptors() {
  std::set<int> found;
  DIR* directory = opendir("/proc/self/fd");
  while (const dirent* entry = directory ? readdir(directory) : nullptr) {
    const int fd = atoi(entry->d_name);
    if (entry->d_name[0] != '.' && fd != dirfd(directory)) found.insert(fd);
  }
  if (directory) closedir(directory);
  return found;
}

// Issues gets of all kinds from this thread. Returns how many gave neither the value nor an error.
int read_all(const ColdStore& store, ARI* walk) {
  Finished done;
  std::atomic<int> wrong{0}, failed{0};
  std::vector<Get> gets(300);
  uint64_t issued = 0;
  for (size_t i = 0; i < gets.size(); ++i) {
    gets[i].done = &done, gets[i].wrong = &wrong, gets[i].failed = &failed;
    issued += gets[i].issue(store.ark, i * 17 % kKeys, 0) == 0;
  }
  done.wait_for(issued);
  for (size_t i = 0; i < 20; ++i) {
    const std::string value = store.get(std::to_string(i * 31));
    wrong += value != value_of(i * 31, 0) && value != "(error)";
  }
  std::vector<char> keys(100'000);
  int64_t count = 0;
  for (int i = 0; i < 5; ++i) (void)ark_nextN(walk, keys.size() / 4, keys.data(), &count);
  return wrong;
}

}  // namespace

TEST_CASE(
    "ark-cold: the descriptors of a store, its threads and walks have numbers that no program "
    "counts on") {
  rlimit limit{};
  REQUIRE(getrlimit(RLIMIT_NOFILE, &limit) == 0);
  const int least = limit.rlim_cur > 1300 ? 1000 : static_cast<int>(limit.rlim_cur / 4 * 3);
  const std::set<int> before = descriptors();
  const File file(64 << 20);
  const ColdStore store(file.path, 2, 0);
  REQUIRE(store.status == 0);
  char key[64];
  int64_t length = 0;
  ARI* walk = ark_first(store.ark, sizeof key, &length, key);
  REQUIRE(walk != nullptr);
  CHECK(read_all(store, walk) == 0);
  size_t own = 0;
  for (const int fd : descriptors()) {
    if (before.count(fd)) continue;
    ++own;
    INFO("descriptor " << fd);
    CHECK(fd >= least);
  }
  CHECK(own >= 2);  // the file, and at least one ring
}

TEST_CASE(
    "ark-cold: a store whose descriptors the program closed fails: reads end with the value or an "
    "error, and nothing is written to the program's files") {
  for (const uint64_t flags : {uint64_t{0}, uint64_t{ARK_KV_PERSIST_STORE}}) {
    const File file(64 << 20), own(0);
    const pid_t pid = fork();
    if (pid == 0) {
      int result = 0;
      {
        const ColdStore store(file.path, 2, flags);
        char key[64];
        int64_t length = 0;
        ARI* walk = store.status == 0 ? ark_first(store.ark, sizeof key, &length, key) : nullptr;
        if (!walk || read_all(store, walk) != 0) _exit(2);
        for (int fd = 3; fd < 4096; ++fd) close(fd);
        for (int i = 0; i < 20; ++i)
          if (open(own.path, O_RDWR) < 0) _exit(3);
        if (read_all(store, walk) != 0) result = 4;
        int refused = 0;
        for (int i = 0; i < 6000; ++i)
          refused += store.set(std::to_string(i % 2000), std::string(2000, 'v')) != 0;
        const bool flushed = ark_flush(store.ark) == 0;
        if (refused == 0 || (flags != 0 && flushed)) result = 5;
      }
      _exit(result);  // after ark_delete
    }
    int ended = -1;
    REQUIRE((waitpid(pid, &ended, 0) == pid && WIFEXITED(ended)));
    CHECK(WEXITSTATUS(ended) == 0);
    struct stat status;
    REQUIRE(stat(own.path, &status) == 0);
    CHECK(status.st_size == 0);
  }
}
