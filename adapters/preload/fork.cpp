// SPDX-License-Identifier: Apache-2.0
// fork and its relatives in libc (daemon, forkpty; _Fork, clone, and syscall with a number that forks): refused with ENOMEM when
// the LUN cannot promise what the child may come to need; the table of tiered maps is held still across the call. The pager's own
// fork handlers (pthread_atfork) do the rest, also for forks that do not pass here; calls that run no handlers have them run here.
// vfork, posix_spawn and clone(CLONE_VM) share our memory and need nothing. With CLONE_FILES and without CLONE_VM, which nobody
// uses, a child would close its parent's descriptors: it goes to the kernel as it came, and is without its tiered memory.
// Through syscall() goes process_vm_writev, too.
//
// Threading: any thread.
#include <dlfcn.h>
#include <errno.h>
#include <pty.h>
#include <sched.h>
#include <stdarg.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "pager/pager.h"
#include "preload.h"
#include "sys/thread.h"
#include "tiered_maps.h"

namespace lunar::preload {
namespace {

enum class Handlers { kLibc, kOurs };   // who runs the pager's fork handlers

void enter_child(Handlers handlers) {
  if (handlers == Handlers::kOurs) pager_fork_child();
  maps_unlock_after_fork();
  threads_enter_child();
  stats_enter_child();
}

// Runs `fork_call` (0 in the child, a pid or -1 in the parent) with the maps held still. A child that does not come back from the call
// (clone) enters by itself.
template <class Call>
int guarded_fork(Handlers handlers, Call fork_call) {
  if (!ready()) return fork_call();
  sys::SignalsHeld signals;   // a handler that forks would wait for this fork, or take what was set aside for it
  int rc = pager_fork_check();
  if (rc < 0) {
    errno = ENOMEM;
    return -1;
  }
  maps_lock_for_fork();
  if (handlers == Handlers::kOurs) pager_fork_prepare();
  int pid = fork_call();
  int saved = errno;
  if (pid == 0) {
    enter_child(handlers);
  } else {
    if (handlers == Handlers::kOurs) pager_fork_parent();
    maps_unlock_after_fork();
    pid < 0 ? pager_fork_failed() : pager_fork_made(pid);
  }
  errno = saved;
  return pid;
}

bool copies_memory(unsigned long flags) { return (flags & (CLONE_VM | CLONE_FILES)) == 0; }

struct CloneStart {
  int (*function)(void*);
  void* argument;
};

int begin_clone(void* argument) {
  const CloneStart start = *static_cast<CloneStart*>(argument);   // on the parent's stack, of which this is a copy
  enter_child(Handlers::kOurs);
  sys::let_signals();   // held in clone(), which this stack knows nothing of
  return start.function(start.argument);
}

// 0 or more, or -errno, straight from the kernel: what syscall() is, also before our constructor has run.
long enter_kernel(long number, const long (&a)[6]) {
#if defined(__x86_64__)
  long result;
  register long r10 __asm__("r10") = a[3];
  register long r8 __asm__("r8") = a[4];
  register long r9 __asm__("r9") = a[5];
  __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a[0]), "S"(a[1]), "d"(a[2]), "r"(r10), "r"(r8), "r"(r9) : "rcx", "r11", "memory");
  return result;
#elif defined(__aarch64__)
  register long x8 __asm__("x8") = number;
  register long x0 __asm__("x0") = a[0];
  register long x1 __asm__("x1") = a[1];
  register long x2 __asm__("x2") = a[2];
  register long x3 __asm__("x3") = a[3];
  register long x4 __asm__("x4") = a[4];
  register long x5 __asm__("x5") = a[5];
  __asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5) : "memory");
  return x0;
#elif defined(__powerpc64__)
  register long r0 __asm__("r0") = number;
  register long r3 __asm__("r3") = a[0];
  register long r4 __asm__("r4") = a[1];
  register long r5 __asm__("r5") = a[2];
  register long r6 __asm__("r6") = a[3];
  register long r7 __asm__("r7") = a[4];
  register long r8 __asm__("r8") = a[5];
  __asm__ volatile("sc\n\tbns+ 1f\n\tneg %0, %0\n1:"
                   : "+r"(r3), "+r"(r0), "+r"(r4), "+r"(r5), "+r"(r6), "+r"(r7), "+r"(r8)
                   :
                   : "memory", "cr0", "ctr", "lr", "r9", "r10", "r11", "r12");
  return r3;
#else
#error "a system call for this machine"
#endif
}

