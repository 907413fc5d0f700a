// SPDX-License-Identifier: Apache-2.0
// pthread_create and thrd_create, to notice the end of the program's last thread. libc calls
// exit(0) when the last thread of a process ends by pthread_exit or returns. Service threads count
// for libc, so the process would stay forever. So this file counts the threads of the program, and
// the last one calls exit(0) where libc would have.
//
// A thread counts as ended in the last round of its key destructors, after those of the program.
// Threads made by clone are not counted, so this file also checks the kernel's list of threads
// before it ends the process.
//
// When a thread ends, the kernel reads its list of robust mutexes and clears its thread id, and
// serves no page faults there: these words are kept in DRAM (pager_keep) until the thread is gone.
// The id lies in libc's block of the thread, on its stack, which can be tiered only if the program
// provided it; the block is kept from the start. A held mutex can lie anywhere, so the list is read
// when the thread ends.
//
// The kernel serves no page faults for the words of mutexes with priority inheritance either
// (FUTEX_LOCK_PI returns EFAULT, and libc ends the program): such a mutex stays in DRAM.
//
// libc keeps a thread's values of keys from 32 on in a block, which stays outside of the tier: libc
// clears it in a forked child before page faults are served there.
//
// Threading: any thread. Allocates like the program itself (one small block per thread).
#include "thread_family.h"

#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <stdlib.h>
#include <threads.h>

#include "pager/pager.h"
#include "preload.h"
#include "program_memory.h"
#include "real_calls.h"
#include "sys/proc.h"
#include "sys/thread.h"

