// SPDX-License-Identifier: Apache-2.0
// mlock and mlock2, munlock, mlockall, munlockall, for the exported functions and for syscall().
// Results: 0 or -errno. Threading: any thread.
#pragma once
#include <cstddef>

namespace lunar::preload {

int lock_range(const void* start, size_t bytes, unsigned flags);
int unlock_range(const void* start, size_t bytes);
int lock_everything(int flags);
int unlock_everything();

}  // namespace lunar::preload
