// SPDX-License-Identifier: Apache-2.0
// One line for a child that was forked past this library (a system call of the program's own code). No fork handler
// ran, so its parent's tiered memory is not there (MADV_DONTFORK), and its first touch of it is SIGSEGV. Nothing of
// ours runs in such a child, and the kernel tells nobody of it: so the line is that of a handler of SIGSEGV, which
// stands where the program has the default action. sigaction and signal show the program the default in its place.
// What the handler does not know it leaves to the default action: same status, same address in a core dump.
// (sigset, sysv_signal and system calls see the handler; what they set stands.)
//
// Threading: any thread. The handler also runs in children that nothing was prepared for: it takes no lock.
#include <dlfcn.h>
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

// Looked up by the constructor; nobody but libc calls before that.
template <class F>
F* known(F*& slot, const char* name) {
  if (slot == nullptr) slot = reinterpret_cast<F*>(dlsym(RTLD_NEXT, name));
  return slot;
}

int real_sigaction(int signal, const struct sigaction* action, struct sigaction* before) {
  return known(g_real.sigaction, "sigaction")(signal, action, before);
}

void on_segv(int signal, siginfo_t* info, void*) {
  struct sigaction none{};
  none.sa_handler = SIG_DFL;
  (void)real_sigaction(signal, &none, nullptr);
  // It was sent, or is the kernel's without an address: when this returns it may not be raised again, as a fault is.
  if (info->si_code <= 0 || info->si_code == SI_KERNEL) {
    (void)sys::kernel_call(SYS_rt_tgsigqueueinfo,
                           {getpid(), sys::thread_id(), signal, reinterpret_cast<long>(info), 0, 0});
    return;
  }
  if (const int parent = pager_parent_past_us(info->si_addr); parent != 0)
    log_error(
        "this process was forked from %d by a system call past Lunar, and has none of its tiered memory: it ends by "
        "SIGSEGV at %p; use libc's fork or syscall(), or run the program without Lunar",
        parent, info->si_addr);
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
  action.sa_flags = SA_SIGINFO;
  return action;
}

}  // namespace

void signals_prepare() {
  struct sigaction before{};
  const struct sigaction action = ours();
  if (real_sigaction(SIGSEGV, nullptr, &before) == 0 && is_default(before))
    (void)real_sigaction(SIGSEGV, &action, nullptr);
}

}  // namespace lunar::preload

using namespace lunar::preload;

LUNAR_EXPORT int sigaction(int signal, const struct sigaction* action, struct sigaction* before) noexcept {
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
  if (signal != SIGSEGV || !ready() || handler == SIG_ERR) return known(g_real.signal, "signal")(signal, handler);
  struct sigaction action{}, before{};
  action.sa_handler = handler;
  action.sa_flags = SA_RESTART;
  sigaddset(&action.sa_mask, signal);
  return sigaction(signal, &action, &before) == 0 ? before.sa_handler : SIG_ERR;
}
