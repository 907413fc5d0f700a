// SPDX-License-Identifier: Apache-2.0
// The seed of a randomised test: LUNAR_SEED where it is given, else another one each run; printed, so that a run can be
// repeated.
// Threading: any.
// May not: be used by code that ships.
#pragma once
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>

namespace tier {

// The same for the whole run of the program.
inline uint64_t run_seed() {
  static const uint64_t seed = [] {
    const char* given = getenv("LUNAR_SEED");
    const uint64_t value = given ? strtoull(given, nullptr, 0) : std::random_device{}();
    std::printf("LUNAR_SEED=%llu\n", static_cast<unsigned long long>(value));
    std::fflush(stdout);  // also where the run is killed
    return value;
  }();
  return seed;
}

}  // namespace tier
