// SPDX-License-Identifier: Apache-2.0
// Start of the preload library. Linked `-z initfirst`: this constructor runs before libc's own,
// jemalloc's and those of every other library, so that fork handlers registered here enclose
// theirs. Parts of libc that need its initialisers (environ, stdio) are not ready yet: the
// environment comes as the constructor's argument.
//
// If it cannot start the tier, it prints one line and ends the process with 125: a program must not
// run untiered by accident. Threading: runs once, before the program has threads.
#include "preload.h"

#include <dlfcn.h>
#include <errno.h>
#include <unistd.h>

#include "base/format.h"
#include "code_ranges.h"
#include "exit_stats.h"
#include "fork_family.h"
#include "heap/heap.h"
#include "heap/start.h"
#include "jemalloc_family.h"
#include "pager/pager.h"
#include "program_malloc.h"
#include "real_calls.h"
#include "server_gate.h"
#include "sys/file.h"
#include "sys/kernel_call.h"
#include "sys/program_file.h"
#include "thread_family.h"

namespace lunar::preload {

constinit std::atomic<Phase> g_phase{Phase::kEarly};
constinit Options g_options;

namespace {

[[noreturn]] void refuse(const ErrorText& why) {
  char line[sizeof(why.text) + 32];
  size_t length = format_to(line, sizeof(line), "lunar: %s\n", why.text);
  (void)!write(STDERR_FILENO, line, length);
  for (;;)
    // not by _exit: a sanitizer's needs its constructor, which comes later
    (void)sys::kernel_call(SYS_exit_group, {125});
}

// Sanitizers have a malloc of their own, and check all of the program's memory.
void refuse_sanitizers(const char* program) {
  ErrorText why;
  for (unsigned i = 0; const char* symbol = sys::sanitizer_symbol(i); ++i) {
    if (dlsym(RTLD_DEFAULT, symbol) == nullptr) continue;
    (void)why.set(-ENOTSUP,
                  "%s, or a library of it, is built with %s, which needs the memory that Lunar "
                  "serves; run it without Lunar (env -u LD_PRELOAD)",
                  program != nullptr ? program : "this program", sys::sanitizer_name(i));
    refuse(why);
  }
}

[[noreturn]] void refuse_forks(int rc) {
  ErrorText why;
  (void)why.set(rc, "fork handlers cannot be installed (%s)", errno_name(rc));
  refuse(why);
}

__attribute__((constructor(101))) void start(int, char** words, char** environment) {
  HostGuard guard;
  const int errno_of_program = errno;  // 0 when main begins
  if (environ == nullptr)
    environ = environment;  // libc's initialiser, which sets it, has not run yet
  // The calls include those of io_uring, because activation makes the runtime's own rings, when
  // another thread may hold the linker's lock.
  real_calls_prepare();
  ErrorText why;
  if (options_load(&g_options, environment, &why) < 0) refuse(why);
  refuse_sanitizers(words[0]);
  code_ranges_prepare(jemalloc_prepare());
  // Loads libnuma, which frees memory that libc has allocated for it, by the program's malloc if
  // that is the one of libc.
  pager_read_nodes();
  if (program_malloc_prepare(&why) < 0) refuse(why);
  // Before the first use of jemalloc: the pager's fork handlers must be older than jemalloc's
  // (prepare handlers run youngest first).
  if (start_tier(g_options, &why) < 0) refuse(why);
  if (program_malloc_prepare_blkid(&why) < 0) refuse(why);
  if (const int rc = forks_prepare(); rc < 0) refuse_forks(rc);
  g_phase.store(Phase::kGuarded, std::memory_order_release);
  if (heap_create(HeapMode::kPreload, &why) < 0) refuse(why);
  if (const int rc = forks_register_waiting(); rc < 0) refuse_forks(rc);
  threads_prepare();
  stats_prepare();
  server_gate_start();
  g_phase.store(Phase::kReady, std::memory_order_release);
  errno = errno_of_program;
}

__attribute__((destructor)) void finish() { stats_print(); }

}  // namespace

}  // namespace lunar::preload