long as_libc(long result) {
  if (result >= 0 || result < -4095) return result;
  errno = static_cast<int>(-result);
  return -1;
}

// A call that makes a process with a copy of our memory, whose child comes back on this stack.
bool forks(long number, const long (&a)[6]) {
#ifdef SYS_fork
  if (number == SYS_fork) return true;
#endif
  if (number == SYS_clone) return copies_memory(static_cast<unsigned long>(a[0])) && a[1] == 0;
#ifdef SYS_clone3
  if (number == SYS_clone3 && a[0] != 0 && static_cast<unsigned long>(a[1]) >= 64) {
    const auto* arguments = reinterpret_cast<const uint64_t*>(a[0]);   // struct clone_args: flags first, stack the sixth
    return copies_memory(arguments[0]) && arguments[5] == 0;
  }
#endif
  return false;
}

// process_vm_writev: see pager_write_elsewhere_begin.
long write_elsewhere(const long (&a)[6]) {
  sys::SignalsHeld signals;   // a handler that leaves by longjmp would never end it
  pager_write_elsewhere_begin();
  const long result = enter_kernel(SYS_process_vm_writev, a);
  pager_write_elsewhere_end();
  return as_libc(result);
}

}  // namespace
}  // namespace lunar::preload

using namespace lunar::preload;

LUNAR_EXPORT pid_t fork(void) noexcept {
  return guarded_fork(Handlers::kLibc, [] { return g_real.fork(); });
}

LUNAR_EXPORT int daemon(int keep_directory, int keep_files) noexcept {
  return guarded_fork(Handlers::kLibc, [=] { return g_real.daemon(keep_directory, keep_files); });   // 0: we are the child
}

LUNAR_EXPORT int forkpty(int* controller, char* name, const termios* modes, const winsize* size) noexcept {
  // Looked up when used: it lives in libutil on older systems.
  auto real = reinterpret_cast<int (*)(int*, char*, const termios*, const winsize*)>(dlsym(RTLD_NEXT, "forkpty"));
  if (real == nullptr) {
    errno = ENOSYS;
    return -1;
  }
  return guarded_fork(Handlers::kLibc, [=] { return real(controller, name, modes, size); });
}

LUNAR_EXPORT pid_t _Fork(void) noexcept {
  return guarded_fork(Handlers::kOurs, [] {
    if (g_real.fork_alone != nullptr) return g_real.fork_alone();
    return static_cast<pid_t>(as_libc(enter_kernel(SYS_clone, {SIGCHLD, 0, 0, 0, 0, 0})));   // libc before 2.34
  });
}

LUNAR_EXPORT int clone(int (*function)(void*), void* stack, int flags, void* argument, ...) noexcept {
  va_list rest;
  va_start(rest, argument);
  auto* parent_id = va_arg(rest, pid_t*);
  void* tls = va_arg(rest, void*);
  auto* child_id = va_arg(rest, pid_t*);
  va_end(rest);
  if (!ready() || !copies_memory(static_cast<unsigned>(flags)) || function == nullptr)
    return g_real.clone(function, stack, flags, argument, parent_id, tls, child_id);
  CloneStart start{function, argument};
  return guarded_fork(Handlers::kOurs, [&] { return g_real.clone(begin_clone, stack, flags, &start, parent_id, tls, child_id); });
}

// libc's way to make any system call. Ours goes to the kernel as well, but for those that fork.
LUNAR_EXPORT long syscall(long number, ...) noexcept {
  va_list rest;
  va_start(rest, number);
  long a[6];
  for (long& one : a) one = va_arg(rest, long);
  va_end(rest);
  if (__builtin_expect(forks(number, a) && ready(), 0))
    return guarded_fork(Handlers::kOurs, [&] { return static_cast<int>(as_libc(enter_kernel(number, a))); });
  if (__builtin_expect(number == SYS_process_vm_writev && ready(), 0)) return write_elsewhere(a);
  return as_libc(enter_kernel(number, a));
}

LUNAR_EXPORT ssize_t process_vm_writev(pid_t pid, const iovec* local, unsigned long locals, const iovec* remote, unsigned long remotes,
                                       unsigned long flags) noexcept {
  const long a[6] = {pid, reinterpret_cast<long>(local), static_cast<long>(locals), reinterpret_cast<long>(remote), static_cast<long>(remotes),
                     static_cast<long>(flags)};
  return ready() ? write_elsewhere(a) : as_libc(enter_kernel(SYS_process_vm_writev, a));
}
