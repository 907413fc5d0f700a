// SPDX-License-Identifier: Apache-2.0
// A chunk's thread that completes the commands that no call fetches: those with the caller's
// status. While there are none it sleeps on its own word.
#pragma once
#include <pthread.h>

#include <atomic>
#include <cstdint>

namespace lunar::cblk {

class Completer {
 public:
  // The work, which runs on the thread: completes what it can, may sleep in between, and returns
  // when nothing is left or stopping() is true.
  using Work = void (*)(void* owner);
  // Starts the thread if it does not run. 0, or -ENOMEM; *started: the thread is new.
  // pre: the owner's lock
  [[nodiscard]] int start(Work work, void* owner, bool* started);
  void wake();  // after add()
  void stop();  // pre: nothing is in progress, and the owner's lock is free
  void forget_in_child();

  // The number of commands to complete. Changed under the owner's lock, read without it.
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
  std::atomic<uint32_t> word_{0};  // changes when there is work
  std::atomic<bool> sleeps_{false};
};

}  // namespace lunar::cblk
