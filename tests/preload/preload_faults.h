// SPDX-License-Identifier: Apache-2.0
// For preload tests that map memory and look which addresses fault.
#pragma once

#include <csetjmp>
#include <csignal>
#include <cstddef>

#include "preload_test.h"

inline sigjmp_buf g_fault_jump;

// Whether reading (or writing) the address raises SIGSEGV.
inline bool faults(volatile char* address, bool write = false) {
  struct sigaction action{}, before{};
  action.sa_handler = [](int) { siglongjmp(g_fault_jump, 1); };
  sigaction(SIGSEGV, &action, &before);
  bool hit = sigsetjmp(g_fault_jump, 1) != 0;
  if (!hit) {
    if (write)
      *address = 1;
    else
      (void)*address;
  }
  sigaction(SIGSEGV, &before, nullptr);
  return hit;
}
