// SPDX-License-Identifier: Apache-2.0
// Calls from where there is little stack, with a page without rights below it: by the smallest
// thread, and by a handler on a signal stack of 8 KiB. Forks, calls about memory, and the call that
// makes the process active.
#include <limits.h>
#include <pthread.h>
#include <signal.h>

#include <cstdint>

#include "preload_test.h"

namespace {

constexpr size_t kHeap = 64 * kMiB, kSignalStack = 8192;
char* g_heap = nullptr;
size_t g_held = kHeap;
volatile int g_status = -1;

// A stack of that many bytes, above a page without rights.
char* make_stack(size_t bytes) {
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  void* p = mmap(nullptr, page + bytes, kRw, kPrivate | MAP_STACK, -1, 0);
  REQUIRE(p != MAP_FAILED && mprotect(p, page, PROT_NONE) == 0);
  return static_cast<char*>(p) + page;
}

void fork_once() {
  const pid_t child = fork();
  if (child == 0) _exit(holds(g_heap, g_held, 1) ? 0 : 1);
  int status = -1;
  if (child > 0) (void)waitpid(child, &status, 0);
  g_status = status;
}

constexpr size_t kHandlersOwn = 512;
void on_signal(int) {
  [[maybe_unused]] volatile char own[kHandlersOwn];
  own[0] = 1;
  fork_once();
}

void use_memory_then_fork(int) {
  [[maybe_unused]] volatile char own[kHandlersOwn];
  own[0] = 1;
  REQUIRE(mlock(g_heap, kMiB) == 0 && munlock(g_heap, kMiB) == 0);
  REQUIRE(madvise(g_heap, 4 * kMiB, MADV_WILLNEED) == 0);
  fork_once();
}

void raise_on_small_stack(void (*handler)(int)) {
  stack_t stack{};
  stack.ss_sp = make_stack(kSignalStack);
  stack.ss_size = kSignalStack;
  struct sigaction action{};
  action.sa_handler = handler;
  action.sa_flags = SA_ONSTACK;
  REQUIRE(sigaltstack(&stack, nullptr) == 0 && sigaction(SIGUSR1, &action, nullptr) == 0);
  g_status = -1;
  REQUIRE(raise(SIGUSR1) == 0 && g_status == 0);
}

void run_in_small_thread(void* (*body)(void*)) {
  pthread_attr_t attributes;
  pthread_t thread;
  REQUIRE(pthread_attr_init(&attributes) == 0 &&
          pthread_attr_setstacksize(&attributes, PTHREAD_STACK_MIN) == 0);
  REQUIRE(pthread_create(&thread, &attributes, body, nullptr) == 0 &&
          pthread_join(thread, nullptr) == 0);
}

int fork_on_small_stacks() {
  fill(g_heap = map_tiered(kHeap), kHeap, 1);
  raise_on_small_stack(on_signal);
  g_status = -1;
  run_in_small_thread([](void*) -> void* {
    fork_once();
    return nullptr;
  });
  REQUIRE(g_status == 0);
  return 0;
}

void* use_memory(void*) {
  REQUIRE(mlock(g_heap, kMiB) == 0 && holds(g_heap, kMiB, 1) && munlock(g_heap, kMiB) == 0);
  REQUIRE(madvise(g_heap, 4 * kMiB, MADV_WILLNEED) == 0);
  char* more = map_tiered(8 * kMiB);
  memset(more, 1, 8 * kMiB);
  REQUIRE(madvise(more, 4 * kMiB, MADV_DONTNEED) == 0 && all_zero(more, 4 * kMiB));
  void* moved = mremap(more, 8 * kMiB, 16 * kMiB, MREMAP_MAYMOVE);
  REQUIRE(moved != MAP_FAILED && munmap(moved, 16 * kMiB) == 0);
  for (int turn = 0; turn < 8; ++turn) {
    void* block = malloc(4 * kMiB);
    REQUIRE(block != nullptr);
    memset(block, turn, 4 * kMiB);
    free(block);
  }
  return nullptr;
}

void memory_on_small_stack() {
  fill(g_heap = map_tiered(kHeap), kHeap, 1);
  run_in_small_thread(use_memory);
  REQUIRE(holds(g_heap, kHeap, 1));
}

int activation_on_small_stack() {
  run_in_small_thread([](void*) -> void* {
    for (unsigned i = 0; i < kHeap / kMiB; ++i) {
      void* block = malloc(kMiB);
      REQUIRE(block != nullptr);
      fill(block, kMiB, i);
    }
    return nullptr;
  });
  return 0;
}

void handler_on_small_stack() {
  fill(g_heap = map_tiered(kHeap), kHeap, 1);
  raise_on_small_stack(use_memory_then_fork);
}

void grow(int) {
  [[maybe_unused]] volatile char own[kHandlersOwn];
  own[0] = 1;
  fill(g_heap = map_tiered(kHeap), kHeap, 1);
  g_status = holds(g_heap, kHeap, 1) ? 0 : 1;
}

void activation_by_handler() { raise_on_small_stack(grow); }

// Plain so far; with a child of that size it cannot stay so.
void fork_by_handler_activates() {
  g_held = 8 * kMiB;
  fill(g_heap = map_tiered(g_held), g_held, 1);
  raise_on_small_stack(on_signal);
}

}  // namespace

int main(int argc, char** argv) {
  return run_cases(argc, argv, {"LUNAR_DRAM=16m", "LUNAR_SIZE=1g"},
                   {{"fork", fork_on_small_stacks},
                    {"memory", memory_on_small_stack},
                    {"activation", activation_on_small_stack},
                    {"handler", handler_on_small_stack},
                    {"handler-activation", activation_by_handler},
                    {"handler-fork-activation", fork_by_handler_activates}});
}
