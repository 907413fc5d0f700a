// SPDX-License-Identifier: Apache-2.0
// Children made past fork(): by _Fork, clone, and syscall with each number that forks, each with
// evicted memory that it must see as it was; and one that shares its parent's memory (clone with
// CLONE_VM) and makes the heap grow, which must not take the parent with it.
#include <ctype.h>
#include <locale.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <threads.h>
#include <ucontext.h>

#include "preload_test.h"

extern "C" int64_t lunar_evict(const void*, size_t) __attribute__((weak));
extern "C" pid_t _Fork(void) noexcept;

namespace {

constexpr size_t kBytes = 32 * kMiB;  // twice the budget
char* g_memory = nullptr;
char* g_stack = nullptr;

int child_body(void*) {
  REQUIRE(holds(g_memory, kBytes, 1));
  fill(g_memory, kBytes / 2, 2);
  REQUIRE(holds(g_memory, kBytes / 2, 2));
  char* more = map_tiered(8 * kMiB);
  fill(more, 8 * kMiB, 3);
  REQUIRE(holds(more, 8 * kMiB, 3) &&
          holds(g_memory + kBytes / 2, kBytes / 2, 1, kBytes / 2 / sizeof(long)));
  _exit(7);
}

long by_fork_alone() { return _Fork(); }
long by_clone() { return clone(child_body, g_stack + kMiB, SIGCHLD, nullptr); }
long by_syscall_clone() { return syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0); }
#ifdef SYS_fork
long by_syscall_fork() { return syscall(SYS_fork); }
#endif
long by_syscall_clone3() {
  uint64_t arguments[11] = {};
  arguments[4] = SIGCHLD;
  return syscall(SYS_clone3, arguments, sizeof arguments);
}

struct Way {
  const char* name;
  long (*make)();
};
const Way kWays[] = {{"_Fork", by_fork_alone},
                     {"clone", by_clone},
                     {"syscall(SYS_clone)", by_syscall_clone},
#ifdef SYS_fork
                     {"syscall(SYS_fork)", by_syscall_fork},
#endif
                     {"syscall(SYS_clone3)", by_syscall_clone3}};

void ends_by_7(pid_t pid, const char* what) {
  const int status = status_of(pid);
  REQUIRE(status == 7 << 8, "%s: ended with status %x", what, status);
}

void children_have_their_memory() {
  for (const Way& way : kWays) {
    fill(g_memory, kBytes, 1);
    REQUIRE(lunar_evict(g_memory, kBytes / 4) >= 0);
    const long pid = way.make();
    if (pid == 0) child_body(nullptr);
    REQUIRE(pid > 0);
    fill(g_memory, kBytes, 4);
    ends_by_7(static_cast<pid_t>(pid), way.name);
    REQUIRE(holds(g_memory, kBytes, 4));
  }
}

// The kernel answers for arguments that cannot be read. (A container may know no clone3.)
void unreadable_arguments_are_refused() {
  constexpr long kNowhere = 16, kBytesOfArguments = 88;
  REQUIRE(syscall(SYS_clone3, kNowhere, kBytesOfArguments) == -1 &&
          (errno == EFAULT || errno == ENOSYS));
  const long self = syscall(SYS_pidfd_open, getpid(), 0);
  REQUIRE(self >= 0);
  REQUIRE(syscall(SYS_process_madvise, self, kNowhere, 1, MADV_COLD, 0) == -1 && errno == EFAULT);
  close(static_cast<int>(self));
}

// Grows the heap far past what a process may hold before the pager starts, in memory that is its
// parent's.
int grow_in_parents_memory(void*) {
  for (int i = 0; i < 96; ++i) {
    void* block = mmap(nullptr, kMiB, kRw, kPrivate, -1, 0);
    if (block == MAP_FAILED) break;  // may be refused
    fill(block, kMiB, 5);
  }
  return 7;
}

