// SPDX-License-Identifier: Apache-2.0
// lunar/kv.hpp, the asynchronous calls: by callback and by coroutine.
#include <pthread.h>
#include <signal.h>

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "kv_hpp_support.h"
#include "tests/catch.h"

using namespace kv_test;

namespace {

kv::Store store_of(const kv::Options& options = in_memory()) {
  kv::Result<kv::Store> opened = kv::Store::open(options);
  REQUIRE(code(opened) == 0);
  return std::move(*opened);
}

std::string value_of(int number) {
  return std::string(static_cast<std::size_t>(number) * 13 % 9000,
                     static_cast<char>('a' + number % 26));
}

// Issues the next operation from the callback of the one before; frees itself at the end.
struct Chain {
  kv::Store& store;
  Count& ended;
  int left;
  std::atomic<int>& wrong;

  static void step(const std::shared_ptr<Chain>& chain) {
    if (chain->left == 0) return chain->ended.add();
    const int number = chain->left;
    const kv::Result<void> begun =
        chain->store.async_set("chain", value_of(number), [chain, number](kv::Result<void> set) {
          if (!set) ++chain->wrong;
          const kv::Result<void> reads =
              chain->store.async_get("chain", [chain, number](kv::Result<std::string> value) {
                if (!value || *value != value_of(number)) ++chain->wrong;
                --chain->left;
                step(chain);
              });
          if (!reads) ++chain->wrong;
        });
    if (!begun) ++chain->wrong;
  }
};

}  // namespace

TEST_CASE("kv-async: callbacks get the results of the blocking calls, on another thread") {
  kv::Store store = store_of();
  const pthread_t caller = pthread_self();
  Count done;
  std::atomic<int> wrong{0};
  const auto check = [&](bool held) {
    if (!held || pthread_equal(pthread_self(), caller)) ++wrong;
    done.add();
  };
  REQUIRE(store.async_set("key", "value", [&](kv::Result<void> r) { check(r.has_value()); }));
  done.wait_for(1);
  REQUIRE(store.async_get("key", [&](kv::Result<std::string> r) { check(r && *r == "value"); }));
  REQUIRE(store.async_exists("key", [&](kv::Result<std::uint64_t> r) { check(r && *r == 5); }));
  done.wait_for(3);
  REQUIRE(store.async_del("key", [&](kv::Result<std::uint64_t> r) { check(r && *r == 5); }));
  done.wait_for(4);
  REQUIRE(store.async_get(
      "key", [&](const kv::Result<std::string>& r) { check(r.error() == kv::not_found); }));
  REQUIRE(store.async_del("key",
                          [&](kv::Result<std::uint64_t> r) { check(r.error() == kv::not_found); }));
  REQUIRE(store.async_exists(
      "key", [&](kv::Result<std::uint64_t> r) { check(r.error() == kv::not_found); }));
  done.wait_for(7);
  CHECK(wrong == 0);
}

TEST_CASE("kv-async: keys and values are copied before the call returns") {
  kv::Store store = store_of();
  Count done;
  for (int i = 0; i < 200; ++i) {
    std::string key = "key " + std::to_string(i), value = value_of(i);
    REQUIRE(store.async_set(key, value, [&](kv::Result<void>) { done.add(); }));
    key.assign(key.size(), '!');
    value.assign(value.size(), '!');
  }
  done.wait_for(200);
  for (int i = 0; i < 200; ++i) CHECK(*store.get("key " + std::to_string(i)) == value_of(i));
}

TEST_CASE(
    "kv-async: a callback may be any callable, also one that only moves, and is destroyed once") {
  kv::Store store = store_of();
  Count done;
  std::weak_ptr<int> watched;
  {
    auto owned = std::make_shared<int>(5);
    watched = owned;
    auto unique = std::make_unique<std::shared_ptr<int>>(std::move(owned));
    REQUIRE(
        store.async_set("key", "value", [&, kept = std::move(unique)](kv::Result<void> r) mutable {
          if (r && **kept == 5) done.add();
          kept.reset();
        }));
  }
  done.wait_for(1);
  static std::atomic<int> called{0};
  void (*function)(kv::Result<std::uint64_t>) = [](kv::Result<std::uint64_t> r) {
    called += static_cast<int>(r.value_or(100u));
  };
  REQUIRE(store.async_exists("key", function));
  const auto kept = std::make_shared<Count>();
  const auto lvalue = [kept](const kv::Result<std::string>& r) {
    if (r) kept->add();
  };
  for (int i = 0; i < 10; ++i) REQUIRE(store.async_get("key", lvalue));
  REQUIRE(store.close());  // waits for all
  CHECK(kept->count() == 10);
  CHECK(called == 5);
  CHECK(watched.expired());
  CHECK(kept.use_count() == 2);  // this one, and lvalue's
}

