// SPDX-License-Identifier: Apache-2.0
// Words in evicted memory that the kernel reads or writes where it does not wait for page faults:
// those of futexes that are woken by FUTEX_WAKE_OP or inherit priorities, and the robust mutexes of
// a thread that calls exec.
#include <linux/futex.h>
#include <pthread.h>
#include <stdint.h>
#include <sys/syscall.h>

#include <atomic>
#include <thread>
#include <vector>

#include "preload_test.h"

extern "C" int64_t lunar_evict(const void*, size_t) __attribute__((weak));

namespace {

constexpr size_t kPage = 4096, kFiller = 48 << 20;

bool in_memory(const void* address) {
  unsigned char there = 0;
  void* page = reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(address) & ~(kPage - 1));
  REQUIRE(mincore(page, kPage, &there) == 0);
  return (there & 1) != 0;
}

void evict(const void* address) {
  for (int look = 0; look < 200 && in_memory(address); ++look)
    REQUIRE(lunar_evict(address, sizeof(int)) >= 0);
  REQUIRE(!in_memory(address));
}

long futex(uint32_t* word, int operation, long value, long value2 = 0, uint32_t* word2 = nullptr,
           long value3 = 0) {
  return syscall(SYS_futex, word, operation, value, value2, word2, value3);
}

// FUTEX_WAKE_OP changes a word on an evicted page, and wakes as many as it should.
void woken_by_operation(uint32_t* word, uint32_t* other) {
  *word = *other = 0;
  std::atomic<int> waiting{0};
  std::jthread waiter([&] {
    waiting.store(1);
    while (__atomic_load_n(word, __ATOMIC_ACQUIRE) == 0) (void)futex(word, FUTEX_WAIT_PRIVATE, 0);
  });
  while (waiting.load() == 0) usleep(100);
  __atomic_store_n(word, 1, __ATOMIC_RELEASE);
  evict(other);
  const int set7 = FUTEX_OP(FUTEX_OP_SET, 7, FUTEX_OP_CMP_EQ, 0);
  const long woken = futex(word, FUTEX_WAKE_OP_PRIVATE, 10, 10, other, set7);
  if (woken < 0) perror("FUTEX_WAKE_OP");
  REQUIRE(woken >= 0 && *other == 7);
}

void inherits_priority(uint32_t* word) {
  *word = 0;
  evict(word);
  REQUIRE(futex(word, FUTEX_LOCK_PI_PRIVATE, 0) == 0);
  REQUIRE((*word & FUTEX_TID_MASK) == static_cast<uint32_t>(gettid()));
  evict(word);
  REQUIRE(futex(word, FUTEX_UNLOCK_PI_PRIVATE, 0) == 0 && *word == 0);
  evict(word);
  REQUIRE(futex(word, FUTEX_TRYLOCK_PI_PRIVATE, 0) == 0 &&
          futex(word, FUTEX_UNLOCK_PI_PRIVATE, 0) == 0);
}

// A place that the program may not write to gives EFAULT.
void errors_stay() {
  constexpr size_t kMap = 1 << 20;
  char* map = map_tiered(kMap);
  memset(map, 0, kMap);
  auto* word = reinterpret_cast<uint32_t*>(map + kPage);
  REQUIRE(mprotect(map, kMap, PROT_READ) == 0);
  errno = 0;
  REQUIRE(futex(word, FUTEX_LOCK_PI_PRIVATE, 0) == -1 && errno == EFAULT);
  REQUIRE(munmap(map, kMap) == 0);
  errno = 0;
  REQUIRE(futex(word, FUTEX_LOCK_PI_PRIVATE, 0) == -1 && errno == EFAULT);
}

void make(pthread_mutex_t* mutex, bool inherits, bool robust) {
  pthread_mutexattr_t attributes;
  REQUIRE(pthread_mutexattr_init(&attributes) == 0);
  if (inherits) REQUIRE(pthread_mutexattr_setprotocol(&attributes, PTHREAD_PRIO_INHERIT) == 0);
  if (robust) REQUIRE(pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST) == 0);
  REQUIRE(pthread_mutex_init(mutex, &attributes) == 0);
  pthread_mutexattr_destroy(&attributes);
}

