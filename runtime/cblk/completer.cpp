// SPDX-License-Identifier: Apache-2.0
#include "cblk/completer.h"

#include <errno.h>

#include "sys/thread.h"

namespace lunar::cblk {

int Completer::start(Work work, void* owner, bool* started) {
  *started = false;
  if (runs_) return 0;
  work_ = work;
  owner_ = owner;
  stop_.store(false, std::memory_order_relaxed);
  sys::ThreadSpec spec;
  spec.name = "lunar-cblk";
  spec.run = [](void* completer) { static_cast<Completer*>(completer)->run(); };
  spec.argument = this;
  spec.program_files = true;
  if (sys::thread_start(spec, &thread_) < 0)
    return -ENOMEM;  // EAGAIN would mean that no command is free
  *started = runs_ = true;
  return 0;
}

void Completer::wake() {
  word_.fetch_add(1, std::memory_order_seq_cst);
  if (sleeps_.load(std::memory_order_seq_cst)) sys::futex_wake(&word_, 1, false);
}

void Completer::run() {
  // Statuses and buffers are the program's memory, so the program handles faults there.
  sys::allow_fault_signals();
  for (;;) {
    const uint32_t word = word_.load(std::memory_order_acquire);
    if (stopping()) return;
    if (commands() != 0) {
      work_(owner_);
      continue;
    }
    sleeps_.store(true, std::memory_order_seq_cst);
    // Returns at once if the word has changed since.
    (void)sys::futex_wait(&word_, word, -1, false);
    sleeps_.store(false, std::memory_order_relaxed);
  }
}

void Completer::stop() {
  if (!runs_) return;
  stop_.store(true, std::memory_order_release);
  word_.fetch_add(1, std::memory_order_release);
  sys::futex_wake(&word_, 1, false);
  sys::thread_end(thread_);
  runs_ = false;
}

void Completer::forget_in_child() {
  runs_ = false;
  commands_.store(0, std::memory_order_relaxed);
}

}  // namespace lunar::cblk
