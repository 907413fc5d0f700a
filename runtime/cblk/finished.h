// SPDX-License-Identifier: Apache-2.0
// Tells threads that wait for any chunk of a group about a result that another thread harvested: an eventfd, made by
// the first waiting thread. Without sleepers: a load a result.
// Threading: any; close() while no thread waits, or in a forked child (the descriptor is the parent's).
#pragma once
#include <atomic>

#include "superpipe/wakeups.h"
#include "sys/file.h"

namespace lunar::cblk {

class Finished {
 public:
  // Then look whether there is a result, then sleep on `out`. Without a descriptor, out looks again often.
  void begin_sleep(Wakeups* out);
  void end_sleep() { sleepers_.fetch_sub(1, std::memory_order_seq_cst); }
  // There is a result, or nothing is under way any more. Also called by a thread that leaves with a result: there may
  // be another one.
  void tell() {
    if (sleepers_.load(std::memory_order_seq_cst) == 0) return;
    sys::eventfd_signal(fd_.load(std::memory_order_relaxed));
    signalled_.store(true, std::memory_order_release);  // after it: or the descriptor would stay readable
  }
  void close();

 private:
  std::atomic<int> sleepers_{0};
  std::atomic<int> fd_{-1};
  std::atomic<bool> signalled_{false};
};

}  // namespace lunar::cblk
