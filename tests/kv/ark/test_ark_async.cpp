// SPDX-License-Identifier: Apache-2.0
// libarkdb, asynchronous calls: results, limits, callbacks that issue, disconnect and outlive their
// connection.
#include <pthread.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <vector>

#include "ark_support.h"
#include "tests/catch.h"

using namespace ark_test;

namespace {

char some[] = "12345";

// Holds every callback that comes to it until it is opened.
struct Gate {
  std::mutex lock;
  std::condition_variable changed;
  bool open = false;
  int held = 0;
  std::atomic<int> passed{0};

  static void callback(int, uint64_t dt, int64_t) {
    auto* gate = reinterpret_cast<Gate*>(dt);
    std::unique_lock<std::mutex> guard(gate->lock);
    ++gate->held;
    gate->changed.notify_all();
    gate->changed.wait(guard, [&] { return gate->open; });
    ++gate->passed;
  }
  uint64_t tag() { return reinterpret_cast<uint64_t>(this); }
  void wait_for(int count) {
    std::unique_lock<std::mutex> guard(lock);
    changed.wait(guard, [&] { return held >= count; });
  }
  void release() {
    std::lock_guard<std::mutex> guard(lock);
    open = true;
    changed.notify_all();
  }
};

}  // namespace

TEST_CASE("ark-async: results are those of the blocking calls, on another thread") {
  Store store;
  static pthread_t caller, called;
  caller = pthread_self();
  Finished done;
  char value[] = "value", buffer[8] = ".......";
  REQUIRE(ark_set_async_cb(store.ark, 5, some, 5, value, Finished::callback, done.tag()) == 0);
  done.wait_for(1);
  CHECK(done.errcode == 0);
  CHECK(done.res == 5);
  REQUIRE(ark_get_async_cb(store.ark, 5, some, 3, buffer, 1, Finished::callback, done.tag()) == 0);
  done.wait_for(2);
  CHECK(done.errcode == 0);
  CHECK(done.res == 5);
  CHECK(std::string(buffer) == "alu....");
  REQUIRE(ark_exists_async_cb(store.ark, 5, some, Finished::callback, done.tag()) == 0);
  done.wait_for(3);
  CHECK(done.res == 5);
  REQUIRE(ark_del_async_cb(store.ark, 5, some, Finished::callback, done.tag()) == 0);
  done.wait_for(4);
  CHECK(done.res == 5);
  REQUIRE(ark_exists_async_cb(store.ark, 5, some, Finished::callback, done.tag()) == 0);
  done.wait_for(5);
  CHECK(done.errcode == ENOENT);
  CHECK(done.res == -1);
  REQUIRE(ark_set_async_cb(
              store.ark, 0, nullptr, 0, nullptr,
              [](int, uint64_t dt, int64_t) {
                called = pthread_self();
                reinterpret_cast<Finished*>(dt)->note(0, 0);
              },
              done.tag()) == 0);
  done.wait_for(6);
  CHECK(pthread_equal(caller, called) == 0);
  CHECK(store.count() == 1);
}

TEST_CASE("ark-async: EAGAIN when a connection has no more, and again not when one is back") {
  Store store("mem:8m", 2, 0, 3);
  Gate gate;
  for (int i = 0; i < 3; ++i)
    REQUIRE(ark_exists_async_cb(store.ark, 5, some, Gate::callback, gate.tag()) == 0);
  CHECK(ark_exists_async_cb(store.ark, 5, some, Gate::callback, gate.tag()) == EAGAIN);
  ARC* arc = nullptr;  // has its own
  REQUIRE(ark_connect_verbose(&arc, store.ark, 1) == 0);
  REQUIRE(ark_exists_async_cb(arc, 5, some, Gate::callback, gate.tag()) == 0);
  CHECK(ark_exists_async_cb(arc, 5, some, Gate::callback, gate.tag()) == EAGAIN);
  int64_t res;
  CHECK(ark_set(store.ark, 5, some, 5, some, &res) == 0);  // these never are
  gate.release();
  REQUIRE(ark_disconnect(arc) == 0);
  CHECK(gate.passed == 4);  // the same queue, in order
  Finished done;
  int rc;
  while ((rc = ark_exists_async_cb(store.ark, 5, some, Finished::callback, done.tag())) == EAGAIN)
    usleep(100);
  REQUIRE(rc == 0);
  done.wait_for(1);
}

