// SPDX-License-Identifier: Apache-2.0
// The fatal stop: see fatal.h. The first thread prints and runs the hook; others wait until the
// abort ends them. Threading: any thread, also on the fault path and in a forked child; allocates
// nothing.
#include "sys/fatal.h"

#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>

#include <atomic>

#include "base/error.h"
#include "base/format.h"
#include "sys/file.h"
#include "sys/kernel_call.h"
#include "sys/thread.h"

namespace lunar {
namespace {

std::atomic<void (*)()> g_fatal_hook{nullptr};
std::atomic<int> g_fatal_thread{0};

// The program's own SIGABRT handler must not run: it might touch tiered memory, which is no longer
// served.
[[noreturn]] void stop() {
  sys::default_signal(SIGABRT);
  abort();
}

}  // namespace

bool is_refusal(int64_t result) {
  return result == -EPERM || result == -EACCES || result == -ENOSYS;
}

void fatal_if_refused(int64_t result, const char* what) {
  if (is_refusal(result))
    fatal(
        "the kernel refuses %s (%s) since the program has restricted its system calls (seccomp?); "
        "evicted pages would stay missing: allow it in the filter, or run the program without "
        "Lunar",
        what, errno_name(static_cast<int>(result)));
}

void fatal(const char* format, ...) {
  char line[1024];
  size_t length = format_to(line, sizeof line, "lunar: FATAL: ");
  va_list args;
  va_start(args, format);
  length += vformat_line_to(line + length, sizeof line - 1 - length, format, args);
  va_end(args);
  line[length++] = '\n';
  int self = sys::thread_id();
  int first = 0;
  const bool is_first = g_fatal_thread.compare_exchange_strong(first, self);
  if (is_first || first == self) (void)!sys::write_to_program(2, line, length);
  if (is_first) {
    if (void (*hook)() = g_fatal_hook.load()) hook();
  } else if (first != self) {
    sys::sleep_ns(2'000'000'000);  // let the first one finish its report
  }
  stop();
}

void set_fatal_hook(void (*hook)()) { g_fatal_hook.store(hook); }

}  // namespace lunar
