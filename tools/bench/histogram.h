// SPDX-License-Identifier: Apache-2.0
// A histogram of latencies. Buckets are at most 1/64 wide relative to their values: exact below 64
// ns, then 64 buckets per power of two up to 2^42 ns (73 minutes). A percentile is the middle of a
// bucket, within 0.8 % of the true value; the mean and the maximum are exact.
// Threading: one thread adds; merge after it has stopped.
#pragma once
#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>

namespace lunar::tools {

class Histogram {
 public:
  void add(uint64_t ns, uint64_t times = 1) {
    buckets_[bucket_of(ns)] += times;
    count_ += times;
    sum_ += ns * times;
    max_ = std::max(max_, ns);
  }
  void merge(const Histogram& other) {
    for (size_t i = 0; i < kBuckets; ++i) buckets_[i] += other.buckets_[i];
    count_ += other.count_;
    sum_ += other.sum_;
    max_ = std::max(max_, other.max_);
  }
  void clear() { *this = Histogram(); }
  uint64_t count() const { return count_; }
  uint64_t max() const { return max_; }
  double mean() const {
    return count_ == 0 ? 0 : static_cast<double>(sum_) / static_cast<double>(count_);
  }
  // The smallest value such that a share `q` (0..1) of all values is not larger; 0 if there is
  // none.
  double percentile(double q) const {
    if (count_ == 0) return 0;
    const auto wanted =
        std::max<uint64_t>(1, static_cast<uint64_t>(q * static_cast<double>(count_) + 0.5));
    uint64_t seen = 0;
    for (size_t i = 0; i < kBuckets; ++i) {
      seen += buckets_[i];
      if (seen >= wanted) return std::min(middle_of(i), static_cast<double>(max_));
    }
    return static_cast<double>(max_);
  }

  static constexpr size_t bucket_of(uint64_t ns) {
    if (ns < kSteps) return static_cast<size_t>(ns);
    ns = std::min(ns, (uint64_t{1} << kTopBit) - 1);
    const unsigned shift = static_cast<unsigned>(std::bit_width(ns)) - 1 - kStepBits;
    return kSteps * (shift + 1) + static_cast<size_t>((ns >> shift) - kSteps);
  }
  static constexpr double middle_of(size_t bucket) {
    if (bucket < kSteps) return static_cast<double>(bucket);
    const size_t shift = bucket / kSteps - 1;
    const auto low = static_cast<double>((kSteps + bucket % kSteps) << shift);
    return low + static_cast<double>((uint64_t{1} << shift) - 1) / 2;
  }

 private:
  static constexpr unsigned kStepBits = 6, kTopBit = 42;
  static constexpr size_t kSteps = 1u << kStepBits;
  static constexpr size_t kBuckets = kSteps * (kTopBit - kStepBits + 1);
  std::array<uint64_t, kBuckets> buckets_{};
  uint64_t count_ = 0, sum_ = 0, max_ = 0;
};

}  // namespace lunar::tools
