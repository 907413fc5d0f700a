// SPDX-License-Identifier: Apache-2.0
// The seed of a randomised test: LUNAR_SEED if it is set, else a new one for each run. It is
// printed, so that a run can be repeated. Random makes random numbers from a seed.
// Threading: any; a Random is one thread's.
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

inline uint64_t mix(uint64_t x) {  // splitmix64
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

class Random {
 public:
  explicit Random(uint64_t seed) : state_(mix(seed)) {}
  uint64_t next() { return mix(state_ += 0x9e3779b97f4a7c15); }
  uint64_t below(uint64_t n) { return next() % n; }
  bool one_in(uint64_t n) { return below(n) == 0; }

 private:
  uint64_t state_;
};

}  // namespace tier