TEST_CASE("kv-async: a refused call returns an error, and its callback is destroyed, not called") {
  kv::Store store = store_of(), moved = std::move(store);
  auto kept = std::make_shared<int>(0);
  const auto callback = [kept](const auto&) { ++*kept; };
  CHECK(code(store.async_get("key", callback)) == EINVAL);  // NOLINT(bugprone-use-after-move)
  CHECK(code(store.async_set("key", "value", callback)) == EINVAL);
  CHECK(code(store.async_del("key", callback)) == EINVAL);
  CHECK(code(store.async_exists("key", callback)) == EINVAL);
  CHECK((*kept == 0 && kept.use_count() == 2));
}

TEST_CASE("kv-async: one more than may be under way is EAGAIN, but from a callback") {
  kv::Options options = in_memory();
  options.threads = 1;
  options.asyncs = 2;
  kv::Store store = store_of(options);
  Count gate, held, done;
  REQUIRE(store.async_set("key", "value", [&](kv::Result<void>) {
    held.add();
    gate.wait_for(1);
    const kv::Result<void> next = store.async_get("key", [&](kv::Result<std::string> value) {
      if (value && *value == "value") done.add();
    });
    if (next) done.add();
  }));
  held.wait_for(1);
  auto kept = std::make_shared<int>(0);
  REQUIRE(store.async_exists("key", [&](kv::Result<std::uint64_t>) { done.add(); }));
  const kv::Result<void> refused =
      store.async_exists("key", [kept](kv::Result<std::uint64_t>) { ++*kept; });
  CHECK(refused.error() == kv::try_again);
  CHECK((*kept == 0 && kept.use_count() == 1));
  gate.add();
  done.wait_for(3);
}

TEST_CASE("kv-async: callbacks issue the next operation, with values beyond the first buffer") {
  for (const unsigned threads : {1u, 4u}) {
    kv::Options options = in_memory();
    options.threads = threads;
    options.value_bytes = 64;
    kv::Store store = store_of(options);
    Count ended;
    std::atomic<int> wrong{0};
    const auto chain = std::make_shared<Chain>(Chain{store, ended, 3000, wrong});
    std::weak_ptr<Chain> watched = chain;
    Chain::step(chain);
    ended.wait_for(1);
    REQUIRE(store.close());
    CHECK(wrong == 0);
    CHECK(chain.use_count() == 1);
  }
}

TEST_CASE(
    "kv-async: closing lets all that is under way call back, and refuses what callbacks begin") {
  kv::Options options = in_memory();
  options.threads = 1;
  kv::Store store = store_of(options);
  Count gate, held;
  std::atomic<int> called{0}, refused{0}, deadlock{0};
  REQUIRE(store.async_set("key", "value", [&](kv::Result<void>) {
    if (code(store.close()) == EDEADLK) ++deadlock;
    held.add();
    gate.wait_for(1);
  }));
  held.wait_for(1);
  CHECK(store);
  for (int i = 0; i < 50; ++i) {
    REQUIRE(store.async_get("key", [&](kv::Result<std::string> value) {
      if (value && *value == "value") ++called;
      while (true) {  // until the closing begins
        const int status = code(store.async_exists("key", [&](kv::Result<std::uint64_t>) {}));
        if (status == EINVAL) break;
        std::this_thread::yield();
      }
      ++refused;
    }));
  }
  gate.add();
  CHECK(store.close());
  CHECK(called == 50);
  CHECK(refused == 50);
  CHECK(deadlock == 1);
}

TEST_CASE(
    "kv-async: what a callback throws, and a store that ends on its own thread, end the program") {
  const auto begin = [](auto body) {
    return ends([&] {
      kv::Result<kv::Store> opened = kv::Store::open(in_memory());
      if (!opened) _exit(3);
      Count never;
      body(*opened);
      never.wait_for(1);
    });
  };
  CHECK(begin([](kv::Store& store) {
          (void)store.async_exists("key", [](kv::Result<std::uint64_t>) { throw 1; });
        }) == -SIGABRT);
  CHECK(begin([](kv::Store& store) {
          auto owned = std::make_shared<kv::Store>(std::move(store));
          kv::Store* raw = owned.get();
          (void)raw->async_exists("key", [owned = std::move(owned)](kv::Result<std::uint64_t>) {});
        }) == -SIGABRT);
}

