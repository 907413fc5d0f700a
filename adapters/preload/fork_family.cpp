// SPDX-License-Identifier: Apache-2.0
// fork and its relatives in libc (daemon, forkpty, _Fork, clone, and syscall with a number that
// forks). They fail with ENOMEM when the LUN cannot promise what the child may come to need. Fork
// handlers (pthread_atfork) do the rest, also for forks that do not pass here: those of the pager,
// and those here that keep the table of tiered maps locked. For calls that run no handlers, this
// file runs them. The table is locked after the program's handlers have run: the program's own
// malloc holds its locks by then, and no thread inside it waits for the table. vfork, posix_spawn
// and clone(CLONE_VM) share our memory and need nothing. With CLONE_FILES and without CLONE_VM, an
// unused combination, a child would close its parent's descriptors: the call goes to the kernel
// unchanged, without tiered memory in the child. pthread_atfork's list is kept in plain memory.
//
// Threading: any thread.
#include "fork_family.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <pty.h>
#include <sched.h>
#include <stdarg.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <initializer_list>

#include "code_ranges.h"
#include "exit_stats.h"
#include "pager/pager.h"
#include "preload.h"
#include "program_memory.h"
#include "real_calls.h"
#include "sys/kernel_call.h"
#include "sys/thread.h"
#include "thread_family.h"
#include "tiered_maps.h"

namespace lunar::preload {
namespace {

enum class Handlers { kLibc, kOurs };  // libc, or this file, runs the pager's fork handlers

// This thread is in a fork whose handlers have run. The program may have overwritten libc's
// function with a jump to code that forks by syscall(): that call then goes to the kernel.
thread_local constinit bool t_prepared = false;

void lock_maps() {
  maps_lock_for_fork();
  t_prepared = true;
}

void unlock_maps() {
  t_prepared = false;
  maps_unlock_after_fork();
}

void enter_child(Handlers handlers) {
  if (handlers == Handlers::kOurs) {
    pager_fork_child();
    unlock_maps();
  } else {
    pager_fork_child_ran();
  }
  threads_enter_child();
  stats_enter_child();
}

// Runs `fork_call` (0 in the child, a pid or -1 in the parent). A child that does not return from
// the call (clone) calls enter_child itself.
template <class Call>
int guarded_fork(Handlers handlers, Call fork_call, const void* child_stack = nullptr) {
  if (!ready() || t_prepared) return fork_call();
  // a handler that forks would wait for this fork, or take what was reserved for it
  sys::ScopedSignalBlock signals;
  int rc = pager_fork_check();
  if (rc < 0) {
    errno = ENOMEM;
    return -1;
  }
  if (handlers == Handlers::kOurs) {
    lock_maps();
    pager_fork_prepare(child_stack);
  }
  int pid = fork_call();
  int saved = errno;
  if (pid == 0) {
    enter_child(handlers);
  } else {
    if (handlers == Handlers::kOurs) {
      pager_fork_parent();
      unlock_maps();
    }
    if (pid < 0) pager_fork_failed();
  }
  errno = saved;
  return pid;
}

// Fork handlers that others register before ours: the program's own malloc does so at its first
// use, which may come before our constructor. They wait here, and are registered after ours and the
// allocator's, because such a malloc may call ours while it holds a lock that its handlers take.
struct ForkHandlers {
  void (*before)();
  void (*in_parent)();
  void (*in_child)();
  void* object;
};
constexpr unsigned kWaitingMax = 32;
constinit ForkHandlers g_waiting[kWaitingMax] = {};
constinit unsigned g_waiting_count = 0;
constinit bool g_ours_are_made = false;

bool copies_memory(unsigned long flags) { return (flags & (CLONE_VM | CLONE_FILES)) == 0; }

struct CloneStart {
  int (*function)(void*);
  void* argument;
};

// Makes a child in our memory. When it ends, the kernel clears its id where it serves no page
// faults (thread_family.cpp).
template <class Call>
int clone_in_our_memory(unsigned flags, const pid_t* child_id, Call call) {
  const bool cleared = (flags & CLONE_CHILD_CLEARTID) != 0 && child_id != nullptr;
  if (cleared) pager_keep(child_id, sizeof *child_id, Keep::kNewThread);
  const int id = call();
  const int saved = errno;
  if (cleared) pager_kept_goes_to(child_id, id, (flags & CLONE_THREAD) == 0);
  errno = saved;
  return id;
}

int begin_clone(void* argument) {
  // it lies on the parent's stack, of which this child has a copy
  const CloneStart start = *static_cast<CloneStart*>(argument);
  enter_child(Handlers::kOurs);
  sys::unblock_signals();  // clone() blocked them on the parent's stack
  return start.function(start.argument);
}

}  // namespace

int forks_prepare() {
  lunar::HostGuard guard;
  return -pthread_atfork(lock_maps, unlock_maps, unlock_maps);
}

int forks_register_waiting() {
  lunar::HostGuard guard;
  g_ours_are_made = true;
  int rc = 0;
  for (const bool allocators : {true, false})
    for (unsigned i = 0; i < g_waiting_count && rc == 0; ++i) {
      const ForkHandlers& waiting = g_waiting[i];
      if (is_runtime_code(reinterpret_cast<const void*>(waiting.before)) == allocators)
        rc = -g_real.register_atfork(waiting.before, waiting.in_parent, waiting.in_child,
                                     waiting.object);
    }
  return rc;
}

bool fork_call_copies(long number, const long (&a)[6]) {
#ifdef SYS_fork
  if (number == SYS_fork) return true;
#endif
  if (number == SYS_clone) return copies_memory(static_cast<unsigned long>(a[0])) && a[1] == 0;
#ifdef SYS_clone3
  if (number == SYS_clone3 && static_cast<unsigned long>(a[1]) >= 64) {
    struct {  // the beginning of struct clone_args
      uint64_t flags, pidfd, child_id, parent_id, exit_signal, stack;
    } arguments;
    return read_if_readable(reinterpret_cast<decltype(&arguments)>(a[0]), &arguments) &&
           copies_memory(arguments.flags) && arguments.stack == 0;
  }
#endif
  return false;
}

int fork_by_call(long number, const long (&a)[6]) {
  return guarded_fork(Handlers::kOurs,
                      [&] { return static_cast<int>(sys::kernel_call_errno(number, a)); });
}

}  // namespace lunar::preload

