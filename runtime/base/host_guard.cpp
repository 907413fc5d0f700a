// SPDX-License-Identifier: Apache-2.0
// The one variable behind HostGuard. Constant-initialised, initial-exec: reading it calls nothing
// and allocates nothing.
// Threading: thread-local. May be read anywhere, also on the fault path and in a signal handler.
#include "base/host_guard.h"

namespace lunar {

constinit thread_local int host_guard_depth __attribute__((tls_model("initial-exec"))) = 0;
constinit std::atomic<bool> host_fork_bootstrap{false};

}  // namespace lunar