// libc ends a program to which the kernel answers EFAULT here.
void mutex_under_eviction(pthread_mutex_t* mutex, bool robust) {
  make(mutex, true, robust);
  Meanwhile evicting([=] { REQUIRE(lunar_evict(mutex, sizeof *mutex) >= 0); });
  constexpr unsigned kThreads = 12, kTurns = 20000;
  unsigned count = 0;
  lunar_test::in_parallel(kThreads, [&] {
    for (unsigned turn = 0; turn < kTurns; ++turn) {
      REQUIRE(pthread_mutex_lock(mutex) == 0);
      ++count;
      if (turn % 8 == 0) sched_yield();
      REQUIRE(pthread_mutex_unlock(mutex) == 0);
    }
  });
  evicting.end();
  REQUIRE(count == kThreads * kTurns && in_memory(mutex));
  REQUIRE(pthread_mutex_destroy(mutex) == 0);
  evict(mutex);
}

void contend(pthread_mutex_t* mutex, unsigned turns) {
  lunar_test::in_parallel(4u, [&] {
    for (unsigned turn = 0; turn < turns; ++turn) {
      REQUIRE(pthread_mutex_lock(mutex) == 0);
      if (turn % 4 == 0) sched_yield();
      REQUIRE(pthread_mutex_unlock(mutex) == 0);
    }
  });
}

// Forks close the copy-on-write gate, in the parent and in the child.
void mutex_among_forks(pthread_mutex_t* mutex, char* cold, size_t cold_bytes) {
  make(mutex, true, false);
  Meanwhile contending([=] { contend(mutex, 500); });
  for (unsigned round = 0; round < 40; ++round) {
    for (size_t at = 0; at < cold_bytes; at += kPage)
      __atomic_fetch_add(cold + at, 0, __ATOMIC_RELAXED);
    const pid_t child = fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      make(mutex, true, false);  // a thread of the parent may have held it
      contend(mutex, 200);
      _exit(0);
    }
    REQUIRE(ends_well(child));
  }
  contending.end();
  REQUIRE(pthread_mutex_destroy(mutex) == 0);
}

// Two on a page: the page stays until both are gone. More than there is room for, which nobody
// destroys, do not fill the budget.
void as_long_as_there_are_mutexes(char* memory) {
  auto *one = reinterpret_cast<pthread_mutex_t*>(memory), *two = one + 1;
  make(one, true, false);
  make(two, true, false);
  REQUIRE(pthread_mutex_destroy(one) == 0 && lunar_evict(two, sizeof *two) >= 0 && in_memory(two));
  REQUIRE(pthread_mutex_destroy(two) == 0);
  evict(two);
  constexpr size_t kMany = 10000;
  auto* many = map_any(kMany * kPage);
  REQUIRE(many != MAP_FAILED);
  for (size_t i = 0; i < kMany; ++i)
    make(reinterpret_cast<pthread_mutex_t*>(many + i * kPage), true, false);
  evict(many + (kMany - 1) * kPage);
  for (size_t i = 0; i < kMany; ++i)
    REQUIRE(pthread_mutex_destroy(reinterpret_cast<pthread_mutex_t*>(many + i * kPage)) == 0);
  evict(many);
  REQUIRE(munmap(many, kMany * kPage) == 0);
  // One that is unmapped, not destroyed, and another in its place.
  constexpr size_t kMap = 1 << 20;
  constexpr int kFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
  auto* place = mmap(nullptr, kMap, kRw, kPrivate, -1, 0);
  REQUIRE(place != MAP_FAILED);
  make(static_cast<pthread_mutex_t*>(place), true, false);
  REQUIRE(munmap(place, kMap) == 0 && mmap(place, kMap, kRw, kFlags, -1, 0) == place);
  make(static_cast<pthread_mutex_t*>(place), true, false);
  for (int i = 0; i < 20; ++i) REQUIRE(lunar_evict(place, kPage) >= 0);
  REQUIRE(in_memory(place) && munmap(place, kMap) == 0);
}