namespace lunar::preload {
namespace {

constinit std::atomic<int> g_threads{1};
constinit std::atomic<bool> g_key_made{false};
pthread_key_t g_key;

// a destructor that sets its key again runs in the next round
constexpr intptr_t kRounds = PTHREAD_DESTRUCTOR_ITERATIONS;
constexpr unsigned kLooks = 40;

// Counted threads may still be ending. Checks for about a second; a thread that is still there was
// never counted.
bool only_service_threads_left() {
  for (unsigned look = 0; look < kLooks; ++look) {
    const int others = sys::other_live_threads();
    if (others < 0 || others <= sys::service_threads()) return true;
    sys::sleep_ns(look < 8 ? 1000000 : 30000000);
  }
  return false;
}

constexpr size_t kThreadBlockBytes = 2304;  // glibc's struct pthread, 2.36
constexpr unsigned kRobustMax = 2048;       // the kernel's own limit (ROBUST_LIST_LIMIT)

void keep_thread_block() {
  pager_keep(reinterpret_cast<const void*>(pthread_self()), kThreadBlockBytes, Keep::kThreadEnd);
}

// Keeps the link and the futex word of each robust mutex that this thread holds. False: it holds
// none. Like the kernel, the walk ends at a link that cannot be read (a held mutex was unmapped).
bool keep_robust_mutexes(Keep use) {
  const sys::RobustList* head = sys::robust_list();
  sys::RobustList list;
  if (head == nullptr || !read_if_readable(head, &list)) return false;
  pager_keep(head, sizeof *head, use);
  const auto keep_one = [&](void* entry) -> void* {
    // bit 0: priority inheritance
    char* link = reinterpret_cast<char*>(reinterpret_cast<uintptr_t>(entry) & ~uintptr_t{1});
    void* next;
    uint32_t owner;
    const auto* word = reinterpret_cast<const uint32_t*>(link + list.futex_offset);
    if (!read_if_readable(reinterpret_cast<void**>(link), &next) || !read_if_readable(word, &owner))
      return nullptr;
    pager_keep(link, sizeof(void*), use);
    pager_keep(word, sizeof *word, use);
    return next;
  };
  void* entry = list.first;
  for (unsigned i = 0;
       i < kRobustMax && entry != nullptr && entry != static_cast<const void*>(head); ++i)
    entry = keep_one(entry);
  if (list.pending != nullptr) (void)keep_one(list.pending);
  return list.first != static_cast<const void*>(head) || list.pending != nullptr;
}

int set_value(pthread_key_t key, const void* value) {
  constexpr unsigned kFirstKeys = 32;  // the values of these lie in libc's block of the thread
  look_up(g_real.pthread_setspecific, "pthread_setspecific");
  if (key < kFirstKeys) return g_real.pthread_setspecific(key, value);
  const HostGuard guard;
  return g_real.pthread_setspecific(key, value);
}

void thread_ends(void* value) {
  const auto rounds = reinterpret_cast<intptr_t>(value);
  if (rounds > 1 && set_value(g_key, reinterpret_cast<void*>(rounds - 1)) == 0) return;
  (void)keep_robust_mutexes(Keep::kThreadEnd);
  if (g_threads.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  if (sys::service_threads() != 0 && only_service_threads_left()) exit(0);
}

void mark_thread() {
  if (g_key_made.load(std::memory_order_acquire))
    (void)set_value(g_key, reinterpret_cast<void*>(kRounds));
}

struct Start {
  void* (*routine)(void*);
  int (*c11_routine)(void*);
  void* argument;
};

Start enter_thread(void* argument) {
  const Start start = *static_cast<Start*>(argument);
  free(argument);
  mark_thread();
  keep_thread_block();
  return start;
}

void* begin_thread(void* argument) {
  const Start start = enter_thread(argument);
  return start.routine(start.argument);
}

int begin_c11_thread(void* argument) {
  const Start start = enter_thread(argument);
  return start.c11_routine(start.argument);
}

// Counts the thread that `create` makes. `failed`: the result if there is no memory.
template <class Create>
int counted(const Start& like, int failed, Create create) {
  auto* start = static_cast<Start*>(malloc(sizeof(Start)));
  if (start == nullptr) return failed;
  *start = like;
  g_threads.fetch_add(1, std::memory_order_acq_rel);
  const int rc = create(start);
  if (rc != 0) {
    g_threads.fetch_sub(1, std::memory_order_acq_rel);
    free(start);
  }
  return rc;
}

// In libc's kind of a mutex, 32 stands for priority inheritance.
bool inherits_priority(const pthread_mutex_t* mutex) { return (mutex->__data.__kind & 32) != 0; }

}  // namespace

void threads_prepare() {
  if (pthread_key_create(&g_key, thread_ends) != 0) return;
  g_key_made.store(true, std::memory_order_release);
  mark_thread();
}

bool threads_before_exec() { return ready() && keep_robust_mutexes(Keep::kExec); }

void threads_after_exec() {
  const int saved = errno;
  pager_exec_failed();
  errno = saved;
}

void threads_enter_child() {
  g_threads.store(1, std::memory_order_relaxed);
  mark_thread();
}

}  // namespace lunar::preload

using namespace lunar;
using namespace lunar::preload;

// The calls of this library itself and of the code linked into it (--wrap) go to libc.
extern "C" __attribute__((visibility("hidden"))) int __wrap_pthread_create(
    pthread_t* out, const pthread_attr_t* attributes, void* (*routine)(void*), void* argument) {
  return g_real.pthread_create(out, attributes, routine, argument);
}
extern "C" __attribute__((visibility("hidden"))) int __wrap_pthread_mutex_init(
    pthread_mutex_t* mutex, const pthread_mutexattr_t* attributes) {
  return g_real.pthread_mutex_init(mutex, attributes);
}

extern "C" __attribute__((visibility("hidden"))) int __wrap_pthread_setspecific(pthread_key_t key,
                                                                                const void* value) {
  return set_value(key, value);
}

LUNAR_EXPORT int pthread_create(pthread_t* out, const pthread_attr_t* attributes,
                                void* (*routine)(void*), void* argument) noexcept {
  if (g_real.pthread_create == nullptr)
    return EAGAIN;  // before our constructor: libc has no threads to give yet
  if (!serves_tiered()) return g_real.pthread_create(out, attributes, routine, argument);
  return counted({routine, nullptr, argument}, EAGAIN, [=](Start* start) {
    return g_real.pthread_create(out, attributes, begin_thread, start);
  });
}

LUNAR_EXPORT int pthread_mutex_init(pthread_mutex_t* mutex,
                                    const pthread_mutexattr_t* attributes) noexcept {
  look_up(g_real.pthread_mutex_init, "pthread_mutex_init");
  const int rc = g_real.pthread_mutex_init(mutex, attributes);
  int protocol = PTHREAD_PRIO_NONE;
  if (rc != 0 || attributes == nullptr || !serves_tiered()) return rc;
  if (pthread_mutexattr_getprotocol(attributes, &protocol) == 0 && protocol == PTHREAD_PRIO_INHERIT)
    pager_keep(mutex, sizeof *mutex, Keep::kUntilTold);
  return rc;
}

LUNAR_EXPORT int pthread_mutex_destroy(pthread_mutex_t* mutex) noexcept {
  look_up(g_real.pthread_mutex_destroy, "pthread_mutex_destroy");
  const bool kept = serves_tiered() && inherits_priority(mutex);
  const int rc = g_real.pthread_mutex_destroy(mutex);
  if (rc == 0 && kept) pager_keep_no_more(mutex, sizeof *mutex);
  return rc;
}

LUNAR_EXPORT int pthread_setspecific(pthread_key_t key, const void* value) noexcept {
  return set_value(key, value);
}

LUNAR_EXPORT int tss_set(tss_t key, void* value) {
  const int rc = set_value(key, value);
  return rc == 0 ? thrd_success : rc == ENOMEM ? thrd_nomem : thrd_error;
}

LUNAR_EXPORT int thrd_create(thrd_t* out, thrd_start_t routine, void* argument) {
  if (g_real.thrd_create == nullptr) return thrd_error;
  if (!serves_tiered()) return g_real.thrd_create(out, routine, argument);
  return counted({nullptr, routine, argument}, thrd_nomem,
                 [=](Start* start) { return g_real.thrd_create(out, begin_c11_thread, start); });
}
