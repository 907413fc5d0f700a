// SPDX-License-Identifier: Apache-2.0
// Contexts of a device whose commands are blocking system calls, because the host refuses io_uring
// (old kernels, container seccomp profiles, sysctl). Without ContextOptions::delegate, submit makes
// each call (sync_context.h). With it, eight threads of the device make the calls; they start with
// the first such context and sleep while there is no work. Submit then returns at once, several
// commands are in flight, and a wait can end before a call does.
//
// A ring may also be unavailable because a resource is used up. If it is descriptors, contexts with
// delegate fail with that error (their user can report it), and the next attach tries again;
// contexts for the fault path cannot fail, so such a context makes calls for its whole life. If it
// is memory, usually because of RLIMIT_MEMLOCK, this lasts, and all contexts make calls.
//
// Threading: attach() from any thread; destroy() with the device. A forked child starts its own
// threads (delegate.h).
#pragma once
#include <atomic>

#include "superpipe/context_base.h"
#include "superpipe/device_files.h"
#include "superpipe/ring/delegate.h"

namespace lunar {

class CallPool {
 public:
  [[nodiscard]] int attach(const JoinedFiles& files, const ContextOptions& options,
                           OwnedContext** out);
  // The same; calls are made by transfer() of the device.
  [[nodiscard]] int attach(Device* device, const ContextOptions& options, OwnedContext** out);
  // Whether calls replace a ring that could not be made, by the rule above; logs why. status: the
  // error of the ring. refusal: the cost and the fix, if the host refuses rings.
  [[nodiscard]] bool replaces_ring(int status, const char* name, const ContextOptions& options,
                                   const char* refusal);
  void ring_made() {
    if (lack_told_.load(std::memory_order_relaxed))
      lack_told_.store(false, std::memory_order_relaxed);
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
