// SPDX-License-Identifier: Apache-2.0
// HostGuard: marks the calling thread as "runtime inside". While one is alive, an allocator that
// Lunar put into the host program (adapters/preload) must serve this thread from DRAM and must not
// call back into the pager. Service threads hold one for life. Library calls that may allocate
// (pthread_create, dlopen, getaddrinfo) are wrapped in one.
#pragma once
#include <atomic>

namespace lunar {

// constinit: without it every read goes through a TLS wrapper function that asks for a dynamic
// initialiser.
extern constinit thread_local int host_guard_depth __attribute__((tls_model("initial-exec")));

// Set between the allocator's fork handlers, while its locks are held, or belong to threads that
// are gone. A guarded thread's allocations must then come from memory that needs no lock of the
// allocator (the preload's early heap).
extern constinit std::atomic<bool> host_fork_bootstrap;

class HostGuard {
 public:
  HostGuard() { ++host_guard_depth; }
  ~HostGuard() { --host_guard_depth; }
  HostGuard(const HostGuard&) = delete;
  HostGuard& operator=(const HostGuard&) = delete;
  static bool active() { return host_guard_depth != 0; }
};

}  // namespace lunar
