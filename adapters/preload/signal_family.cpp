// SPDX-License-Identifier: Apache-2.0
// One line for a child that was forked past this library (a system call of the program's own code).
// No fork handler ran, so its parent's tiered memory is not there (MADV_DONTFORK), and its first
// touch of it is SIGSEGV. Nothing of ours runs in such a child, and the kernel reports no such
// fork: so a handler of SIGSEGV prints the line. It is installed while the program has the default
// action; sigaction and libc's variants of signal show the program the default in its place.
// The handler sends the signal once more, as it was, to the default action: same status, same
// address in a core dump. It must not leave that to the instruction: another thread may have made
// the page accessible meanwhile.
// What differs from a plain program: system calls of its own see the handler; flags and mask of a
// default action read as 0; the core of a stack overflow without an alternate stack has no address;
// SECCOMP_MODE_STRICT ends it by SIGKILL.
//
// Threading: any thread. The handler also runs in children that nothing was prepared for: it takes
// no lock.
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "pager/pager.h"
#include "preload.h"
#include "sys/kernel_call.h"
#include "sys/log.h"
#include "sys/thread.h"

namespace lunar::preload {
namespace {

int real_sigaction(int signal, const struct sigaction* action, struct sigaction* before) {
  look_up(g_real.sigaction, "sigaction");  // a constructor before ours may call it
  return g_real.sigaction(signal, action, before);
}

// The default action stands already (SA_RESETHAND).
void on_segv(int signal, siginfo_t* info, void*) {
  const int parent = info->si_code > 0 ? pager_parent_past_us(info->si_addr) : 0;
  if (parent != 0)
    log_error(
        "this process was forked from %d by a system call past Lunar, and has none of its tiered "
        "memory: it ends by "
        "SIGSEGV at %p; use libc's fork or syscall(), or run the program without Lunar",
        parent, info->si_addr);
  const long sent = sys::kernel_call(SYS_rt_tgsigqueueinfo, {getpid(), sys::thread_id(), signal,
                                                             reinterpret_cast<long>(info), 0, 0});
  // A filter does not let it through: a fault comes again by itself, a signal that was sent does
  // not. NOLINTNEXTLINE(clang-analyzer-core.NullDereference): meant to raise SIGSEGV
  if (sent < 0 && (info->si_code <= 0 || info->si_code == SI_KERNEL))
    *static_cast<volatile int*>(nullptr) = 0;
}

bool is_ours(const struct sigaction& action) {
  return (action.sa_flags & SA_SIGINFO) != 0 && action.sa_sigaction == on_segv;
}

bool is_default(const struct sigaction& action) {
  return (action.sa_flags & SA_SIGINFO) == 0 && action.sa_handler == SIG_DFL;
}

struct sigaction ours() {
  struct sigaction action{};
  action.sa_sigaction = on_segv;
  action.sa_flags = SA_SIGINFO | SA_RESETHAND | SA_ONSTACK;
  return action;
}

void put_ours() {
  struct sigaction before{};
  const struct sigaction action = ours();
  if (real_sigaction(SIGSEGV, nullptr, &before) == 0 && is_default(before))
    (void)real_sigaction(SIGSEGV, &action, nullptr);
}

// As libc does it; then ours, where that is the default now.
sighandler_t as_libc(sighandler_t (*&real)(int, sighandler_t), const char* name, int signal,
                     sighandler_t handler) {
  look_up(real, name);
  const sighandler_t before = real(signal, handler);
  if (signal != SIGSEGV || !ready()) return before;
  put_ours();
  return reinterpret_cast<void*>(before) == reinterpret_cast<void*>(on_segv) ? SIG_DFL : before;
}

}  // namespace

void signals_prepare() { put_ours(); }

}  // namespace lunar::preload

using namespace lunar::preload;

LUNAR_EXPORT int sigaction(int signal, const struct sigaction* action,
                           struct sigaction* before) noexcept {
  if (signal != SIGSEGV || !ready()) return real_sigaction(signal, action, before);
  const struct sigaction instead = ours();
  const bool replaced = action != nullptr && is_default(*action);
  const int rc = real_sigaction(signal, replaced ? &instead : action, before);
  if (rc == 0 && before != nullptr && is_ours(*before)) {
    *before = {};
    before->sa_handler = SIG_DFL;
  }
  return rc;
}

LUNAR_EXPORT sighandler_t signal(int signal, sighandler_t handler) noexcept {
  return as_libc(g_real.signal, "signal", signal, handler);
}
LUNAR_EXPORT sighandler_t bsd_signal(int signal, sighandler_t handler) noexcept {
  return as_libc(g_real.signal, "signal", signal, handler);
}
LUNAR_EXPORT sighandler_t ssignal(int signal, sighandler_t handler) noexcept {
  return as_libc(g_real.signal, "signal", signal, handler);
}
LUNAR_EXPORT sighandler_t sysv_signal(int signal, sighandler_t handler) noexcept {
  return as_libc(g_real.sysv_signal, "__sysv_signal", signal, handler);
}
// What <signal.h> makes of signal() for programs of strict standard C.
LUNAR_EXPORT sighandler_t __sysv_signal(int signal, sighandler_t handler) noexcept {
  return as_libc(g_real.sysv_signal, "__sysv_signal", signal, handler);
}
LUNAR_EXPORT sighandler_t sigset(int signal, sighandler_t handler) noexcept {
  return as_libc(g_real.sigset, "sigset", signal, handler);
}
