// SPDX-License-Identifier: Apache-2.0
// Threads that do the same again and again while a test does something else.
#pragma once
#include <atomic>
#include <thread>
#include <type_traits>
#include <vector>

namespace lunar_test {

// `turn` of each thread (a copy: what it captures is its own), which may take the thread's number,
// until end(). A process that is forked meanwhile has none of them, and must not end it.
class Meanwhile {
 public:
  template <class Turn>
  explicit Meanwhile(Turn turn, unsigned threads = 1) {
    for (unsigned number = 0; number < threads; ++number)
      threads_.emplace_back([this, turn, number]() mutable {
        while (!over_.load(std::memory_order_relaxed))
          if constexpr (std::is_invocable_v<Turn&, unsigned>)
            turn(number);
          else
            turn();
      });
  }
  ~Meanwhile() { end(); }
  void end() {
    over_.store(true);
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }

 private:
  std::atomic<bool> over_{false};
  std::vector<std::thread> threads_;
};

}  // namespace lunar_test
