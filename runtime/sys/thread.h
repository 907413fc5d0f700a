// SPDX-License-Identifier: Apache-2.0
// Threads, futexes, clocks, scheduling. 0 / -errno.
// Threading: any thread, also on the fault path and in a forked child, except thread_start,
// thread_end and threads_prepare: they block, and libc and the linker allocate in them (under a
// HostGuard where that matters).
#pragma once
#include <pthread.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace lunar::sys {

// Service thread: all signals blocked, stack from sys/arena (never tiered), HostGuard for life.
struct ThreadSpec {
  const char* name = "lunar";  // 15 characters at most
  void (*run)(void* argument) = nullptr;
  void* argument = nullptr;
  // The thread gets its own descriptor table, so that a close() in the program does not close the
  // pager's descriptors.
  bool unshare_files = false;
  // The thread uses the program's descriptor table. If both are false, the starting thread has its
  // own table.
  bool program_files = false;
  // When the thread ends (a seccomp filter may kill it) while the process lives, the kernel stores
  // 0 here and wakes one waiter of this word's shared futex.
  std::atomic<uint32_t>* ended = nullptr;
  size_t more_stack_bytes = 0;  // for a thread that runs code of the program; populated on use
};
[[nodiscard]] int thread_start(const ThreadSpec& spec, pthread_t* out);
// The same for threads without which the process must end. The kernel makes no thread (EAGAIN)
// while another one of the process is in execve(), so this tries again for a second.
[[nodiscard]] int thread_start_beside_exec(const ThreadSpec& spec, pthread_t* out);
// Waits until begun() is true, which a starting thread brings about; ends the process with a line
// if that takes 20 s. The time is counted in attempts, not by the clock, because the process may be
// stopped meanwhile.
template <class Begun>
void wait_for_start(const char* what, Begun begun);
void thread_end(pthread_t thread);  // joins it, and unmaps the stack that thread_start mapped
// In a child of libc's fork(), from a fork handler: unmaps the stacks of the parent's service
// threads, except the one that `here` lies in. (Children of _Fork and clone keep them: libc still
// has them in its list of threads.)
void threads_unmap_parents(const void* here);
// Asks the dynamic linker what thread_start will need. Call once, when no other thread can stay
// inside the linker for long.
void threads_prepare();
// Calling service thread: passes SIGSEGV and SIGBUS to the program's handlers.
void allow_fault_signals();

bool in_service_thread();     // the calling thread was started by thread_start
int service_threads();        // how many this process has
bool in_program_files();      // the calling thread uses the program's descriptor table
bool has_own_files(int tid);  // a service thread of this process with a descriptor table of its own
int thread_id();              // gettid
// The list that the kernel walks when the calling thread ends (linux/futex.h: robust_list_head);
// nullptr: the thread has none.
struct RobustList {
  void* first;
  long futex_offset;  // of a mutex' futex word from its link
  void* pending;
};
const RobustList* robust_list();
// Whether a SCHED_IDLE thread of this process may become SCHED_OTHER again: RLIMIT_NICE must cover
// its nice value, or CAP_SYS_NICE.
bool idle_policy_can_be_left();
[[nodiscard]] int set_idle_policy(bool idle);  // SCHED_IDLE / SCHED_OTHER, calling thread
[[nodiscard]] int set_batch_policy();  // SCHED_BATCH, calling thread: does not preempt by waking up
// Binds the calling thread to one allowed CPU; -1: to all of them again.
[[nodiscard]] int set_affinity(int cpu);
// Binds a thread of this process to all CPUs that were allowed except `cpu`, unless that is the
// only one.
[[nodiscard]] int set_affinity_but(int tid, int cpu);
int current_cpu();
int cpu_count();  // CPUs this process may use
// Nanoseconds that a thread of this process has run since it started, and has waited for a CPU
// while runnable; zeros if the kernel does not tell (/proc/self/task/TID/schedstat). Takes about 3
// us.
struct CpuTime {
  uint64_t ran, waited;
};
CpuTime cpu_time_of(int tid);
// CPU on which a thread of this process ran last, from /proc/self/task/TID/stat; or -errno. Takes
// about 5 us.
[[nodiscard]] int cpu_of_thread(int tid);

uint64_t now_ns();         // CLOCK_MONOTONIC (vDSO)
uint64_t thread_cpu_ns();  // CPU time of the calling thread; 0 where a filter refuses the call
// A limit on a wait in nanoseconds, from now on; below 0: no limit.
class TimeLimit {
 public:
  explicit TimeLimit(int64_t ns) : ns_(ns), begin_(ns > 0 ? now_ns() : 0) {}
  int64_t left() const {  // likewise; 0: it is over
    if (ns_ <= 0) return ns_;
    const auto passed = static_cast<int64_t>(now_ns() - begin_);
    return passed < ns_ ? ns_ - passed : 0;
  }

