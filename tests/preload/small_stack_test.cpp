// SPDX-License-Identifier: Apache-2.0
// small_stack_test LIBRARY CASE: calls from where there is little stack, with a page without rights below it.
//   fork         by a signal handler on a signal stack of 8 KiB, and by a thread with the smallest stack
//   memory       mlock, madvise, mremap, munmap and malloc by such a thread
//   activation   such a thread's malloc makes the process active
//   handler      mlock, madvise and fork by such a handler, which takes some of the stack itself
//   handler-activation, handler-fork-activation   such a handler's mmap, or fork, makes the process active
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>

#include <cstdint>

#include "preload_test.h"

namespace {

constexpr size_t kMiB = 1 << 20, kHeap = 64 * kMiB, kSignalStack = 8192;
constexpr int kPrivate = MAP_PRIVATE | MAP_ANONYMOUS;
char* g_heap = nullptr;
volatile int g_status = -1;

char* map_private(size_t bytes) {
  void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, kPrivate, -1, 0);
  CHECK(p != MAP_FAILED && tiered(p));
  return static_cast<char*>(p);
}

// Of so many bytes, above a page without rights.
char* make_stack(size_t bytes) {
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  void* p = mmap(nullptr, page + bytes, PROT_READ | PROT_WRITE, kPrivate | MAP_STACK, -1, 0);
  CHECK(p != MAP_FAILED && mprotect(p, page, PROT_NONE) == 0);
  return static_cast<char*>(p) + page;
}

void fork_once() {
  const pid_t child = fork();
  if (child == 0) _exit(holds(g_heap, kHeap, 1) ? 0 : 1);
  int status = -1;
  if (child > 0) (void)waitpid(child, &status, 0);
  g_status = status;
}

constexpr size_t kHandlersOwn = 512;
void on_signal(int) {
  volatile char own[kHandlersOwn];
  own[0] = 1;
  fork_once();
}

void use_memory_then_fork(int) {
  volatile char own[kHandlersOwn];
  own[0] = 1;
  CHECK(mlock(g_heap, kMiB) == 0 && munlock(g_heap, kMiB) == 0);
  CHECK(madvise(g_heap, 4 * kMiB, MADV_WILLNEED) == 0);
  fork_once();
}

void raise_on_small_stack(void (*handler)(int)) {
  stack_t stack{};
  stack.ss_sp = make_stack(kSignalStack);
  stack.ss_size = kSignalStack;
  struct sigaction action{};
  action.sa_handler = handler;
  action.sa_flags = SA_ONSTACK;
  CHECK(sigaltstack(&stack, nullptr) == 0 && sigaction(SIGUSR1, &action, nullptr) == 0);
  g_status = -1;
  CHECK(raise(SIGUSR1) == 0 && g_status == 0);
}

void run_in_small_thread(void* (*body)(void*)) {
  pthread_attr_t attributes;
  pthread_t thread;
  CHECK(pthread_attr_init(&attributes) == 0 && pthread_attr_setstacksize(&attributes, PTHREAD_STACK_MIN) == 0);
  CHECK(pthread_create(&thread, &attributes, body, nullptr) == 0 && pthread_join(thread, nullptr) == 0);
}

int fork_on_small_stacks() {
  fill(g_heap = map_private(kHeap), kHeap, 1);
  raise_on_small_stack(on_signal);
  g_status = -1;
  run_in_small_thread([](void*) -> void* {
    fork_once();
    return nullptr;
  });
  CHECK(g_status == 0);
  return 0;
}

void* use_memory(void*) {
  CHECK(mlock(g_heap, kMiB) == 0 && holds(g_heap, kMiB, 1) && munlock(g_heap, kMiB) == 0);
  CHECK(madvise(g_heap, 4 * kMiB, MADV_WILLNEED) == 0);
  char* more = map_private(8 * kMiB);
  memset(more, 1, 8 * kMiB);
  CHECK(madvise(more, 4 * kMiB, MADV_DONTNEED) == 0 && all_zero(more, 4 * kMiB));
  void* moved = mremap(more, 8 * kMiB, 16 * kMiB, MREMAP_MAYMOVE);
  CHECK(moved != MAP_FAILED && munmap(moved, 16 * kMiB) == 0);
  for (int turn = 0; turn < 8; ++turn) {
    void* block = malloc(4 * kMiB);
    CHECK(block != nullptr);
    memset(block, turn, 4 * kMiB);
    free(block);
  }
  return nullptr;
}

int memory_on_small_stack() {
  fill(g_heap = map_private(kHeap), kHeap, 1);
  run_in_small_thread(use_memory);
  CHECK(holds(g_heap, kHeap, 1));
  return 0;
}

int activation_on_small_stack() {
  run_in_small_thread([](void*) -> void* {
    for (unsigned i = 0; i < kHeap / kMiB; ++i) {
      void* block = malloc(kMiB);
      CHECK(block != nullptr);
      fill(block, kMiB, i);
    }
    return nullptr;
  });
  return 0;
}

int handler_on_small_stack() {
  fill(g_heap = map_private(kHeap), kHeap, 1);
  raise_on_small_stack(use_memory_then_fork);
  return 0;
}

void grow(int) {
  volatile char own[kHandlersOwn];
  own[0] = 1;
  fill(g_heap = map_private(kHeap), kHeap, 1);
  g_status = holds(g_heap, kHeap, 1) ? 0 : 1;
}

int activation_by_handler() {
  raise_on_small_stack(grow);
  return 0;
}

// Plain so far; with a child of that size it cannot stay so.
int fork_by_handler_activates() {
  constexpr size_t kHalf = 8 * kMiB;
  fill(g_heap = map_private(kHalf), kHalf, 1);
  raise_on_small_stack([](int) {
    volatile char own[kHandlersOwn];
    own[0] = 1;
    const pid_t child = fork();
    if (child == 0) _exit(holds(g_heap, kHalf, 1) ? 0 : 1);
    int status = -1;
    if (child > 0) (void)waitpid(child, &status, 0);
    g_status = status;
  });
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  int (*body)() = strcmp(argv[2], "fork") == 0                      ? fork_on_small_stacks
                  : strcmp(argv[2], "memory") == 0                  ? memory_on_small_stack
                  : strcmp(argv[2], "handler") == 0                 ? handler_on_small_stack
                  : strcmp(argv[2], "handler-activation") == 0      ? activation_by_handler
                  : strcmp(argv[2], "handler-fork-activation") == 0 ? fork_by_handler_activates
                                                                    : activation_on_small_stack;
  return run_preloaded(argc, argv, {"LUNAR_DRAM=16m", "LUNAR_SIZE=1g"}, body);
}
