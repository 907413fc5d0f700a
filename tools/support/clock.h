// SPDX-License-Identifier: Apache-2.0
// Clocks.
// Threading: any.
#pragma once
#include <time.h>

#include <cstdint>

namespace lunar::tools {

inline uint64_t clock_ns(clockid_t clock) {
  timespec t{};
  clock_gettime(clock, &t);
  return static_cast<uint64_t>(t.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(t.tv_nsec);
}
inline uint64_t now_ns() { return clock_ns(CLOCK_MONOTONIC); }
inline double now_seconds() { return static_cast<double>(now_ns()) / 1e9; }

}  // namespace lunar::tools