// The kernel goes through the robust mutexes of a thread that calls exec when the threads that
// serve its faults have ended.
void exec_with_held_mutexes(char* memory) {
  char name[] = "true";
  char* words[] = {name, nullptr};
  for (int way = 0; way < 4; ++way) {
    const pid_t child = fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      for (size_t i = 0; i < 8; ++i) {
        auto* mutex = reinterpret_cast<pthread_mutex_t*>(memory + i * kPage);
        make(mutex, false, true);
        REQUIRE(pthread_mutex_lock(mutex) == 0);
      }
      for (size_t i = 0; i < 8; ++i) evict(memory + i * kPage);
      if (way == 0) execv("/bin/true", words);
      if (way == 1) execlp("true", "true", "a", "b", nullptr);
      if (way == 2) execle("/bin/true", "true", nullptr, environ);
      syscall(SYS_execve, "/bin/true", words, environ);
      _exit(1);
    }
    REQUIRE(ends_well(child));
  }
}

// An exec that fails, however often, keeps nothing in DRAM.
void failed_exec(char* memory) {
  auto* mutex = reinterpret_cast<pthread_mutex_t*>(memory);
  char name[] = "true";
  char* words[] = {name, nullptr};
  make(mutex, false, true);
  REQUIRE(pthread_mutex_lock(mutex) == 0);
  for (int i = 0; i < 1500; ++i) {
    errno = 0;
    REQUIRE(execv("/nowhere/true", words) == -1 && errno == ENOENT);
    errno = 0;
    REQUIRE(syscall(SYS_execve, "/nowhere/true", words, environ) == -1 && errno == ENOENT);
  }
  REQUIRE(pthread_mutex_unlock(mutex) == 0 && pthread_mutex_destroy(mutex) == 0);
  evict(mutex);
}

// A mutex that is unmapped, or may not be read any more, while its owner still holds it: the kernel
// does without it.
void hold_and_unmap(bool shared, bool protect) {
  constexpr size_t kMap = 1 << 20;
  const int flags = (shared ? MAP_SHARED : MAP_PRIVATE) | MAP_ANONYMOUS;
  void* place = mmap(nullptr, kMap, kRw, flags, -1, 0);
  REQUIRE(place != MAP_FAILED);
  auto* mutex = static_cast<pthread_mutex_t*>(place);
  make(mutex, false, true);
  REQUIRE(pthread_mutex_lock(mutex) == 0);
  REQUIRE(protect ? mprotect(place, kMap, PROT_NONE) == 0 : munmap(place, kMap) == 0);
}

void held_mutexes_are_gone() {
  char name[] = "true";
  char* words[] = {name, nullptr};
  for (const bool shared : {false, true})
    for (const bool protect : {false, true}) {
      std::thread(hold_and_unmap, shared, protect).join();
      const pid_t child = fork();
      REQUIRE(child >= 0);
      if (child == 0) {
        hold_and_unmap(shared, protect);
        execv("/bin/true", words);
        _exit(1);
      }
      REQUIRE(ends_well(child));
    }
}

void body() {
  auto* cold = static_cast<char*>(malloc(kFiller));
  auto* memory = static_cast<char*>(aligned_alloc(kPage, 16 * kPage));
  REQUIRE(cold != nullptr && memory != nullptr && tiered(memory));
  fill(cold, kFiller, 1);
  memset(memory, 0, 16 * kPage);
  auto *word = reinterpret_cast<uint32_t*>(memory),
       *other = reinterpret_cast<uint32_t*>(memory + 2 * kPage);
  for (int round = 0; round < 5; ++round) {
    woken_by_operation(word, other);
    inherits_priority(word);
  }
  errors_stay();
  for (bool robust : {false, true})
    mutex_under_eviction(reinterpret_cast<pthread_mutex_t*>(memory + 4 * kPage), robust);
  mutex_among_forks(reinterpret_cast<pthread_mutex_t*>(memory + 4 * kPage), cold, kFiller / 2);
  as_long_as_there_are_mutexes(memory + 6 * kPage);
  exec_with_held_mutexes(memory + 8 * kPage);
  failed_exec(memory + 8 * kPage);
  held_mutexes_are_gone();
  REQUIRE(holds(cold, kFiller, 1));
}

}  // namespace

int main(int argc, char** argv) {
  return run_cases(argc, argv, {"LUNAR_DRAM=32m", "LUNAR_SIZE=1g"}, {{"all", body}});
}