TEST_CASE("ark-async: EAGAIN when a thread's queue is full") {
  Store store("mem:8m", 1, 48, 1000);
  Gate gate;
  REQUIRE(ark_exists_async_cb(store.ark, 5, some, Gate::callback, gate.tag()) == 0);
  gate.wait_for(1);  // it holds the only thread
  int taken = 0;
  while (ark_exists_async_cb(store.ark, 5, some, Gate::callback, gate.tag()) == 0) ++taken;
  CHECK(taken == 48);
  CHECK(ark_exists_async_cb(store.ark, 5, some, Gate::callback, gate.tag()) == EAGAIN);
  gate.release();
  REQUIRE(ark_delete(store.ark) == 0);
  store.ark = nullptr;
  CHECK(gate.passed == 49);  // what was accepted calls back, also when the store ends
}

TEST_CASE("ark-async: a callback may use the blocking calls, disconnect, and not delete or fork") {
  Store store("mem:8m", 2);
  struct Seen {
    ARC* arc;
    ARK* ark;
    Finished done;
    int set, disconnect, again, remove, issue;
    pid_t pid;
    int fork_errno;
  } seen{};
  seen.ark = store.ark;
  REQUIRE(ark_connect_verbose(&seen.arc, store.ark, 8) == 0);
  const auto callback = [](int, uint64_t dt, int64_t) {
    auto* s = reinterpret_cast<Seen*>(dt);
    int64_t res;
    s->set = ark_set(s->arc, 5, some, 5, some, &res);
    s->remove = ark_delete(s->ark);
    s->pid = ark_fork(s->ark);
    s->fork_errno = errno;
    s->disconnect = ark_disconnect(s->arc);
    s->again = ark_disconnect(s->arc);
    s->issue = ark_exists_async_cb(s->arc, 5, some, Finished::callback, 0);
    s->done.note(0, 0);
  };
  REQUIRE(ark_exists_async_cb(seen.arc, 1, some, callback, reinterpret_cast<uint64_t>(&seen)) == 0);
  seen.done.wait_for(1);
  CHECK(seen.set == 0);
  CHECK(seen.remove == EDEADLK);
  CHECK(seen.pid == -1);
  CHECK(seen.fork_errno == EDEADLK);
  CHECK(seen.disconnect == 0);
  CHECK(seen.again == EINVAL);
  CHECK(seen.issue == EINVAL);
  CHECK(store.count() == 1);
  int64_t res;
  CHECK(ark_set(seen.arc, 5, some, 5, some, &res) == EINVAL);
}

TEST_CASE(
    "ark-async: after disconnect no callback comes; many at one time, while the store lives on") {
  Store store("mem:16m", 4);
  std::atomic<int> late{0}, failed{0};
  lunar_test::in_parallel(4, [&] {
    for (int round = 0; round < 50; ++round) {
      struct Watch {
        std::atomic<bool> closed{false};
        std::atomic<int>* late;
        std::atomic<int> came{0};
      } watch;
      watch.late = &late;
      ARC* arc = nullptr;
      if (ark_connect_verbose(&arc, store.ark, 64) != 0) {
        ++failed;
        return;
      }
      int issued = 0;
      for (int i = 0; i < 64; ++i) {
        issued += ark_set_async_cb(
                      arc, 1, &some[i % 5], 5, some,
                      [](int, uint64_t dt, int64_t) {
                        auto* w = reinterpret_cast<Watch*>(dt);
                        if (w->closed) ++*w->late;
                        ++w->came;
                      },
                      reinterpret_cast<uint64_t>(&watch)) == 0;
      }
      if (ark_disconnect(arc) != 0) ++failed;
      watch.closed = true;
      if (watch.came != issued) ++late;
    }
  });
  CHECK(late == 0);
  CHECK(failed == 0);
  CHECK(store.count() == 5);
}

