// SPDX-License-Identifier: Apache-2.0
// A system call past libc, as by inline assembly: the preload library does not see it.
#pragma once
#include <sys/syscall.h>

#include "sys/kernel_call.h"

// -1 and errno, as syscall(). Arguments are pointers and numbers.
template <class... Arguments>
long raw(long number, Arguments... arguments) {
  const long a[6] = {(long)arguments...};
  return lunar::sys::kernel_call_errno(number, a);
}
