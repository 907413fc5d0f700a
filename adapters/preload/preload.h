// SPDX-License-Identifier: Apache-2.0
// What the parts of the preload library share: the phase of its life, and the real functions behind
// those that it replaces.
//
// This code runs in other people's programs. Rules: it allocates only from the early heap and
// sys/arena; no stdio, no exceptions; none of its locks may be held while a lock of the program
// could be taken; errno is as the real calls leave it; whatever is not Lunar's goes to the kernel
// or to jemalloc unchanged. It calls none of the functions that it exports, which the program may
// have overwritten (tests/preload/own_names_test.py).
#pragma once
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
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

struct termios;
struct winsize;
struct io_uring;
struct io_uring_params;
struct io_uring_probe;

namespace lunar::preload {

using sys::with_errno;

enum class Phase : int {
  kEarly,  // until our constructor has run: memory comes from the early heap, jemalloc is not used
           // yet
  kGuarded,  // the pager exists, the heap does not: plain jemalloc
  kReady,    // tiered
};
extern constinit std::atomic<Phase> g_phase;
extern constinit Options g_options;

inline bool ready() { return g_phase.load(std::memory_order_acquire) == Phase::kReady; }
// Whether memory of this thread is to be tiered now.
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
// Finds one of them. The constructor of another library may need it before ours has run.
template <class F>
void look_up(F& slot, const char* name) {
  if (slot == nullptr) slot = reinterpret_cast<F>(dlsym(RTLD_NEXT, name));
}

// Whether jemalloc or this library makes the call: what they map stays plain, as it holds their own
// data.
bool caller_is_runtime(const void* return_address);
bool is_own_code(const void* address);  // of this library; false before its constructor

// mmap_family.cpp: mmap and mremap on behalf of a caller.
void* map_or_fail(void* hint, size_t bytes, int prot, int flags, int fd, off_t offset,
                  const void* caller);
void* remap_or_fail(void* old_address, size_t old_bytes, size_t new_bytes, int flags, void* wanted,
                    const void* caller);
constexpr long kMseal = 462;  // its number, which headers may not know
int seal_memory(void* address, size_t bytes, unsigned long flags);  // mseal, with errno
void* attach_segment(int id, const void* wanted, int flags);        // shmat, with errno
int detach_segment(const void* address);                            // shmdt, with errno
// What munmap, mprotect, pkey_mprotect, pkey_alloc and madvise do. 0 or -errno. There are no
// protection keys, as on a machine without them.
int unmap_range(void* address, size_t bytes);
int protect_range(void* address, size_t bytes, int prot);
int protect_with_key(void* address, size_t bytes, int prot, int key);
int refuse_key();
int advise_range(void* address, size_t bytes, int advice);
// process_madvise, with errno
ssize_t advise_in_process(int pidfd, const iovec* ranges, size_t count, int advice, unsigned flags);

// lock_family.cpp: mlock and mlock2, munlock, mlockall, munlockall. 0 or -errno
int lock_range(const void* start, size_t bytes, unsigned flags);
int unlock_range(const void* start, size_t bytes);
int lock_everything(int flags);
int unlock_everything();

// close_family.cpp: close, close_range, dup2 and dup3 by number. False: it is none of these.
bool close_call(long number, const long (&arguments)[6], long* result);

// exec_family.cpp: a call of SYS_execve or SYS_execveat. It comes back if it has failed: -1 with
// errno.
long exec_by_call(long number, const long (&arguments)[6]);

// fork_family.cpp. forks_prepare: at start, after the pager's own fork handlers.
// forks_register_waiting: registers those of others, once the allocator has made its own. 0 or
// -errno
int forks_prepare();
int forks_register_waiting();
// fork_call_copies: whether a system call makes a process with a copy of our memory whose child
// returns on this stack. fork_by_call: makes that call.
bool fork_call_copies(long number, const long (&arguments)[6]);
int fork_by_call(long number, const long (&arguments)[6]);

// server_gate.cpp
void server_gate_start();  // at start, when the tier exists; does nothing unless the program is a
                           // redis-server

// thread_family.cpp
void threads_prepare();      // at start: counts the main thread too
void threads_enter_child();  // in a forked child, which has one thread
// In the thread that is about to call exec; true: threads_after_exec is to be called if it fails,
// which keeps errno.
bool threads_before_exec();
void threads_after_exec();
// Calls exec. It comes back if it has failed.
template <class Call>
auto with_mutexes_kept(Call call) {
  const bool kept = threads_before_exec();
  const auto result = call();
  if (kept) threads_after_exec();
  return result;
}

// ring_family.cpp
// io_uring_setup, _register, as syscall() returns
long ring_by_call(long number, const long (&arguments)[6]);

// signal_family.cpp
void signals_prepare();  // at start

// exit_stats.cpp
void stats_prepare();  // at start: keeps standard error reachable (programs close it before they
                       // end)
void stats_print();    // once per process; does nothing without option `stats`
void stats_enter_child();  // in a forked child

}  // namespace lunar::preload

#define LUNAR_EXPORT extern "C" __attribute__((visibility("default")))