TEST_CASE(
    "ark-async: many threads issue; the store ends under them and every accepted call has called "
    "back") {
  for (int round = 0; round < 10; ++round) {
    ARK* ark = nullptr;
    REQUIRE(ark_create_verbose(const_cast<char*>("mem:8m"), &ark, 0, 0, 0, 3, 48, 500, 0) == 0);
    std::atomic<int64_t> accepted{0}, other{0};
    static std::atomic<int64_t> called;
    called = 0;
    auto threads = lunar_test::start_threads(size_t{4}, [&](size_t t) {
      for (size_t i = 0;; ++i) {
        const int rc = ark_set_async_cb(
            ark, 2, &some[(t + i) % 3], 5, some, [](int, uint64_t, int64_t) { ++called; }, 0);
        if (rc == 0) ++accepted;
        if (rc == EINVAL) return;
        if (rc != 0 && rc != EAGAIN) ++other;
        if (rc == EAGAIN) sched_yield();
      }
    });
    usleep(3000);
    REQUIRE(ark_delete(ark) == 0);
    const int64_t by_then = called;
    threads.clear();
    CHECK(by_then == accepted);
    CHECK(called == accepted);
    CHECK(other == 0);
  }
}

TEST_CASE("ark-async: callbacks have room on their stack, and no signals of the program's") {
  Store store;
  static std::atomic<int> blocked{-1};
  Finished done;
  REQUIRE(ark_exists_async_cb(
              store.ark, 5, some,
              [](int, uint64_t dt, int64_t) {
                volatile char room[4 << 20];
                for (size_t i = 0; i < sizeof room; i += 4096) room[i] = 1;
                sigset_t mask;
                sigemptyset(&mask);
                pthread_sigmask(SIG_BLOCK, nullptr, &mask);
                blocked = sigismember(&mask, SIGUSR1) + room[0] - 1;
                reinterpret_cast<Finished*>(dt)->note(0, 0);
              },
              done.tag()) == 0);
  done.wait_for(1);
  CHECK(blocked == 1);
}

