// SPDX-License-Identifier: Apache-2.0
// Threads, futexes, clocks, scheduling. Only thread_start allocates, under a HostGuard, so that an
// interposed malloc serves it from DRAM. A service thread with its thread-local storage in tiered
// memory could wait for itself.
#include "sys/thread.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/close_range.h>
#include <linux/futex.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <new>

#include "base/format.h"
#include "base/host_guard.h"
#include "base/units.h"
#include "sys/arena.h"
#include "sys/fatal.h"
#include "sys/file.h"
#include "sys/mem.h"
#include "sys/memory_copy.h"

namespace lunar::sys {
namespace {

constexpr size_t kStackBytes = 256 * 1024;  // on top of libc's own part
constexpr unsigned kExecPatienceMs = 1000;

// pthread_create puts the static TLS of the whole program on the given stack; libc tells how much
// it needs (a private symbol, which the JVM uses too). threads_prepare asks once, because neither a
// forked child nor an activation may wait for the linker's lock.
size_t stack_bytes(const pthread_attr_t* attributes) {
  static std::atomic<size_t> known{0};
  if (size_t bytes = known.load(std::memory_order_relaxed); bytes != 0) return bytes;
  using Minimum = size_t (*)(const pthread_attr_t*);
  auto minimum = reinterpret_cast<Minimum>(dlsym(RTLD_DEFAULT, "__pthread_get_minstack"));
  size_t bytes = kStackBytes + (minimum != nullptr ? minimum(attributes) : 64 * 1024);
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
  bytes += 2 * 1024 * 1024;
#endif
  bytes = (bytes + page_bytes() - 1) / page_bytes() * page_bytes();
  known.store(bytes, std::memory_order_relaxed);
  return bytes;
}

// Lies in the page below the thread's stack, which loses its rights once the thread has started.
struct ThreadStart {
  ThreadSpec spec;
  // 1 running, < 0: failed with that errno. The thread's last access to this structure.
  std::atomic<int> started{0};
};

thread_local bool t_service __attribute__((tls_model("initial-exec"))) = false;
// How many there are, and in which copy of the memory, because a forked child has none of its
// parent's threads.
struct ServiceThreads {
  uint32_t copy;
  int32_t count;
};
std::atomic<ServiceThreads> g_service_threads{};

void count_service_thread(int more) {
  const uint32_t copy = memory_copy();
  ServiceThreads seen = g_service_threads.load(std::memory_order_relaxed);
  while (!g_service_threads.compare_exchange_weak(
      seen, {copy, (seen.copy == copy ? seen.count : 0) + more}, std::memory_order_acq_rel)) {}
}

thread_local bool t_own_files __attribute__((tls_model("initial-exec"))) = false;
cpu_set_t g_allowed;
std::atomic<bool> g_allowed_known{false};

// Service threads with their own descriptor table: the copy of the memory in the upper half (a
// forked child has none of its parent's threads), the thread id in the lower. They end only with
// their process, so entries are never removed.
constexpr unsigned kOwnFilesMax = 128;
std::atomic<uint64_t> g_own_files[kOwnFilesMax];

uint64_t own_files_entry(int tid) {
  return uint64_t{memory_copy()} << 32 | static_cast<uint32_t>(tid);
}

void note_own_files() {
  const uint64_t mine = own_files_entry(thread_id());
  for (auto& entry : g_own_files) {
    uint64_t seen = entry.load(std::memory_order_relaxed);
    if (seen >> 32 == mine >> 32) continue;
    if (entry.compare_exchange_strong(seen, mine)) return;
  }
}

void remember_allowed() {
  if (g_allowed_known.load(std::memory_order_acquire)) return;
  CPU_ZERO(&g_allowed);
  if (sched_getaffinity(0, sizeof g_allowed, &g_allowed) != 0) CPU_SET(0, &g_allowed);
  g_allowed_known.store(true, std::memory_order_release);
}

// Containers refuse unshare() without CAP_SYS_ADMIN, whatever its flags. They allow close_range(),
// which can unshare too (5.9) and does nothing else on a range without descriptors.
int own_descriptor_table() {
  if (syscall(SYS_unshare, CLONE_FILES) == 0) return 0;
  const int refused = -errno;
#ifdef SYS_close_range
  if (syscall(SYS_close_range, UINT_MAX, UINT_MAX, CLOSE_RANGE_UNSHARE) == 0) return 0;
#endif
  return refused;
}

// The stacks of service threads, for a forked child, which inherits the memory but not the threads.
// A stack without an entry stays mapped in the child.
struct ThreadStack {
  std::atomic<char*> base{nullptr};
  std::atomic<size_t> bytes{0};
};
constexpr unsigned kStacksMax = 256;
ThreadStack g_stacks[kStacksMax];

void note_stack(char* base, size_t bytes) {
  for (ThreadStack& stack : g_stacks) {
    char* none = nullptr;
    if (stack.base.load(std::memory_order_relaxed) != nullptr ||
        !stack.base.compare_exchange_strong(none, base))
      continue;
    stack.bytes.store(bytes);
    return;
  }
}

void unmap_stack(char* base, size_t bytes) {
  for (ThreadStack& stack : g_stacks) {
    if (stack.base.load() != base) continue;
    stack.bytes.store(0);
    stack.base.store(nullptr);
  }
  unmap_private(base, bytes);
}

void* thread_main(void* argument) {
  auto* start = static_cast<ThreadStart*>(argument);
  host_guard_depth = 1;  // for life
  t_service = true;
  ThreadSpec spec = start->spec;
  t_own_files = !spec.program_files;
  prctl(PR_SET_NAME, spec.name, 0, 0, 0);
  int rc = 1;
  if (spec.unshare_files) {
    if (const int own = own_descriptor_table(); own < 0) rc = own;
  }
  if (rc == 1) count_service_thread(1);
  if (t_own_files) note_own_files();
  if (spec.ended != nullptr) syscall(SYS_set_tid_address, spec.ended);
  start->started.store(rc, std::memory_order_release);
  if (rc != 1) return nullptr;
  spec.run(spec.argument);
  count_service_thread(-1);
  return nullptr;
}

}  // namespace

int thread_start(const ThreadSpec& spec, pthread_t* out) {
  HostGuard guard;
  remember_allowed();
  // Inherited by fork: libc keeps its list of threads in their stacks and walks it in the child.
  pthread_attr_t attributes;
  if (int rc = pthread_attr_init(&attributes); rc != 0) return -rc;
  const size_t stack_size =
      stack_bytes(&attributes) + round_up(spec.more_stack_bytes, page_bytes());
  void* guard_page = map_private(page_bytes() + stack_size, ForkPolicy::kInherit);
  if (guard_page == nullptr) return -ENOMEM;
  auto* start = new (guard_page) ThreadStart{spec};
  pthread_attr_setstack(&attributes, static_cast<char*>(guard_page) + page_bytes(), stack_size);
  sigset_t all, previous;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &previous);
  int rc = -pthread_create(out, &attributes, thread_main, start);
  pthread_sigmask(SIG_SETMASK, &previous, nullptr);
  pthread_attr_destroy(&attributes);
  if (rc != 0) {
    unmap_private(guard_page, page_bytes() + stack_size);
    return rc;
  }
  note_stack(static_cast<char*>(guard_page), page_bytes() + stack_size);
  wait_for_start(spec.name, [&] {
    rc = start->started.load(std::memory_order_acquire);
    return rc != 0;
  });
  // From here on a stack overflow raises SIGSEGV.
  (void)protect(guard_page, page_bytes(), PROT_NONE);
  // The stack of a thread that ends stays mapped, unless thread_end joins it.
  return rc < 0 ? rc : 0;
}

