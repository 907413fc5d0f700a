// SPDX-License-Identifier: Apache-2.0
// Contexts for blocking commands that involve several lower devices: a thread borrows one for each
// command. The pool attaches contexts on demand, as many as threads use it at a time, and keeps
// them. A forked child attaches its own. Threading: any thread. Blocks; not for the fault path.
#pragma once
#include <atomic>
#include <cstdint>

#include "superpipe/device.h"
#include "sys/thread.h"

namespace lunar {

class ContextPool {
 public:
  // Does the work of Device::transfer through a context of `device` (always the same device).
  // False: no context is available, or the kernel deferred the command and then had no thread for
  // it (RLIMIT_NPROC).
  [[nodiscard]] bool transfer(Device* device, const Command& command, int64_t* result);
  void close(Device* device);  // pre: no thread is inside transfer()

 private:
  static constexpr unsigned kMost = 32;
  [[nodiscard]] int take(Device* device);
  void give(unsigned index);
  void know_process(Device* device);
  int take_free();

  // The copy of the memory that these contexts belong to; < 0: a child is forgetting its parent's.
  std::atomic<int> copy_{0};
  std::atomic<uint32_t> free_{0};     // one bit per context
  std::atomic<uint32_t> waiting_{0};  // threads that wait for a context,
  std::atomic<uint32_t> word_{0};     //   on this word, which changes when one becomes free
  sys::Mutex lock_;                   // of the members below
  unsigned count_ = 0;
  Context* context_[kMost] = {};
};

}  // namespace lunar