TEST_CASE("ark-async: a store that has nothing to do uses no CPU") {
  Store store("mem:8m", 8);
  Finished done;
  for (int i = 0; i < 64; ++i) {
    static char keys[64];
    keys[i] = static_cast<char>(i);
    REQUIRE(ark_set_async_cb(store.ark, 1, &keys[i], 5, some, Finished::callback, done.tag()) == 0);
  }
  done.wait_for(64);
  usleep(20'000);
  timespec before{}, after{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &before);
  usleep(300'000);
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &after);
  const double used = static_cast<double>(after.tv_sec - before.tv_sec) +
                      static_cast<double>(after.tv_nsec - before.tv_nsec) / 1e9;
  CHECK(used < 0.02);
}

TEST_CASE("ark-async: a key's order holds between what is carried out at once and what waits") {
  Store store("mem:256m", 4, 400, 4000);
  std::atomic<int> wrong{0}, failed{0};
  lunar_test::in_parallel(3, [&](int t) {
    // Small values are set by this thread, large ones by the pool's.
    constexpr size_t kRounds = 60, kKeys = 4;
    std::vector<std::string> keys, values, read(kRounds, std::string(200'000, '.'));
    for (size_t k = 0; k < kKeys; ++k) keys.push_back(std::to_string(t) + "/" + std::to_string(k));
    for (size_t i = 0; i < kRounds; ++i)
      values.emplace_back(i % 3 == 1 ? 150'000 + i : 10 + i, char('A' + i % 50));
    Finished done;
    for (size_t i = 0; i < kRounds; ++i) {
      std::string& key = keys[i / 3 % kKeys];
      failed += ark_set_async_cb(store.ark, key.size(), data_of(key), values[i].size(),
                                 data_of(values[i]), Finished::callback, done.tag()) != 0;
      failed += ark_get_async_cb(store.ark, key.size(), data_of(key), read[i].size(),
                                 read[i].data(), 0, Finished::callback, done.tag()) != 0;
    }
    done.wait_for(2 * kRounds);
    for (size_t i = 0; i < kRounds; ++i)
      wrong +=
          read[i].compare(0, values[i].size(), values[i]) != 0 || read[i][values[i].size()] != '.';
  });
  CHECK(failed == 0);
  CHECK(wrong == 0);
}

namespace {

// Issues itself again, a given number of times, and notes how much stack that takes.
struct Endless {
  ARK* ark = nullptr;
  std::atomic<int64_t> left{0};
  uintptr_t lowest = UINTPTR_MAX, highest = 0;
  std::atomic<int> inside{0}, nested{0}, failed{0};
  Finished done;
  char buffer[8] = {};
  static void callback(int errcode, uint64_t dt, int64_t res) {
    auto* chain = reinterpret_cast<Endless*>(dt);
    char here;
    const auto address = reinterpret_cast<uintptr_t>(&here);
    if (address < chain->lowest) chain->lowest = address;
    if (address > chain->highest) chain->highest = address;
    if (chain->inside++ != 0) ++chain->nested;
    if (errcode != 0 || res != 5) ++chain->failed;
    if (--chain->left <= 0)
      chain->done.note(0, 0);
    else if (chain->issue() != 0)
      ++chain->failed, chain->done.note(0, 0);
    --chain->inside;
  }
  int issue() {
    return ark_get_async_cb(ark, 5, some, sizeof buffer, buffer, 0, callback,
                            reinterpret_cast<uint64_t>(this));
  }
};

}  // namespace

TEST_CASE(
    "ark-async: a million operations, each issued by the callback of the last one, take no more "
    "stack than one") {
  Store store("mem:8m", 2);
  REQUIRE(store.set("12345", "value") == 0);
  Endless chain;
  chain.ark = store.ark;
  chain.left = 1'000'000;
  REQUIRE(chain.issue() == 0);
  chain.done.wait_for(1);
  CHECK(chain.failed == 0);
  CHECK(chain.nested == 0);
  CHECK(chain.highest - chain.lowest < 4096);
}

TEST_CASE("ark-async: a chain that never ends on a thread leaves room for the others' operations") {
  Store store("mem:64m", 1);
  REQUIRE(store.set("12345", "value") == 0);
  Endless chain;
  chain.ark = store.ark;
  chain.left = INT64_MAX;
  REQUIRE(chain.issue() == 0);
  Finished done;
  std::string large(1 << 20, 'x'), other = "other";
  char buffer[8];
  for (uint64_t i = 1; i <= 50; ++i) {  // carried out by the thread, and by this one
    REQUIRE(ark_set_async_cb(store.ark, 5, data_of(other), large.size(), data_of(large),
                             Finished::callback, done.tag()) == 0);
    REQUIRE(ark_get_async_cb(store.ark, 5, some, 8, buffer, 0, Finished::callback, done.tag()) ==
            0);
    done.wait_for(2 * i);
  }
  chain.left = 1;
  chain.done.wait_for(1);
  CHECK(chain.failed == 0);
}

TEST_CASE("ark-async: a caller may hold a lock that its callback takes") {
  Store store("mem:8m", 2, 100, 100);
  static std::mutex lock;
  Finished done;
  for (uint64_t i = 1; i <= 200; ++i) {
    {
      std::lock_guard<std::mutex> guard(lock);
      REQUIRE(ark_set_async_cb(
                  store.ark, 5, some, 5, some,
                  [](int errcode, uint64_t dt, int64_t res) {
                    std::lock_guard<std::mutex> inner(lock);
                    Finished::callback(errcode, dt, res);
                  },
                  done.tag()) == 0);
    }
    done.wait_for(i);
  }
}
