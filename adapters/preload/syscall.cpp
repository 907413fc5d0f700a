// SPDX-License-Identifier: Apache-2.0
// syscall(), libc's way to make any system call. A call whose libc function this library replaces
// is served like that function: the pager learns of tiered maps that are unmapped, moved or
// advised, and Lunar's own descriptors stay open. All others go to the kernel, as do the calls of
// this library itself and of the code linked into it (--wrap=syscall).
//
// Threading: any thread; also before the constructor has run.
#include <errno.h>
#include <linux/futex.h>
#include <stdarg.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "close_family.h"
#include "exec_family.h"
#include "fork_family.h"
#include "lock_family.h"
#include "mmap_family.h"
#include "pager/pager.h"
#include "preload.h"
#include "ring_family.h"
#include "sys/kernel_call.h"
#include "sys/mem.h"

namespace lunar::preload {
namespace {

constexpr int kFutexLockPi2 = 13;       // FUTEX_LOCK_PI2, from 5.14
constexpr unsigned kFutexTurns = 1000;  // the page may be evicted again before the kernel reads it

template <class T>
T* pointer(long argument) {
  return reinterpret_cast<T*>(argument);
}

long number_of(const void* address) { return reinterpret_cast<long>(address); }

// Serves a call about memory for `caller`. False: it is another call. Uses functions that are not
// exported: the program may have overwritten the exported ones with a jump to code that calls
// syscall().
bool memory_call(long number, const long (&a)[6], const void* caller, long* result) {
  auto* const address = pointer<void>(a[0]);
  const auto bytes = static_cast<size_t>(a[1]);
  const auto word = static_cast<int>(a[2]);
  switch (number) {
    case SYS_mmap:
      *result = number_of(map_or_fail(
          {address, bytes, word, static_cast<int>(a[3]), static_cast<int>(a[4]), a[5], caller}));
      return true;
    case SYS_munmap:
      *result = with_errno(unmap_range(address, bytes));
      return true;
    case SYS_mremap: {
      const auto flags = static_cast<int>(a[3]);
      auto* const wanted = (flags & MREMAP_FIXED) != 0 ? pointer<void>(a[4]) : nullptr;
      *result = number_of(
          remap_or_fail({address, bytes, static_cast<size_t>(a[2]), flags, wanted, caller}));
      return true;
    }
    case SYS_mprotect:
      *result = with_errno(protect_range(address, bytes, word));
      return true;
    case SYS_pkey_mprotect:
      *result = with_errno(protect_with_key(address, bytes, word, static_cast<int>(a[3])));
      return true;
    case SYS_pkey_alloc:
      *result = with_errno(refuse_key());
      return true;
    case SYS_madvise:
      *result = with_errno(advise_range(address, bytes, word));
      return true;
    case SYS_mlock:
      *result = with_errno(lock_range(address, bytes, 0));
      return true;
    case SYS_mlock2:
      *result = with_errno(lock_range(address, bytes, static_cast<unsigned>(a[2])));
      return true;
    case SYS_munlock:
      *result = with_errno(unlock_range(address, bytes));
      return true;
    case SYS_mlockall:
      *result = with_errno(lock_everything(static_cast<int>(a[0])));
      return true;
    case SYS_munlockall:
      *result = with_errno(unlock_everything());
      return true;
    case SYS_shmat:
      *result = number_of(attach_segment(static_cast<int>(a[0]), pointer<void>(a[1]), word));
      return true;
    case SYS_shmdt:
      *result = detach_segment(address);
      return true;
    case kMseal:
      *result = seal_memory(address, bytes, static_cast<unsigned long>(a[2]));
      return true;
    case SYS_process_madvise:
      *result =
          advise_in_process(static_cast<int>(a[0]), pointer<iovec>(a[1]), static_cast<size_t>(a[2]),
                            static_cast<int>(a[3]), static_cast<unsigned>(a[4]));
      return true;
    default:
      return false;
  }
}

// The word of a futex call for which the kernel does not serve page faults: it returns EFAULT.
void* impatient_word(const long (&a)[6], unsigned turn) {
  switch (static_cast<int>(a[1]) & FUTEX_CMD_MASK) {
    case FUTEX_LOCK_PI:
    case kFutexLockPi2:
    case FUTEX_TRYLOCK_PI:
    case FUTEX_UNLOCK_PI:
      return pointer<void>(a[0]);
    case FUTEX_WAKE_OP:
    case FUTEX_WAIT_REQUEUE_PI:
      return pointer<void>(a[4]);
    case FUTEX_CMP_REQUEUE_PI:
      return pointer<void>(a[turn % 2 == 0 ? 4 : 0]);
    default:
      return nullptr;
  }
}

// Repeats the call until the word is in DRAM when the kernel reads it. EFAULT remains for memory
// that the program may not touch.
long futex_call(const long (&a)[6]) {
  const size_t page_bytes = lunar::sys::page_bytes();
  long result = lunar::sys::kernel_call(SYS_futex, a);
  for (unsigned turn = 0; result == -EFAULT && turn < kFutexTurns; ++turn) {
    void* word = impatient_word(a, turn);
    if (word == nullptr || lunar::region_find(word) == nullptr) break;
    // like a write, because the kernel also returns EFAULT for a page that is shared copy-on-write
    char* page = static_cast<char*>(word) - reinterpret_cast<uintptr_t>(word) % page_bytes;
    if (lunar::sys::advise(page, page_bytes, MADV_POPULATE_WRITE) < 0) break;
    result = lunar::sys::kernel_call(SYS_futex, a);
  }
  return with_errno(result);
}

}  // namespace
}  // namespace lunar::preload

