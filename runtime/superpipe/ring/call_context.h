// SPDX-License-Identifier: Apache-2.0
// Contexts of a device whose commands are blocking system calls, because the host refuses io_uring (old kernels,
// container seccomp profiles, sysctl). Without ContextOptions::delegate submit makes each call (sync_context.h); with
// it, eight threads of the device do, made with the first such context and asleep while there is no work. Submit then
// returns at once, several commands are in flight, and a wait can end before a call does.
//
// Threading: attach() from any thread; destroy() with the device. A forked child makes threads of its own (delegate.h).
#pragma once
#include "superpipe/context_base.h"
#include "superpipe/device_files.h"
#include "superpipe/ring/delegate.h"

namespace lunar {

class CallPool {
 public:
  [[nodiscard]] int attach(const JoinedFiles& files, const ContextOptions& options, OwnedContext** out);
  [[nodiscard]] int attach(Device* device, const ContextOptions& options, OwnedContext** out);  // by its transfer()
  void destroy() { pool_.destroy(); }  // pre: no context is attached
  const DelegatePool& pool() const { return pool_; }

 private:
  bool runs(const ContextOptions& options);
  DelegatePool pool_;
};

}  // namespace lunar
