// SPDX-License-Identifier: Apache-2.0
// Reads memory that the program names, such as an argument of a system call.
#pragma once
#include <errno.h>

#include "sys/mem.h"

namespace lunar::preload {

// Copies from memory that may be unreadable. False: it is unreadable. If a filter of the program
// refuses that copy, this reads the memory like any code. Threading: any thread.
template <class T>
bool read_if_readable(const T* from, T* to) {
  const int rc = from == nullptr ? -EFAULT : sys::peek(from, to, sizeof *to);
  if (rc == -EFAULT) return false;
  if (rc < 0) *to = *from;
  return true;
}

}  // namespace lunar::preload