int thread_start_beside_exec(const ThreadSpec& spec, pthread_t* out) {
  int rc = thread_start(spec, out);
  for (unsigned i = 0; rc == -EAGAIN && i < kExecPatienceMs; ++i) {
    sleep_ns(1'000'000);
    rc = thread_start(spec, out);
  }
  return rc;
}

void start_failed(const char* what) {
  fatal(
      "%s: has not begun for 20 s; does the program replace functions of libc "
      "that wait for a lock of its own?",
      what);
}

void thread_end(pthread_t thread) {
  HostGuard guard;
  pthread_attr_t attributes;
  void* stack = nullptr;
  size_t bytes = 0;
  if (pthread_getattr_np(thread, &attributes) == 0) {
    if (pthread_attr_getstack(&attributes, &stack, &bytes) != 0) stack = nullptr;
    pthread_attr_destroy(&attributes);
  }
  int before = 0;
  pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);  // the caller is a thread of the program
  pthread_join(thread, nullptr);
  pthread_setcancelstate(before, nullptr);
  if (stack) unmap_stack(static_cast<char*>(stack) - page_bytes(), bytes + page_bytes());
}

void threads_unmap_parents(const void* here) {
  const auto at = reinterpret_cast<uintptr_t>(here);
  for (ThreadStack& stack : g_stacks) {
    char* base = stack.base.load();
    const size_t bytes = stack.bytes.load();
    if (base == nullptr || at - reinterpret_cast<uintptr_t>(base) < bytes) continue;
    stack.bytes.store(0);
    stack.base.store(nullptr);
    if (bytes != 0) unmap_private(base, bytes);  // 0: its thread was just being made
  }
}

