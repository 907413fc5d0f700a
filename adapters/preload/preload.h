// SPDX-License-Identifier: Apache-2.0
// The parts of the preload library share this: the phase of its life, and the real functions behind
// those that it replaces.
//
// This code runs in other people's programs. Rules: it allocates only from the early heap and
// sys/arena; it uses no stdio and no exceptions; it holds no lock of its own where it could take a
// lock of the program; it leaves errno as the real calls do; it passes everything that is not
// Lunar's to the kernel or to jemalloc unchanged. It calls none of the functions that it exports,
// because the program may have overwritten them (tests/preload/own_names_test.py).
#pragma once
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <threads.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "base/host_guard.h"
#include "config/options.h"
#include "sys/kernel_call.h"
#include "sys/mem.h"

struct termios;
struct winsize;
struct io_uring;
struct io_uring_params;
struct io_uring_probe;

namespace lunar::preload {

using sys::with_errno;

enum class Phase : int {
  kEarly,    // before our constructor: memory comes from the early heap, jemalloc is not used yet
  kGuarded,  // the pager exists, the heap does not: plain jemalloc
  kReady,    // tiered
};
extern constinit std::atomic<Phase> g_phase;
extern constinit Options g_options;

inline bool ready() { return g_phase.load(std::memory_order_acquire) == Phase::kReady; }
// Whether allocations of this thread are tiered now.
inline bool serves_tiered() { return __builtin_expect(ready() && !HostGuard::active(), 1); }

struct TextRange {
  uintptr_t begin = 0, end = 0;
  bool holds(uintptr_t address) const { return address - begin < end - begin; }
};
extern constinit TextRange g_linker_text;
// Whether the address is in the dynamic linker.
inline bool linker_holds(uintptr_t address) { return g_linker_text.holds(address); }

// The libc functions behind ours, looked up once in the constructor (dlsym is never used on an
// allocation path).
struct RealCalls {
#define LUNAR_REAL(name, symbol, result, parameters) result(*name) parameters = nullptr;
#include "real_calls.def"
#undef LUNAR_REAL
};
extern constinit RealCalls g_real;
// Finds one of them, for a call that may come before our constructor (from another library's).
template <class F>
void look_up(F& slot, const char* name) {
  if (slot == nullptr) slot = reinterpret_cast<F>(dlsym(RTLD_NEXT, name));
}

// Copies from memory that may be unreadable, such as an argument of a system call. False: it is
// unreadable. If a filter of the program refuses that copy, this reads the memory like any code.
template <class T>
bool read_if_readable(const T* from, T* to) {
  const int rc = from == nullptr ? -EFAULT : sys::peek(from, to, sizeof *to);
  if (rc == -EFAULT) return false;
  if (rc < 0) *to = *from;
  return true;
}

// Whether jemalloc or this library makes the call: their maps hold their own data, and stay plain.
bool caller_is_runtime(const void* return_address);
// Whether the address is in this library; false before its constructor.
bool is_own_code(const void* address);

// mmap_family.cpp: mmap and mremap on behalf of a caller.
void* map_or_fail(void* hint, size_t bytes, int prot, int flags, int fd, off_t offset,
                  const void* caller);
void* remap_or_fail(void* old_address, size_t old_bytes, size_t new_bytes, int flags, void* wanted,
                    const void* caller);
constexpr long kMseal = 462;  // SYS_mseal, which older headers lack
int seal_memory(void* address, size_t bytes, unsigned long flags);  // mseal, with errno
void* attach_segment(int id, const void* wanted, int flags);        // shmat, with errno
int detach_segment(const void* address);                            // shmdt, with errno
// munmap, mprotect, pkey_mprotect, pkey_alloc and madvise. 0 or -errno. There are no protection
// keys, as on a machine without them.
int unmap_range(void* address, size_t bytes);
int protect_range(void* address, size_t bytes, int prot);
int protect_with_key(void* address, size_t bytes, int prot, int key);
int refuse_key();
int advise_range(void* address, size_t bytes, int advice);
// process_madvise, with errno
ssize_t advise_in_process(int pidfd, const iovec* ranges, size_t count, int advice, unsigned flags);

// lock_family.cpp: mlock and mlock2, munlock, mlockall, munlockall. 0 or -errno.
int lock_range(const void* start, size_t bytes, unsigned flags);
int unlock_range(const void* start, size_t bytes);
int lock_everything(int flags);
int unlock_everything();

// close_family.cpp: close, close_range, dup2 and dup3 by number. False: it is none of these.
bool close_call(long number, const long (&arguments)[6], long* result);

// exec_family.cpp: a call of SYS_execve or SYS_execveat. It returns only if it fails: -1 with
// errno.
long exec_by_call(long number, const long (&arguments)[6]);

// fork_family.cpp. forks_prepare: at start, after the pager's own fork handlers.
// forks_register_waiting: registers the fork handlers of others, once the allocator has its own. 0
// or -errno.
int forks_prepare();
int forks_register_waiting();
// fork_call_copies: whether a system call makes a process with a copy of our memory, whose child
// returns on this stack. fork_by_call: makes that call.
bool fork_call_copies(long number, const long (&arguments)[6]);
int fork_by_call(long number, const long (&arguments)[6]);

// server_gate.cpp: at start, when the tier exists. Does nothing unless the program is a
// redis-server.
void server_gate_start();

// thread_family.cpp
void threads_prepare();      // at start: counts the main thread too
void threads_enter_child();  // in a forked child, which has one thread
// Called by the thread that is about to call exec. True: if exec fails, call threads_after_exec,
// which keeps errno.
bool threads_before_exec();
void threads_after_exec();
// Calls exec, and returns only if that fails.
template <class Call>
auto with_mutexes_kept(Call call) {
  const bool kept = threads_before_exec();
  const auto result = call();
  if (kept) threads_after_exec();
  return result;
}

// ring_family.cpp: io_uring_setup and io_uring_register, with the result of syscall().
long ring_by_call(long number, const long (&arguments)[6]);

// exit_stats.cpp
// At start: keeps standard error reachable, because programs close it before they end.
void stats_prepare();
void stats_print();        // once per process; does nothing without option `stats`
void stats_enter_child();  // in a forked child

}  // namespace lunar::preload

#define LUNAR_EXPORT extern "C" __attribute__((visibility("default")))
