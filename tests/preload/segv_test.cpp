// SPDX-License-Identifier: Apache-2.0
// A program under the preload library, which has a handler of SIGSEGV, dies of it as a plain one
// does, and is shown the default action by every function of libc's that tells one.
#include <signal.h>
#include <sys/syscall.h>

#include <atomic>
#include <thread>

#include "preload_test.h"

extern "C" sighandler_t __sysv_signal(int, sighandler_t);

namespace {

int errno_at_start;
struct NoteErrno {
  NoteErrno() { errno_at_start = errno; }
} note_errno;

void handler(int) {}

// The handler that the kernel knows, which libc's functions do not show.
bool handled() {
  unsigned long action[4] = {};
  return syscall(SYS_rt_sigaction, SIGSEGV, nullptr, action, 8) == 0 && action[0] != 0;
}

// A page that becomes accessible just behind the fault: the fault counts.
void dies_of_each_fault() {
  for (unsigned i = 0; i < 400; ++i) {
    const pid_t child = fork();
    if (child == 0) {
      auto* page = static_cast<char*>(mmap(nullptr, 4096, PROT_NONE, kPrivate, -1, 0));
      std::atomic<bool> go{false}, ready{false};
      std::thread other([&] {
        ready.store(true);
        while (!go.load()) {}
        for (std::atomic<unsigned> wait{0}; wait.load() < i * 2; wait.fetch_add(1)) {}
        (void)mprotect(page, 4096, kRw);
      });
      while (!ready.load()) {}
      go.store(true);
      *const_cast<volatile char*>(page) = 1;
      _exit(handled() ? 0 : 3);  // 0: it came too late for a fault
    }
    const int status = status_of(child);
    if (status != 0) REQUIRE(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
  }
}

void shows_the_default() {
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
  sighandler_t (*const all[])(int, sighandler_t) = {signal, ssignal, sysv_signal, __sysv_signal,
                                                    sigset};
#pragma GCC diagnostic pop
  for (auto* one : all) {
    for (const sighandler_t next : {handler, SIG_DFL}) {
      const sighandler_t before = one(SIGSEGV, next);
      REQUIRE(before == (next == SIG_DFL ? handler : SIG_DFL));
    }
    struct sigaction now;
    REQUIRE(sigaction(SIGSEGV, nullptr, &now) == 0 && now.sa_handler == SIG_DFL);
  }
}

void ends_by_a_sent_one() {
  const pid_t child = fork();
  if (child == 0) {
    (void)raise(SIGSEGV);
    _exit(0);
  }
  const int status = status_of(child);
  REQUIRE(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
}

int begins_without_an_error() { return errno_at_start; }

}  // namespace

int main(int argc, char** argv) {
  return run_cases(argc, argv, {"LUNAR_DRAM=64m"},
                   {{"faults", dies_of_each_fault},
                    {"default", shows_the_default},
                    {"sent", ends_by_a_sent_one},
                    {"errno", begins_without_an_error}});
}