void threads_prepare() {
  pthread_attr_t attributes;
  if (pthread_attr_init(&attributes) != 0) return;
  (void)stack_bytes(&attributes);
  pthread_attr_destroy(&attributes);
}

void allow_fault_signals() {
  sigset_t faults;
  sigemptyset(&faults);
  sigaddset(&faults, SIGSEGV);
  sigaddset(&faults, SIGBUS);
  pthread_sigmask(SIG_UNBLOCK, &faults, nullptr);
}

bool in_service_thread() { return t_service; }

int service_threads() {
  const ServiceThreads now = g_service_threads.load(std::memory_order_acquire);
  return now.copy == memory_copy() ? now.count : 0;
}

bool in_program_files() { return !t_own_files; }

const RobustList* robust_list() {
  const RobustList* list = nullptr;
  size_t length = 0;
  return syscall(SYS_get_robust_list, 0, &list, &length) == 0 ? list : nullptr;
}

bool has_own_files(int tid) {
  const uint64_t wanted = own_files_entry(tid);
  for (const auto& entry : g_own_files)
    if (entry.load(std::memory_order_relaxed) == wanted) return true;
  return false;
}

int thread_id() { return static_cast<int>(syscall(SYS_gettid)); }

namespace {
// Without an explicit priority a SCHED_IDLE thread's I/O is of the idle class. mq-deadline holds
// that class back while any other I/O of the device is queued or in flight, and checks again only 3
// ms later. But other threads wait for this I/O.
void keep_io_priority() {
  constexpr int kOneThread = 1, kClassShift = 13, kBestEffort = 2;  // linux/ioprio.h
  long now = syscall(SYS_ioprio_get, kOneThread, 0);
  if (now < 0 || now >> kClassShift != 0) return;  // refused, or set explicitly
  // as the kernel derives it from the nice value
  int level = (getpriority(PRIO_PROCESS, 0) + 20) / 5;
  syscall(SYS_ioprio_set, kOneThread, 0, kBestEffort << kClassShift | level);
}

uint64_t ns_of(clockid_t clock) {
  timespec t{};
  clock_gettime(clock, &t);
  return static_cast<uint64_t>(t.tv_sec) * 1000000000u + static_cast<uint64_t>(t.tv_nsec);
}

}  // namespace

bool idle_policy_can_be_left() {
  rlimit limit{};
  int nice = getpriority(PRIO_PROCESS, 0);
  if (getrlimit(RLIMIT_NICE, &limit) == 0 &&
      (limit.rlim_cur == RLIM_INFINITY || limit.rlim_cur >= static_cast<rlim_t>(20 - nice)))
    return true;
  // CAP_SYS_NICE counts in the first user namespace only.
  char text[4096];
  if (read_text("/proc/self/uid_map", text, sizeof text) < 0) return false;
  const char* all = strstr(text, "4294967295");
  if (all == nullptr || read_text("/proc/thread-self/status", text, sizeof text) < 0) return false;
  const char* line = strstr(text, "CapEff:");
  return line != nullptr && (strtoull(line + 7, nullptr, 16) >> 23 & 1) != 0;
}