// ---- coroutines ----

namespace {

std::atomic<int> frames{0};
struct InFrame {
  InFrame() { ++frames; }
  ~InFrame() { --frames; }
  InFrame(const InFrame&) = delete;
  InFrame& operator=(const InFrame&) = delete;
};

Detached pairs(kv::Store& store, int number, std::atomic<int>& wrong, Count& ended) {
  const InFrame counted;
  const std::string key = "key " + std::to_string(number);
  const kv::Result<void> set = co_await store.async_set(key, value_of(number));
  const kv::Result<std::uint64_t> length = co_await store.async_exists(key);
  const kv::Result<std::string> value = co_await store.async_get(key);
  const kv::Result<std::uint64_t> removed =
      number % 2 ? co_await store.async_del(key) : kv::Result<std::uint64_t>(0);
  const kv::Result<std::string> none = co_await store.async_get("none");
  if (!set || !length || *length != value_of(number).size() || !value ||
      *value != value_of(number) || !removed || none.error() != kv::not_found)
    ++wrong;
  ended.add();
}

Detached until_refused(kv::Store& store, std::atomic<int>& rounds, std::atomic<int>& refused,
                       std::atomic<int>& other) {
  const InFrame counted;
  for (;; ++rounds) {
    const kv::Result<std::string> value = co_await store.async_get("key");
    if (value && *value == "value") continue;
    value.error() == std::errc::invalid_argument ? ++refused : ++other;
    co_return;
  }
}

Detached note_error(kv::Store& store, std::atomic<int>& error) {
  const kv::Result<std::uint64_t> length = co_await store.async_exists("key");
  error = length ? 0 : length.error().value();
}

Detached await_twice(kv::Store& store, std::atomic<int>& first, std::atomic<int>& second,
                     Count& ended) {
  auto call = store.async_set("twice", "value");
  first = code(co_await call);
  second = code(co_await call);
  ended.add();
}

}  // namespace

TEST_CASE("kv-async: coroutines by the thousand on four threads") {
  kv::Options options = in_memory();
  options.place = "mem:256m";
  for (const std::size_t value_bytes : {64u, 4096u}) {
    options.value_bytes = value_bytes;
    kv::Store store = store_of(options);
    std::atomic<int> wrong{0};
    Count ended;
    for (int i = 0; i < 8000; ++i)
      pairs(store, i, wrong, ended);  // as many as may be under way, and some more
    ended.wait_for(8000);
    REQUIRE(store.close());
    CHECK(wrong == 0);
    CHECK(frames == 0);
  }
}

TEST_CASE(
    "kv-async: a store is destroyed with coroutines under way: each ends, by a result or EINVAL") {
  for (int round = 0; round < 10; ++round) {
    std::atomic<int> rounds{0}, refused{0}, other{0};
    {
      kv::Store store = store_of();
      REQUIRE(store.set("key", "value"));
      for (int i = 0; i < 1000; ++i) until_refused(store, rounds, refused, other);
      while (rounds < 2000) std::this_thread::yield();
    }
    CHECK(refused == 1000);
    CHECK(other == 0);
    CHECK(frames == 0);
  }
}

TEST_CASE("kv-async: a call that cannot begin gives its error without waiting") {
  kv::Options options = in_memory();
  options.threads = 1;
  options.asyncs = 1;
  kv::Store store = store_of(options);
  Count gate, held;
  REQUIRE(store.async_set("key", "value", [&](kv::Result<void>) {
    held.add();
    gate.wait_for(1);
  }));
  held.wait_for(1);
  std::atomic<int> error{-1};
  note_error(store, error);
  CHECK(error == EAGAIN);
  gate.add();
  kv::Store moved = std::move(store);
  note_error(store, error);  // NOLINT(bugprone-use-after-move)
  CHECK(error == EINVAL);
}

TEST_CASE("kv-async: an operation does nothing until it is awaited; awaited again, it is EINVAL") {
  kv::Store store = store_of();
  { [[maybe_unused]] auto never = store.async_set("never", "value"); }
  std::atomic<int> first{-1}, second{-1};
  Count ended;
  await_twice(store, first, second, ended);
  ended.wait_for(1);
  CHECK((first == 0 && second == EINVAL));
  CHECK(*store.get("twice") == "value");
  CHECK(*store.count() == 1);
}
