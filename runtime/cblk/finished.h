// SPDX-License-Identifier: Apache-2.0
// Notifies threads that wait for any chunk of a group of a result that another thread harvested.
// Uses an eventfd, which the first waiting thread creates. While no thread waits, a result costs
// one load.
// Threading: any; close() only while no thread waits, or in a forked child (the descriptor belongs
// to the parent).
#pragma once
#include <atomic>

#include "superpipe/wakeups.h"
#include "sys/file.h"

namespace lunar::cblk {

class Finished {
 public:
  // After this call, check for a result, then sleep on `out`. Without a descriptor, `out` makes the
  // sleeper check again often.
  void begin_sleep(Wakeups* out);
  void end_sleep() { sleepers_.fetch_sub(1, std::memory_order_seq_cst); }
  // There is a result, or nothing is in progress any more. A thread that leaves with a result also
  // calls it, because there may be another one.
  void tell() {
    if (sleepers_.load(std::memory_order_seq_cst) == 0) return;
    sys::eventfd_signal(fd_.load(std::memory_order_relaxed));
    // Set after the signal, or the descriptor would stay readable.
    signalled_.store(true, std::memory_order_release);
  }
  void close();

 private:
  std::atomic<int> sleepers_{0};
  std::atomic<int> fd_{-1};
  std::atomic<bool> signalled_{false};
};

}  // namespace lunar::cblk
