// SPDX-License-Identifier: Apache-2.0
// Threads of a test: several that run the same body, and threads that repeat a turn while the test
// does something else.
#pragma once
#include <atomic>
#include <thread>
#include <type_traits>
#include <vector>

namespace lunar_test {

// `body` may take the thread's number.
template <class Body, class Number>
void run_numbered(Body& body, Number number) {
  if constexpr (std::is_invocable_v<Body&, Number>)
    body(number);
  else
    body();
}

// `count` threads, each with a copy of `body`. The end of the result's life, or its clear(), waits
// for them.
template <class Number, class Body>
[[nodiscard]] std::vector<std::jthread> start_threads(Number count, Body body) {
  std::vector<std::jthread> threads;
  for (Number number = 0; number < count; ++number)
    threads.emplace_back([body, number]() mutable { run_numbered(body, number); });
  return threads;
}

// Returns when all of them have ended.
template <class Number, class Body>
void in_parallel(Number count, const Body& body) {
  (void)start_threads(count, [&body](Number number) { run_numbered(body, number); });
}

// Each thread repeats its copy of `turn` until end(). A forked child has none of the threads and
// must not call end().
class Meanwhile {
 public:
  template <class Turn>
  explicit Meanwhile(Turn turn, unsigned threads = 1)
      : threads_(start_threads(threads, [this, turn](unsigned number) mutable {
          while (!over_.load(std::memory_order_relaxed)) run_numbered(turn, number);
        })) {}
  ~Meanwhile() { end(); }
  void end() {
    over_.store(true);
    threads_.clear();
  }

 private:
  std::atomic<bool> over_{false};
  std::vector<std::jthread> threads_;
};

}  // namespace lunar_test
