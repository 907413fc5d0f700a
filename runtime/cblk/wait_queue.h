// SPDX-License-Identifier: Apache-2.0
// The threads that sleep until another thread of a chunk changes something, by what they wait for.
//
// Signalling only records the threads to wake: the futex calls are made after the owner's lock was
// released (take_wakes).
// Threading: under the owner's lock, except the sleep itself and Wakes::wake. Allocates nothing.
#pragma once
#include <atomic>
#include <cstdint>

#include "sys/thread.h"

namespace lunar::cblk {

// A sleeping thread. The object is on its stack.
struct Waiter {
  enum Kind : uint8_t { kCommand, kAny, kFree, kIdle };
  static constexpr unsigned kKinds = 4;
  explicit Waiter(Kind wanted, Waiter** head = nullptr) : kind(wanted), command(head) {}
  Kind kind;
  bool listed = false;
  bool designated = false;  // woken to become the leader
  std::atomic<uint32_t> signal{0};
  Waiter** command;        // kCommand: the head of the list of threads that wait for the command
  Waiter* next = nullptr;  // among waiters of its kind
  Waiter* previous = nullptr;
  Waiter* same_command = nullptr;
};

class WaitQueue {
 public:
  static constexpr unsigned kWakesMax = 64;
  // Words to wake after the lock is released.
  class Wakes {
   public:
    void wake() const {
      for (unsigned i = 0; i < count_; ++i) sys::futex_wake(words_[i], 1, false);
    }

   private:
    friend class WaitQueue;
    std::atomic<uint32_t>* words_[kWakesMax];
    unsigned count_ = 0;
  };

  void enqueue(Waiter* waiter);
  void dequeue(Waiter* waiter);  // does nothing if it is in no list
  Waiter* first(Waiter::Kind kind) const { return waiting_[kind]; }
  void signal(Waiter* waiter);
  void signal_one(Waiter::Kind kind) {
    if (waiting_[kind]) signal(waiting_[kind]);
  }
  void signal_all(Waiter::Kind kind) {
    while (waiting_[kind]) signal(waiting_[kind]);
  }
  void signal_list(Waiter** command) {
    while (*command) signal(*command);
  }
  Wakes take_wakes();
  void forget_in_child();

 private:
  Waiter* waiting_[Waiter::kKinds] = {};
  std::atomic<uint32_t>* to_wake_[kWakesMax] = {};
  unsigned to_wake_count_ = 0;
};

}  // namespace lunar::cblk