using namespace lunar::preload;

// syscall() for this library itself.
extern "C" __attribute__((visibility("hidden"))) long __wrap_syscall(long number, ...) noexcept {
  va_list rest;
  va_start(rest, number);
  long a[6];
  for (long& one : a) one = va_arg(rest, long);
  va_end(rest);
  return lunar::sys::kernel_call_errno(number, a);
}

LUNAR_EXPORT long syscall(long number, ...) noexcept {
  va_list rest;
  va_start(rest, number);
  long a[6];
  for (long& one : a) one = va_arg(rest, long);
  va_end(rest);
  if (__builtin_expect(!ready(), 0)) return lunar::sys::kernel_call_errno(number, a);
  if (fork_call_copies(number, a)) return fork_by_call(number, a);
  if (number == SYS_process_vm_writev) return lunar::pager_write_elsewhere(a);
  if (number == SYS_execve || number == SYS_execveat) return exec_by_call(number, a);
  if (number == SYS_futex) return futex_call(a);
  if (number == SYS_io_uring_setup || number == SYS_io_uring_register)
    return ring_by_call(number, a);
  // the kernel clears this word when the thread has ended (thread_family.cpp)
  if (number == SYS_set_tid_address)
    lunar::pager_keep(pointer<void>(a[0]), sizeof(int), lunar::Keep::kThreadEnd);
  long result;
  if (memory_call(number, a, __builtin_return_address(0), &result) ||
      close_call(number, a, &result))
    return result;
  return lunar::sys::kernel_call_errno(number, a);
}

LUNAR_EXPORT ssize_t process_vm_writev(pid_t pid, const iovec* local, unsigned long locals,
                                       const iovec* remote, unsigned long remotes,
                                       unsigned long flags) noexcept {
  const long a[6] = {pid,
                     reinterpret_cast<long>(local),
                     static_cast<long>(locals),
                     reinterpret_cast<long>(remote),
                     static_cast<long>(remotes),
                     static_cast<long>(flags)};
  return ready() ? lunar::pager_write_elsewhere(a)
                 : lunar::sys::kernel_call_errno(SYS_process_vm_writev, a);
}