void a_child_that_shares_memory_may_end() {
  // Its output goes into a pipe.
  int ends[2];
  const int errors = dup(STDERR_FILENO);
  REQUIRE(errors >= 0 && pipe(ends) == 0 && dup2(ends[1], STDERR_FILENO) == STDERR_FILENO);
  const int pid = clone(grow_in_parents_memory, g_stack + kMiB, CLONE_VM | SIGCHLD, nullptr);
  REQUIRE(pid > 0);
  REQUIRE(dup2(errors, STDERR_FILENO) == STDERR_FILENO && close(errors) == 0 &&
          close(ends[1]) == 0);
  ends_by_7(pid, "in its parent's memory");
  char said[1024] = {};
  REQUIRE(read(ends[0], said, sizeof said - 1) >= 0 && close(ends[0]) == 0);
  fputs(said, stderr);
  REQUIRE(strstr(said, "not started by process") != nullptr &&
          strchr(said, '\n') == said + strlen(said) - 1);
  g_memory = map_tiered(kBytes);
  fill(g_memory, kBytes, 1);
  REQUIRE(holds(g_memory, kBytes, 1));
}

// libc's tables of the locale lie on the heap, and every thread reads them when it begins: those
// too that will serve the child's faults.
void the_locale_is_evicted() {
  if (setlocale(LC_CTYPE, "C.UTF-8") == nullptr) {
    printf("no locale but C here: not tried\n");
    return;
  }
  locale_t copy = duplocale(LC_GLOBAL_LOCALE);
  REQUIRE(copy != nullptr && tiered(copy->__locales[LC_CTYPE]));
  for (int round = 0; round < 3; ++round) {
    REQUIRE(lunar_evict(copy->__locales[LC_CTYPE], 4096) >= 0);
    const pid_t pid = fork();
    REQUIRE(pid >= 0);
    if (pid == 0) _exit(toupper('a') == 'A' && holds(g_memory, kBytes, 4) ? 7 : 1);
    ends_by_7(pid, "with an evicted locale");
  }
  freelocale(copy);
}

// A coroutine's stack is memory like any other: what is evicted of it is there for a child that
// runs on it.
char* g_coroutine_stack = nullptr;
ucontext_t g_caller, g_coroutine;
const Way* g_way = nullptr;
pid_t g_forked = -1;

void fork_on_it() {
  volatile char local[2 * 4096];
  for (size_t i = 0; i < sizeof local; ++i) local[i] = static_cast<char>(i);
  REQUIRE(lunar_evict(g_coroutine_stack, kMiB) >= 0);
  const long pid = g_way->make();
  bool same = true;
  for (size_t i = 0; i < sizeof local; ++i) same = same && local[i] == static_cast<char>(i);
  if (pid == 0) _exit(same && holds(g_memory, kBytes, 4) ? 7 : 1);
  REQUIRE(same && pid > 0);
  g_forked = static_cast<pid_t>(pid);
}

void children_begin_on_tiered_stacks() {
  g_coroutine_stack = map_tiered(kMiB);
  fill(g_coroutine_stack, kMiB, 9);
  for (const Way& way : kWays) {
    if (way.make == by_clone) continue;
    REQUIRE(getcontext(&g_coroutine) == 0);
    g_coroutine.uc_stack.ss_sp = g_coroutine_stack;
    g_coroutine.uc_stack.ss_size = kMiB;
    g_coroutine.uc_link = &g_caller;
    g_way = &way;
    makecontext(&g_coroutine, fork_on_it, 0);
    REQUIRE(swapcontext(&g_caller, &g_coroutine) == 0);
    ends_by_7(g_forked, way.name);
  }
  for (const Way& way : kWays) {  // its local storage is also on that stack
    if (way.make == by_clone) continue;
    pthread_attr_t attributes;
    pthread_t thread;
    REQUIRE(pthread_attr_init(&attributes) == 0);
    REQUIRE(pthread_attr_setstack(&attributes, g_coroutine_stack, kMiB) == 0);
    g_way = &way;
    auto run = [](void*) -> void* { return fork_on_it(), nullptr; };
    REQUIRE(pthread_create(&thread, &attributes, run, nullptr) == 0 &&
            pthread_join(thread, nullptr) == 0);
    ends_by_7(g_forked, way.name);
  }
  for (int round = 0; round < 3; ++round) {
    fill(g_memory, kBytes, 1);
    REQUIRE(lunar_evict(g_coroutine_stack, kMiB) >= 0);
    const int pid = clone(child_body, g_coroutine_stack + kMiB, SIGCHLD, nullptr);
    REQUIRE(pid > 0);
    ends_by_7(pid, "clone");
  }
  fill(g_memory, kBytes, 4);
}

