// SPDX-License-Identifier: Apache-2.0
// Locks that children do not inherit: see lock_fds.h.
// Threading: any. Not for the fault path.
#include "lun/volume/lock_fds.h"

#include <pthread.h>

#include <atomic>

#include "base/host_guard.h"
#include "sys/file.h"
#include "sys/proc.h"
#include "sys/thread.h"

namespace lunar {
namespace {

std::atomic<int> lock_fds[32];  // descriptor + 1; 0: free

void close_copies_in_child() {
  for (std::atomic<int>& held : lock_fds) {
    const int fd = held.exchange(0) - 1;
    if (fd < 0) continue;
    sys::note_own_descriptor(fd, false);
    sys::close_file(fd);
  }
}

}  // namespace

void register_lock_fd(int fd) {
  static std::atomic<bool> registered{false};
  if (!sys::in_program_files()) return;
  sys::note_own_descriptor(fd, true);
  if (!registered.exchange(true)) {
    const HostGuard guard;
    (void)pthread_atfork(nullptr, nullptr, close_copies_in_child);
  }
  for (std::atomic<int>& held : lock_fds) {
    int none = 0;
    if (held.compare_exchange_strong(none, fd + 1)) return;
  }
}

void unregister_lock_fd(int fd) {
  if (!sys::in_program_files()) return;
  sys::note_own_descriptor(fd, false);
  for (std::atomic<int>& held : lock_fds) {
    int mine = fd + 1;
    if (held.compare_exchange_strong(mine, 0)) return;
  }
}

}  // namespace lunar
