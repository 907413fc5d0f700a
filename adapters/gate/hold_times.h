// SPDX-License-Identifier: Apache-2.0
// How long clients were held at the gate, as counts in buckets of a quarter of an octave (19%
// wide), from 8 us to 16 s. Threading: the main thread.
#pragma once
#include <bit>
#include <cstdint>

namespace lunar::redis {

struct HoldTimes {
  static constexpr unsigned kFirstBit = 13, kBuckets = 84;  // 2^13 ns; 21 octaves

  uint32_t count[kBuckets] = {};

  void add(uint64_t ns) { ++count[bucket_of(ns)]; }

  static unsigned bucket_of(uint64_t ns) {
    if (ns < uint64_t{1} << kFirstBit) return 0;
    const auto top = static_cast<unsigned>(std::bit_width(ns)) - 1;
    const unsigned bucket = (top - kFirstBit) * 4 + static_cast<unsigned>(ns >> (top - 2) & 3);
    return bucket < kBuckets ? bucket : kBuckets - 1;
  }
  // The end of the bucket.
  static uint64_t most_ns(unsigned bucket) {
    return uint64_t{5 + bucket % 4} << (kFirstBit + bucket / 4 - 2);
  }

  // The time that the share `part` of the holds since `before` did not exceed; 0: no holds.
  uint64_t quantile_ns(const HoldTimes& before, double part) const {
    uint64_t all = 0, seen = 0;
    for (unsigned b = 0; b < kBuckets; ++b) all += count[b] - before.count[b];
    for (unsigned b = 0; b < kBuckets; ++b) {
      seen += count[b] - before.count[b];
      if (seen != 0 && static_cast<double>(seen) >= part * static_cast<double>(all))
        return most_ns(b);
    }
    return 0;
  }
};

}  // namespace lunar::redis
