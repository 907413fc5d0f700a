// SPDX-License-Identifier: Apache-2.0
// A system call without libc, whose functions a preload library may replace; usable before anything
// is set up. Threading: any thread; also in a signal handler, and in a child of vfork.
#pragma once
#include <errno.h>
#include <sys/syscall.h>

namespace lunar::sys {

// 0 or more, or -errno.
inline long kernel_call(long number, const long (&a)[6]) {
#if defined(__x86_64__)
  long result;
  register long r10 __asm__("r10") = a[3];
  register long r8 __asm__("r8") = a[4];
  register long r9 __asm__("r9") = a[5];
  __asm__ volatile("syscall"
                   : "=a"(result)
                   : "a"(number), "D"(a[0]), "S"(a[1]), "d"(a[2]), "r"(r10), "r"(r8), "r"(r9)
                   : "rcx", "r11", "memory");
  return result;
#elif defined(__aarch64__)
  register long x8 __asm__("x8") = number;
  register long x0 __asm__("x0") = a[0];
  register long x1 __asm__("x1") = a[1];
  register long x2 __asm__("x2") = a[2];
  register long x3 __asm__("x3") = a[3];
  register long x4 __asm__("x4") = a[4];
  register long x5 __asm__("x5") = a[5];
  __asm__ volatile("svc 0"
                   : "+r"(x0)
                   : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5)
                   : "memory");
  return x0;
#elif defined(__powerpc64__)
  register long r0 __asm__("r0") = number;
  register long r3 __asm__("r3") = a[0];
  register long r4 __asm__("r4") = a[1];
  register long r5 __asm__("r5") = a[2];
  register long r6 __asm__("r6") = a[3];
  register long r7 __asm__("r7") = a[4];
  register long r8 __asm__("r8") = a[5];
  __asm__ volatile("sc\n\tbns+ 1f\n\tneg %0, %0\n1:"
                   : "+r"(r3), "+r"(r0), "+r"(r4), "+r"(r5), "+r"(r6), "+r"(r7), "+r"(r8)
                   :
                   : "memory", "cr0", "ctr", "lr", "r9", "r10", "r11", "r12");
  return r3;
#else
#error "a system call for this machine"
#endif
}

// Turns a result into what libc's functions return: -errno becomes -1 with errno set; other values
// stay.
template <class Result>
Result with_errno(Result result) {
  if (result >= 0 || result < -4095) return result;
  errno = static_cast<int>(-result);
  return -1;
}

// As libc's syscall().
inline long kernel_call_errno(long number, const long (&a)[6]) {
  return with_errno(kernel_call(number, a));
}

// Sets the action of a signal to the default.
inline void default_signal(int number) {
  const unsigned long action[4] = {};  // the kernel's layout: handler, flags, restorer, mask
  (void)kernel_call(SYS_rt_sigaction,
                    {number, reinterpret_cast<long>(action), 0, sizeof(unsigned long), 0, 0});
}

}  // namespace lunar::sys
