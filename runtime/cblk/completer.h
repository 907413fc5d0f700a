// SPDX-License-Identifier: Apache-2.0
// The thread of a chunk that completes the commands which no call fetches: those with a status of the caller's.
// It sleeps on a word of its own while there are none.
#pragma once
#include <pthread.h>

#include <atomic>
#include <cstdint>

namespace lunar::cblk {

class Completer {
 public:
  // The work: completes what it can, sleeps in between as it likes, and returns when there is none left or stopping()
  // is true. Runs on the thread.
  using Work = void (*)(void* owner);
  // Starts the thread if it does not run. Pre: the owner's lock. 0, or -ENOMEM; *started: it is new.
  [[nodiscard]] int start(Work work, void* owner, bool* started);
  void wake();  // after add()
  void stop();  // pre: nothing is under way, and the owner's lock is free
  void forget_in_child();

  // The commands it has to complete. Changed under the owner's lock, looked at without.
  void add() { commands_.fetch_add(1, std::memory_order_relaxed); }
  void remove() { commands_.fetch_sub(1, std::memory_order_relaxed); }
  uint32_t commands() const { return commands_.load(std::memory_order_relaxed); }
  bool stopping() const { return stop_.load(std::memory_order_acquire); }

 private:
  void run();

  Work work_ = nullptr;
  void* owner_ = nullptr;
  bool runs_ = false;
  pthread_t thread_{};
  std::atomic<uint32_t> commands_{0};
  std::atomic<bool> stop_{false};
  std::atomic<uint32_t> word_{0};  // bumped when it has work
  std::atomic<bool> sleeps_{false};
};

}  // namespace lunar::cblk
