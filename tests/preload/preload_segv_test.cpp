// SPDX-License-Identifier: Apache-2.0
// A program under the preload library, which has a handler of SIGSEGV, dies of it as a plain one does, and is shown the
// default action by every function of libc's that tells one.
//
//   preload_segv_test LIBRARY      starts itself under LIBRARY with a case's name
//
// Threading: threads of its own. May not: leave processes behind.
#include <errno.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>

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
int dies_of_each_fault() {
  for (unsigned i = 0; i < 400; ++i) {
    const pid_t child = fork();
    if (child == 0) {
      auto* page = static_cast<char*>(mmap(nullptr, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
      std::atomic<bool> go{false}, ready{false};
      std::thread other([&] {
        ready.store(true);
        while (!go.load()) {}
        for (std::atomic<unsigned> wait{0}; wait.load() < i * 2; wait.fetch_add(1)) {}
        (void)mprotect(page, 4096, PROT_READ | PROT_WRITE);
      });
      while (!ready.load()) {}
      go.store(true);
      *const_cast<volatile char*>(page) = 1;
      _exit(handled() ? 0 : 3);  // 0: it came too late for a fault
    }
    int status = 0;
    if (waitpid(child, &status, 0) != child) return 1;
    if (status != 0 && !(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV))
      return printf("try %u: status %x\n", i, status), 1;
  }
  return 0;
}

int shows_the_default() {
  sighandler_t (*const all[])(int, sighandler_t) = {signal, ssignal, sysv_signal, __sysv_signal, sigset};
  for (auto* one : all) {
    for (const sighandler_t next : {handler, SIG_DFL}) {
      const sighandler_t before = one(SIGSEGV, next);
      if (before != (next == SIG_DFL ? handler : SIG_DFL)) return printf("not what was set before\n"), 1;
    }
    struct sigaction now;
    if (sigaction(SIGSEGV, nullptr, &now) != 0 || now.sa_handler != SIG_DFL) return printf("not the default\n"), 1;
  }
  return 0;
}

int ends_by_a_sent_one() {
  const pid_t child = fork();
  if (child == 0) {
    (void)raise(SIGSEGV);
    _exit(0);
  }
  int status = 0;
  return waitpid(child, &status, 0) == child && WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV ? 0 : 1;
}

int begins_without_an_error() { return errno_at_start; }

const struct {
  const char* name;
  int (*run)();
} kCases[] = {{"faults", dies_of_each_fault},
              {"default", shows_the_default},
              {"sent", ends_by_a_sent_one},
              {"errno", begins_without_an_error}};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  for (const auto& one : kCases)
    if (strcmp(argv[1], one.name) == 0) return one.run();
  int failed = 0;
  for (const auto& one : kCases) {
    const pid_t child = fork();
    if (child == 0) {
      setenv("LD_PRELOAD", argv[1], 1);
      setenv("LUNAR_DRAM", "64m", 1);
      execl("/proc/self/exe", argv[0], one.name, nullptr);
      _exit(127);
    }
    int status = 0;
    const bool passed = waitpid(child, &status, 0) == child && status == 0;
    printf("%s %s\n", passed ? "ok" : "FAIL", one.name);
    failed += passed ? 0 : 1;
  }
  return failed ? 1 : 0;
}
