// SPDX-License-Identifier: Apache-2.0
// The kernel's writes to evicted memory when a thread ends: it marks the robust mutexes that the
// thread held (the next locker gets EOWNERDEAD), and clears the thread's id (pthread_join returns).
// Children made by clone() in the program's memory also have such an id.
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <time.h>

#include <atomic>
#include <thread>
#include <vector>

#include "preload_test.h"

extern "C" int64_t lunar_evict(const void*, size_t) __attribute__((weak));

namespace {

constexpr size_t kPage = 4096, kStack = 64 * 4096;
constexpr unsigned kThreads = 16, kRounds = 12;

struct alignas(kPage) Cell {
  pthread_mutex_t mutex;
  pthread_mutex_t second;
};

Cell* g_cells = nullptr;
char* g_stacks = nullptr;
std::atomic<unsigned> g_holding{0};
std::atomic<bool> g_go{false};
int g_asleep[2];  // threads wait there without touching their stacks

void* hold_and_end(void* argument) {
  auto* cell = static_cast<Cell*>(argument);
  REQUIRE(pthread_mutex_lock(&cell->mutex) == 0);
  REQUIRE(pthread_mutex_lock(&g_cells[kThreads + (cell - g_cells)].second) ==
          0);  // on another page
  g_holding.fetch_add(1);
  char byte;
  while (!g_go.load()) (void)!read(g_asleep[0], &byte, 1);
  if ((cell - g_cells) % 2 == 0) pthread_exit(nullptr);
  return nullptr;
}

void make_robust(pthread_mutex_t* mutex) {
  pthread_mutexattr_t attributes;
  pthread_mutexattr_init(&attributes);
  pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
  REQUIRE(pthread_mutex_init(mutex, &attributes) == 0);
  pthread_mutexattr_destroy(&attributes);
}

void expect_owner_dead(pthread_mutex_t* mutex) {
  const int rc = pthread_mutex_lock(mutex);
  REQUIRE(rc == EOWNERDEAD, "a mutex whose owner has ended: %s", strerror(rc));
  REQUIRE(pthread_mutex_consistent(mutex) == 0 && pthread_mutex_unlock(mutex) == 0);
}

void wake_all() {
  g_go.store(true);
  const char bytes[kThreads] = {};
  REQUIRE(write(g_asleep[1], bytes, sizeof bytes) == sizeof bytes);
}

enum class Unlock { kNothing, kStacks, kAll };

void one_round(bool own_stacks, Unlock unlock = Unlock::kNothing) {
  pthread_t threads[kThreads];
  g_holding.store(0);
  g_go.store(false);
  for (unsigned i = 0; i < kThreads; ++i) {
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    if (own_stacks) REQUIRE(pthread_attr_setstack(&attributes, g_stacks + i * kStack, kStack) == 0);
    REQUIRE(pthread_create(&threads[i], &attributes, hold_and_end, &g_cells[i]) == 0);
    pthread_attr_destroy(&attributes);
  }
  while (g_holding.load() != kThreads) usleep(100);
  // takes away what the program has locked, nothing else
  if (unlock == Unlock::kStacks) REQUIRE(munlock(g_stacks, kThreads * kStack) == 0);
  if (unlock == Unlock::kAll) REQUIRE(munlockall() == 0);
  for (unsigned i = 0; unlock != Unlock::kNothing && i < kThreads; ++i) {
    unsigned char there = 0;
    // libc's block of the thread: its id is on this page
    void* block = reinterpret_cast<void*>(threads[i] & ~(kPage - 1));
    for (int turn = 0; turn < 20; ++turn) REQUIRE(lunar_evict(g_stacks, kThreads * kStack) >= 0);
    REQUIRE(mincore(block, kPage, &there) == 0 && (there & 1) != 0);
  }
  REQUIRE(lunar_evict(g_cells, 2 * kThreads * sizeof(Cell)) >= 0);
  wake_all();
  for (const pthread_t thread : threads) REQUIRE(pthread_join(thread, nullptr) == 0);
  for (unsigned i = 0; i < kThreads; ++i) {
    expect_owner_dead(&g_cells[i].mutex);
    expect_owner_dead(&g_cells[kThreads + i].second);
  }
}

// Memory that the program has locked stays locked when a thread with its block there has ended.
void stays_locked() {
  const size_t bytes = kThreads * kStack;
  REQUIRE(mlock(g_stacks, bytes) == 0);
  one_round(true);
  for (int i = 0; i < 4; ++i) one_round(false);  // these look for threads that are gone
  unsigned char there[kThreads * kStack / kPage];
  REQUIRE(lunar_evict(g_stacks, bytes) == 0 && mincore(g_stacks, bytes, there) == 0);
  for (const unsigned char one : there) REQUIRE((one & 1) != 0);
  REQUIRE(munlock(g_stacks, bytes) == 0 && lunar_evict(g_stacks, bytes) >= 0);
}

// A fork has left the mutex' page shared with the child, and there is no room to copy all that is
// shared: the kernel must be able to write there all the same when the owner ends.
void behind_the_gate(char* cold, size_t cold_bytes) {
  g_holding.store(0);
  g_go.store(false);
  pthread_t thread;
  REQUIRE(pthread_create(&thread, nullptr, hold_and_end, &g_cells[0]) == 0);
  while (g_holding.load() != 1) usleep(100);
  // what is shared fills the budget
  for (size_t at = 0; at < cold_bytes; at += kPage)
    __atomic_fetch_add(cold + at, 0, __ATOMIC_RELAXED);
  for (pthread_mutex_t* there : {&g_cells[0].second, &g_cells[kThreads].mutex})
    REQUIRE(pthread_mutex_lock(there) == 0 && pthread_mutex_unlock(there) == 0);
  int until[2];
  REQUIRE(pipe(until) == 0);
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    close(until[1]);
    char end;
    (void)!read(until[0], &end, 1);
    _exit(0);
  }
  wake_all();
  REQUIRE(pthread_join(thread, nullptr) == 0);
  expect_owner_dead(&g_cells[0].mutex);
  expect_owner_dead(&g_cells[kThreads].second);
  close(until[0]);
  close(until[1]);
  REQUIRE(waitpid(child, nullptr, 0) == child);
}