 private:
  const int64_t ns_;
  const uint64_t begin_;
};
void cpu_relax();
void yield_cpu();
void sleep_ns(uint64_t ns);
// A pause that a test has asked for (base/test_switches.h). 0: none.
inline void test_delay(uint64_t us) {
  if (us != 0) sleep_ns(us * 1000);
}

[[noreturn]] void start_failed(const char* what);
template <class Begun>
void wait_for_start(const char* what, Begun begun) {
  constexpr unsigned kYields = 5000, kSleeps = 20000;
  for (unsigned look = 0; !begun(); ++look) {
    if (look == kYields + kSleeps) start_failed(what);
    look < kYields ? yield_cpu() : sleep_ns(1000000);
  }
}

// Futex on a 32-bit word. timeout_ns < 0: no timeout. shared: the word lies in memory shared
// between processes. 0 when woken (also spuriously), -EAGAIN: *word is not `expected`, -ETIMEDOUT,
// -EINTR.
[[nodiscard]] int futex_wait(const std::atomic<uint32_t>* word, uint32_t expected,
                             int64_t timeout_ns, bool shared);
void futex_wake(std::atomic<uint32_t>* word, int count, bool shared);
// Waits until one of several shared futexes is woken or differs from what is expected. -ENOSYS or
// -EPERM where a filter refuses futex_waitv, unless there is only one. At most kFutexWaitMax
// (-EINVAL).
struct FutexWait {
  const std::atomic<uint32_t>* word;
  uint32_t expected;
};
constexpr unsigned kFutexWaitMax = 128;
[[nodiscard]] int futex_wait_any(const FutexWait* words, unsigned count, int64_t timeout_ns);

// Short spin lock for runtime-internal state (held for instructions, never across a fault, a system
// call or I/O).
class SpinLock {
 public:
  void lock() {
    while (flag_.exchange(true, std::memory_order_acquire)) {
      for (int i = 0; flag_.load(std::memory_order_relaxed); ++i)
        i < 200 ? cpu_relax() : yield_cpu();
    }
  }
  bool try_lock() { return !flag_.exchange(true, std::memory_order_acquire); }
  void unlock() { flag_.store(false, std::memory_order_release); }

 private:
  std::atomic<bool> flag_{false};
};

// Sleeping lock on a futex (no allocation, no TLS): for slow paths (mapping tables, fallocate).
class Mutex {
 public:
  void lock();
  bool try_lock() {
    uint32_t free = 0;
    return state_.compare_exchange_strong(free, 1, std::memory_order_acquire);
  }
  bool lock_within(int64_t timeout_ns);  // false: not locked in time
  void unlock();
  void reset_in_child() { state_.store(0, std::memory_order_relaxed); }

 private:
  std::atomic<uint32_t> state_{0};  // 0 free, 1 held, 2 held with waiters
};

// Block signals on the calling thread, except those that its own instructions raise (SIGSEGV,
// SIGSYS, ...) and the two that glibc uses: a handler may fork, and fork waits for locks that this
// thread holds. Blocks nest: only the outermost makes system calls. A forked child inherits the
// blocks of the thread that forked.
void block_signals();
void unblock_signals();
class ScopedSignalBlock {  // for the life of the object
 public:
  ScopedSignalBlock() { block_signals(); }
  ~ScopedSignalBlock() { unblock_signals(); }
  ScopedSignalBlock(const ScopedSignalBlock&) = delete;
  ScopedSignalBlock& operator=(const ScopedSignalBlock&) = delete;
  void block() { block_signals(); }
  void unblock() { unblock_signals(); }  // while this thread only waits
};

template <class L>
class Locked {
 public:
  explicit Locked(L& lock) : lock_(lock) { lock_.lock(); }
  ~Locked() { lock_.unlock(); }
  Locked(const Locked&) = delete;
  Locked& operator=(const Locked&) = delete;

 private:
  L& lock_;
};

// Blocks signals while a sleeping lock is held: a signal could well arrive in that time, and fork
// takes most of these locks.
template <>
class Locked<Mutex> {
 public:
  explicit Locked(Mutex& lock) : lock_(lock) { lock_.lock(); }
  ~Locked() { lock_.unlock(); }
  Locked(const Locked&) = delete;
  Locked& operator=(const Locked&) = delete;

 private:
  ScopedSignalBlock signals_;  // first: held before the lock, unblocked after it
  Mutex& lock_;
};

}  // namespace lunar::sys