// In a child libc clears what other threads of its parent had under their later keys, in a block
// that it has allocated, before any handler of ours runs: it is cleared for new threads, and what
// lies beside it on the heap is there.
constexpr int kKeys = 48, kBlocks = 64, kBlock = 512;
pthread_key_t g_keys[kKeys];
char* g_blocks[kBlocks];
int g_stage = 0;

void* uses_many_keys(void*) {
  for (int i = 0; i < kBlocks; ++i) {
    g_blocks[i] = static_cast<char*>(malloc(kBlock));
    REQUIRE(g_blocks[i] != nullptr && tiered(g_blocks[i]));
    memset(g_blocks[i], 0x5a, kBlock);
    if (i == kBlocks / 2) REQUIRE(pthread_setspecific(g_keys[kKeys - 1], &g_stage) == 0);
  }
  REQUIRE(tss_set(g_keys[kKeys - 2], &g_keys) == thrd_success);
  __atomic_store_n(&g_stage, 1, __ATOMIC_RELEASE);
  while (__atomic_load_n(&g_stage, __ATOMIC_ACQUIRE) == 1) usleep(1000);
  REQUIRE(pthread_getspecific(g_keys[kKeys - 1]) == &g_stage &&
          tss_get(g_keys[kKeys - 2]) == &g_keys);
  return nullptr;
}

// A new thread of the child may get the stack, and with it the block, of the one that it does not
// have.
void* has_no_values(void*) {
  for (const pthread_key_t key : g_keys) REQUIRE(pthread_getspecific(key) == nullptr);
  return nullptr;
}

void other_threads_keys_are_evicted() {
  for (pthread_key_t& key : g_keys) REQUIRE(pthread_key_create(&key, nullptr) == 0);
  pthread_t thread;
  REQUIRE(pthread_create(&thread, nullptr, uses_many_keys, nullptr) == 0);
  while (__atomic_load_n(&g_stage, __ATOMIC_ACQUIRE) == 0) usleep(1000);
  for (int round = 0; round < 5; ++round) {
    for (char* block : g_blocks) REQUIRE(lunar_evict(block, kBlock) >= 0);
    const pid_t pid = fork();
    REQUIRE(pid >= 0);
    if (pid == 0) {
      for (char* block : g_blocks)
        for (int i = 0; i < kBlock; ++i) REQUIRE(block[i] == 0x5a);
      pthread_t threads[8];
      for (pthread_t& one : threads)
        REQUIRE(pthread_create(&one, nullptr, has_no_values, nullptr) == 0);
      for (const pthread_t one : threads) REQUIRE(pthread_join(one, nullptr) == 0);
      _exit(7);
    }
    ends_by_7(pid, "with a thread of many keys");
  }
  __atomic_store_n(&g_stage, 2, __ATOMIC_RELEASE);
  REQUIRE(pthread_join(thread, nullptr) == 0);
  for (char* block : g_blocks) free(block);
}

// libc's list of fork handlers grows beyond the few that it has room for in itself, and is read in
// the child before there is a handler of ours. Each must run, though the heap is evicted all the
// while.
constexpr int kHandlers = 100;
int g_before = 0, g_in_child = 0;

// Evicts the tiered memory up to 256 KiB on both sides. How far it extends is the kernel's choice
// of places.
void* evict_around(void* middle) {
  constexpr size_t kStep = 4096, kReach = 256 * 1024;
  const char *begin = static_cast<char*>(middle), *end = begin;
  while (begin > static_cast<char*>(middle) - kReach && tiered(begin - kStep)) begin -= kStep;
  while (end < static_cast<char*>(middle) + kReach && tiered(end)) end += kStep;
  while (__atomic_load_n(&g_stage, __ATOMIC_ACQUIRE) == 3) {
    const int64_t evicted = lunar_evict(begin, static_cast<size_t>(end - begin));
    if (evicted < 0)
      fprintf(stderr, "eviction around %p: %s\n", middle, strerror(static_cast<int>(-evicted)));
    REQUIRE(evicted >= 0);
  }
  return nullptr;
}