// A stack that its thread has left is memory like any other: what keeps a part of it in DRAM is no
// lock.
void stacks_are_discarded() {
  pthread_attr_t attributes;
  REQUIRE(pthread_attr_init(&attributes) == 0 &&
          pthread_attr_setstack(&attributes, g_stacks, kStack) == 0);
  pthread_t thread;
  REQUIRE(pthread_create(&thread, &attributes, [](void* none) { return none; }, nullptr) == 0);
  REQUIRE(pthread_join(thread, nullptr) == 0);
  REQUIRE(madvise(g_stacks, kStack, MADV_DONTNEED) == 0 && all_zero(g_stacks, kStack));
  // Nor is it one where mremap has moved it.
  constexpr size_t kMap = 1 << 20;
  void* map = mmap(nullptr, kMap, kRw, kPrivate, -1, 0);
  REQUIRE(map != MAP_FAILED && tiered(map) && pthread_attr_setstack(&attributes, map, kStack) == 0);
  REQUIRE(pthread_create(&thread, &attributes, [](void* none) { return none; }, nullptr) == 0);
  REQUIRE(pthread_join(thread, nullptr) == 0);
  void* place = mmap(nullptr, kMap, kRw, kPrivate, -1, 0);
  REQUIRE(tiered(place) && mremap(map, kMap, kMap, MREMAP_MAYMOVE | MREMAP_FIXED, place) == place);
  REQUIRE(madvise(place, kMap, MADV_DONTNEED) == 0);
  REQUIRE(munmap(place, kMap) == 0);
  pthread_attr_destroy(&attributes);
}

// A child in our memory, thread or process, whose id the kernel clears when it ends: there, or
// where it has said itself. Once it runs it does not touch that page.
struct Child {
  pid_t* id;
  bool by_call;
  bool leaves;
};

// With the thread-local variables of its parent, which runs on.
__attribute__((no_sanitize("address", "thread"))) int leave(void* argument) {
  auto* child = static_cast<Child*>(argument);
  if (child->by_call) syscall(SYS_set_tid_address, child->id);
  while (!__atomic_load_n(&child->leaves, __ATOMIC_ACQUIRE)) sched_yield();
  syscall(SYS_exit, 0);
  return 0;
}

void expect_cleared(Child& child, const char* what) {
  usleep(20000);  // its page is evicted
  __atomic_store_n(&child.leaves, true, __ATOMIC_RELEASE);
  fprintf(stderr, "%s ends\n", what);
  while (__atomic_load_n(child.id, __ATOMIC_ACQUIRE) != 0) usleep(10000);
}

