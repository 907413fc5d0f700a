// SPDX-License-Identifier: Apache-2.0
// Contexts of a device whose commands are blocking system calls, because the host refuses io_uring (old kernels,
// container seccomp profiles, sysctl). Without ContextOptions::delegate submit makes each call (sync_context.h); with
// it, eight threads of the device do, made with the first such context and asleep while there is no work. Submit then
// returns at once, several commands are in flight, and a wait can end before a call does.
//
// A ring may also be missing because something is used up. Descriptors: contexts with delegate then fail with that
// error (their user can report it), and the next attach tries again. The fault path's cannot fail: such a one makes
// calls for as long as it lives. Memory, which is RLIMIT_MEMLOCK more often than not, and lasts: calls, in all of them.
//
// Threading: attach() from any thread; destroy() with the device. A forked child makes threads of its own (delegate.h).
#pragma once
#include <atomic>

#include "superpipe/context_base.h"
#include "superpipe/device_files.h"
#include "superpipe/ring/delegate.h"

namespace lunar {

class CallPool {
 public:
  [[nodiscard]] int attach(const JoinedFiles& files, const ContextOptions& options, OwnedContext** out);
  [[nodiscard]] int attach(Device* device, const ContextOptions& options, OwnedContext** out);  // by its transfer()
  // Whether calls take the place of a ring that could not be made, by the rule above; says why in the log. status: what
  // the ring failed with. refusal: what it costs and how to mend it, where the host refuses rings.
  [[nodiscard]] bool replaces_ring(int status, const char* name, const ContextOptions& options, const char* refusal);
  void ring_made() {
    if (lack_told_.load(std::memory_order_relaxed)) lack_told_.store(false, std::memory_order_relaxed);
  }
  void destroy() { pool_.destroy(); }  // pre: no context is attached
  const DelegatePool& pool() const { return pool_; }

 private:
  bool runs(const ContextOptions& options);
  DelegatePool pool_;
  std::atomic<bool> refusal_told_{false};
  std::atomic<bool> lack_told_{false};  // since the last ring
};

}  // namespace lunar