int set_idle_policy(bool idle) {
  if (idle) keep_io_priority();
  sched_param parameter{};
  return sched_setscheduler(0, idle ? SCHED_IDLE : SCHED_OTHER, &parameter) == 0 ? 0 : -errno;
}

int set_batch_policy() {
  sched_param parameter{};
  return sched_setscheduler(0, SCHED_BATCH, &parameter) == 0 ? 0 : -errno;
}

int set_affinity(int cpu) {
  remember_allowed();
  cpu_set_t one;
  if (cpu >= 0) {
    if (!CPU_ISSET(cpu, &g_allowed)) return -EINVAL;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
  }
  return sched_setaffinity(0, sizeof one, cpu >= 0 ? &one : &g_allowed) == 0 ? 0 : -errno;
}

int set_affinity_but(int tid, int cpu) {
  remember_allowed();
  cpu_set_t rest = g_allowed;
  if (cpu >= 0 && CPU_COUNT(&rest) > 1) CPU_CLR(cpu, &rest);
  return sched_setaffinity(tid, sizeof rest, &rest) == 0 ? 0 : -errno;
}

int current_cpu() { return sched_getcpu(); }

int cpu_count() {
  remember_allowed();
  return CPU_COUNT(&g_allowed);
}

CpuTime cpu_time_of(int tid) {
  char path[48], text[96];
  format_to(path, sizeof path, "/proc/self/task/%d/schedstat", tid);
  if (read_text(path, text, sizeof text) < 0) return {0, 0};
  const char* p = text;
  uint64_t fields[2] = {0, 0};
  for (uint64_t& value : fields) {
    for (; *p >= '0' && *p <= '9'; ++p) value = value * 10 + static_cast<uint64_t>(*p - '0');
    if (*p == ' ') ++p;
  }
  return {fields[0], fields[1]};
}

int cpu_of_thread(int tid) {
  char path[48], text[512];
  format_to(path, sizeof path, "/proc/self/task/%d/stat", tid);
  int length = read_text(path, text, sizeof text);
  if (length < 0) return length;
  // Fields are counted behind the command name, which may itself hold spaces and parentheses.
  const char* p = strrchr(text, ')');
  if (p == nullptr) return -EIO;
  for (int field = 2; field < 39; ++field) {
    p = strchr(p, ' ');
    if (p == nullptr) return -EIO;
    ++p;
  }
  int cpu = 0;
  while (*p >= '0' && *p <= '9') cpu = cpu * 10 + (*p++ - '0');
  return cpu;
}

uint64_t now_ns() { return ns_of(CLOCK_MONOTONIC); }

uint64_t thread_cpu_ns() { return ns_of(CLOCK_THREAD_CPUTIME_ID); }

void cpu_relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#elif defined(__powerpc64__)
  __asm__ volatile("or 27,27,27");
#endif
}

void yield_cpu() { syscall(SYS_sched_yield); }

void sleep_ns(uint64_t ns) {
  timespec t{static_cast<time_t>(ns / 1000000000u), static_cast<long>(ns % 1000000000u)};
  // The same call as libc's sleep and nanosleep, so a program's filter probably allows it. Never
  // sleeps less: waits count their turns.
  if (syscall(SYS_clock_nanosleep, CLOCK_MONOTONIC, 0, &t, nullptr) == 0 || !is_refusal(-errno))
    return;
  const uint32_t never = 0;
  syscall(SYS_futex, &never, FUTEX_WAIT | FUTEX_PRIVATE_FLAG, never, &t, nullptr, 0);
}

int futex_wait(const std::atomic<uint32_t>* word, uint32_t expected, int64_t timeout_ns,
               bool shared) {
  timespec t{static_cast<time_t>(timeout_ns / 1000000000),
             static_cast<long>(timeout_ns % 1000000000)};
  int operation = FUTEX_WAIT | (shared ? 0 : FUTEX_PRIVATE_FLAG);
  const long rc =
      syscall(SYS_futex, word, operation, expected, timeout_ns < 0 ? nullptr : &t, nullptr, 0);
  const int result = rc < 0 ? -errno : 0;
  fatal_if_refused(result, "futex");
  return result;
}

