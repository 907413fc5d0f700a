// SPDX-License-Identifier: Apache-2.0
// fork and its relatives in libc (daemon, forkpty): refused with ENOMEM when the LUN cannot promise what the child may come
// to need; the table of tiered maps is held still across the call. The pager's own fork handlers (pthread_atfork) do the
// rest, also for forks that do not pass here. vfork, posix_spawn and clone(CLONE_VM) share our memory and need nothing.
//
// Threading: any thread.
#include <dlfcn.h>
#include <errno.h>
#include <pty.h>
#include <unistd.h>

#include "pager/pager.h"
#include "preload.h"
#include "sys/thread.h"
#include "tiered_maps.h"

namespace lunar::preload {
namespace {

// Runs `fork_call` (0 in the child, a pid or -1 in the parent) with the maps held still.
template <class Call>
int guarded_fork(Call fork_call) {
  if (!ready()) return fork_call();
  int rc = pager_fork_check();
  if (rc < 0) {
    errno = ENOMEM;
    return -1;
  }
  sys::SignalsHeld signals;   // a handler that forks would wait for this fork
  maps_lock_for_fork();
  int pid = fork_call();
  int saved = errno;
  maps_unlock_after_fork();
  if (pid == 0) {
    threads_enter_child();
    stats_enter_child();
  }
  errno = saved;
  return pid;
}

}  // namespace
}  // namespace lunar::preload

using namespace lunar::preload;

LUNAR_EXPORT pid_t fork(void) noexcept {
  return guarded_fork([] { return g_real.fork(); });
}

LUNAR_EXPORT int daemon(int keep_directory, int keep_files) noexcept {
  return guarded_fork([=] { return g_real.daemon(keep_directory, keep_files); });   // 0: we are the child
}

LUNAR_EXPORT int forkpty(int* controller, char* name, const termios* modes, const winsize* size) noexcept {
  // Looked up when used: it lives in libutil on older systems.
  auto real = reinterpret_cast<int (*)(int*, char*, const termios*, const winsize*)>(dlsym(RTLD_NEXT, "forkpty"));
  if (real == nullptr) {
    errno = ENOSYS;
    return -1;
  }
  return guarded_fork([=] { return real(controller, name, modes, size); });
}
