// SPDX-License-Identifier: Apache-2.0
// Random numbers for the benches: fast, seeded, the same on every machine.
//
// splitmix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", OOPSLA 2014)
// mixes and streams. ZipfGenerator draws ranks 0..n-1 with P(rank) ~ 1/(rank+1)^theta by the method
// of Gray et al. ("Quickly generating billion-record synthetic databases", SIGMOD 1994, page 249),
// as in YCSB: one uniform number, one pow().
// Threading: a Random belongs to one thread; a ZipfGenerator is constant after construction, and
// may be shared.
#pragma once
#include <cmath>
#include <cstdint>
#include <numeric>

namespace lunar::tools {

inline constexpr double kZipfTheta = 0.99;  // YCSB's default

constexpr uint64_t mix64(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
  return z ^ (z >> 31);
}

__extension__ typedef unsigned __int128 Wide;  // a GNU type: quiet under -Wpedantic

class Random {
 public:
  explicit Random(uint64_t seed) : state_(mix64(seed + 0x9e3779b97f4a7c15ULL)) {}
  uint64_t next() { return mix64(state_ += 0x9e3779b97f4a7c15ULL); }
  // Uniform in [0, bound), bound > 0; the bias of the multiplication is below 2^-32 for our bounds.
  uint64_t below(uint64_t bound) {
    return static_cast<uint64_t>((static_cast<Wide>(next()) * bound) >> 64);
  }
  double unit() { return static_cast<double>(next() >> 11) * 0x1.0p-53; }  // [0, 1)

 private:
  uint64_t state_;
};

class ZipfGenerator {
 public:
  ZipfGenerator(uint64_t count, double theta) : count_(count), theta_(theta) {
    for (uint64_t i = 1; i <= count; ++i) zeta_ += 1.0 / std::pow(static_cast<double>(i), theta);
    alpha_ = 1.0 / (1.0 - theta);
    const double zeta2 = 1.0 + std::pow(0.5, theta);
    eta_ = (1.0 - std::pow(2.0 / static_cast<double>(count), 1.0 - theta)) / (1.0 - zeta2 / zeta_);
    half_power_ = std::pow(0.5, theta);
    // A multiplication by a number coprime with count is a bijection. It scatters the hot ranks
    // over the whole range.
    scatter_ = static_cast<uint64_t>(static_cast<double>(count) * 0.6180339887498949) | 1;
    while (std::gcd(scatter_, count) != 1) scatter_ += 2;
  }
  uint64_t rank(Random& random) const {
    const double u = random.unit();
    const double uz = u * zeta_;
    if (uz < 1.0) return 0;
    if (uz < 1.0 + half_power_) return count_ > 1 ? 1 : 0;
    const auto r = static_cast<uint64_t>(static_cast<double>(count_) *
                                         std::pow(eta_ * u - eta_ + 1.0, alpha_));
    return r < count_ ? r : count_ - 1;
  }
  uint64_t scattered(uint64_t rank) const {
    return static_cast<uint64_t>((static_cast<Wide>(rank) * scatter_) % count_);
  }
  // The probability that a draw falls into the `top` hottest ranks, which is the best hit ratio of
  // a cache of that size.
  double mass(uint64_t top) const {
    if (top == 0) return 0;
    if (top >= count_) return 1;
    if (top == 1) return 1.0 / zeta_;
    const double edge =
        std::pow(static_cast<double>(top) / static_cast<double>(count_), 1.0 / alpha_);
    const double u = (edge + eta_ - 1.0) / eta_;
    return std::fmax(u, (1.0 + half_power_) / zeta_);
  }

 private:
  uint64_t count_;
  double theta_, zeta_ = 0, alpha_, eta_, half_power_;
  uint64_t scatter_;
};

}  // namespace lunar::tools
