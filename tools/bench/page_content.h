// SPDX-License-Identifier: Apache-2.0
// The content of a page in the benches and the demo: incompressible words that depend on the page's
// number, and a stamp.
//
//   word 0      tag(page) in the upper half | version in the lower half
//   word i > 0  noise[(start(page) + i) mod 16384] xor key(page)
//
// A write is one atomic increment of word 0, so any number of threads may read and write any page.
// A separate count (kept in DRAM) is the lowest version that a reader may see. So a lost write, a
// stale page, a page of zeros and the content of another page are all noticed.
// Threading: constant after construction, may be shared. The callers access word 0 with atomics.
#pragma once
#include <cstdint>
#include <cstring>
#include <vector>

#include "tools/bench/random.h"

namespace lunar::tools {

class PageContent {
 public:
  explicit PageContent(uint64_t seed, size_t page_bytes)
      : seed_(mix64(seed)),
        words_(page_bytes / sizeof(uint64_t)),
        noise_(kNoiseWords + page_bytes / sizeof(uint64_t)) {
    Random random(seed);
    for (size_t i = 0; i < kNoiseWords; ++i) noise_[i] = random.next();
    for (size_t i = kNoiseWords; i < noise_.size(); ++i) noise_[i] = noise_[i - kNoiseWords];
  }
  size_t words_per_page() const { return words_; }
  uint64_t stamp(uint64_t page, uint32_t version) const {
    return (mix64(seed_ ^ page) & ~uint64_t{UINT32_MAX}) | version;
  }
  uint64_t word(uint64_t page, size_t index) const {
    return noise_[start(page) + index] ^ key(page);
  }
  void fill(uint64_t page, void* out) const {
    auto* words = static_cast<uint64_t*>(out);
    const uint64_t* noise = &noise_[start(page)];
    const uint64_t mask = key(page);
    words[0] = stamp(page, 0);
    for (size_t i = 1; i < words_; ++i) words[i] = noise[i] ^ mask;
  }

 private:
  // 128 KiB, which fits into the second-level cache.
  static constexpr size_t kNoiseWords = 16384;
  size_t start(uint64_t page) const { return mix64(seed_ + 3 * page) % kNoiseWords; }
  uint64_t key(uint64_t page) const { return mix64(seed_ ^ (page + 0x9e3779b97f4a7c15ULL)); }
  uint64_t seed_;
  size_t words_;
  std::vector<uint64_t> noise_;
};

}  // namespace lunar::tools
