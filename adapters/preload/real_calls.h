// SPDX-License-Identifier: Apache-2.0
// The libc functions behind those that this library replaces.
#pragma once
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/types.h>
#include <threads.h>

struct termios;
struct winsize;
struct io_uring;
struct io_uring_params;
struct io_uring_probe;

namespace lunar::preload {

struct RealCalls {
#define LUNAR_REAL(name, symbol, result, parameters) result(*name) parameters = nullptr;
#include "real_calls.def"
#undef LUNAR_REAL
};
extern constinit RealCalls g_real;
// At start: finds them all. No call on an allocation path looks one up, because dlsym could wait.
void real_calls_prepare();

// Finds one function, for a call that may come before our constructor (from another library's).
template <class F>
void look_up(F& slot, const char* name) {
  if (slot == nullptr) slot = reinterpret_cast<F>(dlsym(RTLD_NEXT, name));
}

}  // namespace lunar::preload