void many_fork_handlers() {
  for (int i = 0; i < kHandlers; ++i)
    REQUIRE(pthread_atfork([] { ++g_before; }, nullptr, [] { ++g_in_child; }) == 0);
  char* near = nullptr;
  for (int i = 0; i < kBlocks; ++i) {  // as large as a list of that many
    g_blocks[i] = static_cast<char*>(malloc(kHandlers * 4 * sizeof(void*)));
    REQUIRE(g_blocks[i] != nullptr);
    if (near == nullptr || g_blocks[i] < near) near = g_blocks[i];
  }
  g_stage = 3;
  pthread_t thread;
  REQUIRE(pthread_create(&thread, nullptr, evict_around, near) == 0);
  for (int round = 0; round < 30; ++round) {
    g_before = 0;
    const pid_t pid = fork();
    REQUIRE(pid >= 0 && g_before == kHandlers);
    if (pid == 0) {
      if (g_in_child != kHandlers)
        fprintf(stderr, "%d of %d fork handlers ran\n", g_in_child, kHandlers);
      _exit(g_in_child == kHandlers && holds(g_memory, kBytes / 8, 4) ? 7 : 1);
    }
    ends_by_7(pid, "with many fork handlers");
  }
  __atomic_store_n(&g_stage, 4, __ATOMIC_RELEASE);
  REQUIRE(pthread_join(thread, nullptr) == 0);
  for (char* block : g_blocks) free(block);
}

// A fork handler of the program's, in the child. Signals are held while Lunar's own run.
void unblock_usr1() {
  sigset_t one;
  REQUIRE(sigemptyset(&one) == 0 && sigaddset(&one, SIGUSR1) == 0 &&
          sigprocmask(SIG_UNBLOCK, &one, nullptr) == 0);
}

void what_a_handler_unblocks_is_unblocked() {
  sigset_t both, now;
  REQUIRE(sigemptyset(&both) == 0 && sigaddset(&both, SIGUSR1) == 0 &&
          sigaddset(&both, SIGUSR2) == 0);
  REQUIRE(pthread_atfork(nullptr, nullptr, unblock_usr1) == 0 &&
          sigprocmask(SIG_BLOCK, &both, nullptr) == 0);
  const pid_t pid = fork();
  REQUIRE(sigprocmask(SIG_BLOCK, nullptr, &now) == 0);
  if (pid == 0) _exit(sigismember(&now, SIGUSR1) == 0 && sigismember(&now, SIGUSR2) == 1 ? 7 : 1);
  REQUIRE(sigismember(&now, SIGUSR1) == 1 && sigismember(&now, SIGUSR2) == 1 &&
          sigismember(&now, SIGTERM) == 0);
  ends_by_7(pid, "with a fork handler that unblocks a signal");
  REQUIRE(sigprocmask(SIG_UNBLOCK, &both, nullptr) == 0);
}

void body() {
  // Not tiered: a child begins on it before it is served.
  g_stack = static_cast<char*>(mmap(nullptr, kMiB, kRw, kPrivate | MAP_STACK, -1, 0));
  REQUIRE(g_stack != MAP_FAILED && !tiered(g_stack));
  a_child_that_shares_memory_may_end();
  children_have_their_memory();
  unreadable_arguments_are_refused();
  children_begin_on_tiered_stacks();
  other_threads_keys_are_evicted();
  the_locale_is_evicted();
  many_fork_handlers();
  what_a_handler_unblocks_is_unblocked();
}

}  // namespace

int main(int argc, char** argv) {
  return run_cases(argc, argv, {"LUNAR_DRAM=16m", "LUNAR_SIZE=1g"}, {{"all", body}});
}