#ifndef SYS_futex_waitv
#define SYS_futex_waitv 449
#endif

int futex_wait_any(const FutexWait* words, unsigned count, int64_t timeout_ns) {
  struct Waiter {  // struct futex_waitv
    uint64_t value, address;
    uint32_t flags, reserved;
  };
  constexpr uint32_t kSize32 = 2;
  if (count == 1) return futex_wait(words[0].word, words[0].expected, timeout_ns, true);
  if (count > kFutexWaitMax) return -EINVAL;
  Waiter waiters[kFutexWaitMax];
  for (unsigned i = 0; i < count; ++i)
    waiters[i] = {words[i].expected, reinterpret_cast<uintptr_t>(words[i].word), kSize32, 0};
  const uint64_t end = now_ns() + static_cast<uint64_t>(timeout_ns < 0 ? 0 : timeout_ns);
  timespec until{static_cast<time_t>(end / 1000000000u), static_cast<long>(end % 1000000000u)};
  const long rc = syscall(SYS_futex_waitv, waiters, count, 0, timeout_ns < 0 ? nullptr : &until,
                          CLOCK_MONOTONIC);
  return rc < 0 ? -errno : 0;
}

void futex_wake(std::atomic<uint32_t>* word, int count, bool shared) {
  const int operation = FUTEX_WAKE | (shared ? 0 : FUTEX_PRIVATE_FLAG);
  if (syscall(SYS_futex, word, operation, count, nullptr, nullptr, 0) < 0)
    fatal_if_refused(-errno, "futex");
}

namespace {
constexpr uint64_t bit_of(int signal) { return 1ull << (signal - 1); }
// All signals except those that a thread's own instructions raise (if blocked, they would kill) and
// glibc's two (thread cancellation, setuid of all threads).
constexpr uint64_t kBlockedSignals =
    ~(bit_of(SIGSEGV) | bit_of(SIGBUS) | bit_of(SIGILL) | bit_of(SIGFPE) | bit_of(SIGTRAP) |
      bit_of(SIGSYS) | bit_of(32) | bit_of(33));
constinit thread_local unsigned t_signal_blocks = 0;
constinit thread_local uint64_t t_before = 0;  // the mask when the outermost block began
}  // namespace

void block_signals() {
  if (t_signal_blocks++ == 0)
    syscall(SYS_rt_sigprocmask, SIG_BLOCK, &kBlockedSignals, &t_before, sizeof(uint64_t));
}

void unblock_signals() {
  if (--t_signal_blocks != 0) return;
  uint64_t held = 0;
  syscall(SYS_rt_sigprocmask, SIG_SETMASK, &t_before, &held, sizeof held);
  // Signals that a fork handler of the program has unblocked meanwhile stay unblocked. (Signals
  // that it has blocked look like Lunar's.)
  if ((t_before & ~held) == 0) return;
  const uint64_t mask = t_before & held;
  syscall(SYS_rt_sigprocmask, SIG_SETMASK, &mask, nullptr, sizeof mask);
}

void Mutex::lock() {
  uint32_t free = 0;
  if (state_.compare_exchange_strong(free, 1, std::memory_order_acquire)) return;
  while (state_.exchange(2, std::memory_order_acquire) != 0)
    (void)futex_wait(&state_, 2, -1, false);
}

bool Mutex::lock_within(int64_t timeout_ns) {
  if (try_lock()) return true;
  const uint64_t until = now_ns() + static_cast<uint64_t>(timeout_ns);
  while (state_.exchange(2, std::memory_order_acquire) != 0) {
    const uint64_t now = now_ns();
    if (now >= until) return false;
    (void)futex_wait(&state_, 2, static_cast<int64_t>(until - now), false);
  }
  return true;
}

void Mutex::unlock() {
  if (state_.exchange(0, std::memory_order_release) == 2) futex_wake(&state_, 1, false);
}

}  // namespace lunar::sys