// pre: the id's page is evicted all the time.
void ids_are_cleared(pid_t* id) {
  constexpr int kThread =
      CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM;
  constexpr int kCleared = CLONE_PARENT_SETTID | CLONE_CHILD_CLEARTID;
  alignas(64) static char stack[64 * 1024];
  char* const top = stack + sizeof stack;
  for (int round = 0; round < 4; ++round) {
    Child thread{id, false, false}, process = thread, by_call{id, true, false};
    REQUIRE(clone(leave, top, kThread | kCleared, &thread, id, nullptr, id) > 0);
    expect_cleared(thread, "a thread");
    const int pid = clone(leave, top, CLONE_VM | kCleared | SIGCHLD, &process, id, nullptr, id);
    REQUIRE(pid > 0);
    expect_cleared(process, "a process");
    REQUIRE(waitpid(pid, nullptr, 0) == pid);
    *id = 1;
    std::thread(leave, &by_call).detach();
    expect_cleared(by_call, "a thread that has said where its id is");
  }
  errno = 0;
  REQUIRE(clone(leave, top, CLONE_VM | CLONE_THREAD | kCleared, nullptr, id, nullptr, id) == -1 &&
          errno == EINVAL);
}

pthread_key_t g_late;

// In the last round of a thread's destructors, after everything that the library does when it ends.
void end_late(void* rounds) {
  const auto left = reinterpret_cast<intptr_t>(rounds);
  if (left > 1) REQUIRE(pthread_setspecific(g_late, reinterpret_cast<void*>(left - 1)) == 0);
  if (left == 1) usleep(static_cast<unsigned>(500 + random() % 2000));
}

// Threads end at the very moment that a fork closes the copy-on-write gate.
void among_forks(char* cold, size_t cold_bytes) {
  REQUIRE(pthread_key_create(&g_late, end_late) == 0);
  const Meanwhile forking([=] {
    for (size_t at = 0; at < cold_bytes; at += kPage)
      __atomic_fetch_add(cold + at, 0, __ATOMIC_RELAXED);
    const pid_t child = fork();
    if (child == 0) _exit(0);
    if (child > 0) REQUIRE(waitpid(child, nullptr, 0) == child);
  });
  const time_t end = time(nullptr) + 5;
  while (time(nullptr) < end) {
    lunar_test::in_parallel(kThreads, [&](unsigned i) {
      REQUIRE(pthread_mutex_lock(&g_cells[i].mutex) == 0);
      REQUIRE(pthread_setspecific(g_late, reinterpret_cast<void*>(PTHREAD_DESTRUCTOR_ITERATIONS)) ==
              0);
    });
    for (unsigned i = 0; i < kThreads; ++i) expect_owner_dead(&g_cells[i].mutex);
  }
}

void body() {
  REQUIRE(pipe(g_asleep) == 0);
  const size_t cells = (2 * kThreads + 1) * sizeof(Cell), filler = 48 << 20;
  g_cells = static_cast<Cell*>(aligned_alloc(kPage, cells));
  g_stacks = static_cast<char*>(aligned_alloc(kPage, kThreads * kStack));
  auto* cold = static_cast<char*>(malloc(filler));
  REQUIRE(g_cells != nullptr && g_stacks != nullptr && cold != nullptr && tiered(g_cells) &&
          tiered(g_stacks));
  fill(cold, filler, 1);
  for (unsigned i = 0; i < 2 * kThreads; ++i) {
    make_robust(&g_cells[i].mutex);
    make_robust(&g_cells[i].second);
  }
  // Stacks and mutexes are evicted all the time.
  Meanwhile evicting([=] {
    (void)lunar_evict(g_stacks, kThreads * kStack);
    (void)lunar_evict(g_cells, cells);
  });
  for (unsigned round = 0; round < kRounds; ++round) one_round(round % 2 == 1);
  for (const Unlock unlock : {Unlock::kStacks, Unlock::kAll}) one_round(true, unlock);
  stays_locked();
  stacks_are_discarded();
  ids_are_cleared(reinterpret_cast<pid_t*>(&g_cells[2 * kThreads]));
  evicting.end();
  REQUIRE(holds(cold, filler, 1));
  for (unsigned round = 0; round < 4; ++round) behind_the_gate(cold, filler);
  among_forks(cold, filler / 2);
  REQUIRE(holds(cold, filler, 1));
}

}  // namespace

int main(int argc, char** argv) {
  return run_cases(argc, argv, {"LUNAR_DRAM=32m", "LUNAR_SIZE=1g"}, {{"all", body}});
}