using namespace lunar::preload;

LUNAR_EXPORT pid_t fork(void) noexcept {
  return guarded_fork(Handlers::kLibc, [] { return g_real.fork(); });
}

LUNAR_EXPORT int daemon(int keep_directory, int keep_files) noexcept {
  // 0: we are the child
  return guarded_fork(Handlers::kLibc, [=] { return g_real.daemon(keep_directory, keep_files); });
}

LUNAR_EXPORT int forkpty(int* controller, char* name, const termios* modes,
                         const winsize* size) noexcept {
  return guarded_fork(Handlers::kLibc,
                      [=] { return g_real.forkpty(controller, name, modes, size); });
}

// pthread_atfork calls this. In the child, libc reads its list of handlers before ours has run, so
// the list may not lie on the tiered heap, from which it would be allocated when it grows.
LUNAR_EXPORT int __register_atfork(void (*before)(), void (*in_parent)(), void (*in_child)(),
                                   void* object) noexcept {
  lunar::HostGuard guard;
  if (!g_ours_are_made && !is_own_code(reinterpret_cast<const void*>(before))) {
    if (g_waiting_count == kWaitingMax) return ENOMEM;
    g_waiting[g_waiting_count++] = {before, in_parent, in_child, object};
    return 0;
  }
  return g_real.register_atfork(before, in_parent, in_child, object);
}

LUNAR_EXPORT pid_t _Fork(void) noexcept {
  return guarded_fork(Handlers::kOurs, [] { return g_real.fork_alone(); });
}

LUNAR_EXPORT int clone(int (*function)(void*), void* stack, int flags, void* argument,
                       ...) noexcept {
  va_list rest;
  va_start(rest, argument);
  auto* parent_id = va_arg(rest, pid_t*);
  void* tls = va_arg(rest, void*);
  auto* child_id = va_arg(rest, pid_t*);
  va_end(rest);
  const auto plain = [&] {
    return g_real.clone(function, stack, flags, argument, parent_id, tls, child_id);
  };
  if (!ready() || function == nullptr) return plain();
  if ((flags & CLONE_VM) != 0)
    return clone_in_our_memory(static_cast<unsigned>(flags), child_id, plain);
  if (!copies_memory(static_cast<unsigned>(flags))) return plain();
  CloneStart start{function, argument};
  return guarded_fork(
      Handlers::kOurs,
      [&] { return g_real.clone(begin_clone, stack, flags, &start, parent_id, tls, child_id); },
      stack);
}
