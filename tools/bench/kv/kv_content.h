// SPDX-License-Identifier: Apache-2.0
// The pairs of the key/value bench. Each number has a key of 8 bytes; the keys have no order. Every
// byte of a value depends on its number and version, so that a lost write, the value of another
// pair and one changed bit are noticed.
//
//   word 0  tag of the number      word 1  version      word 2  mix of both
//   from 3  a part of the noise, which begins at an offset that number and version determine
//
// The first half of each 128 bytes of noise is random, and the rest is zeros, so that it can be
// compressed.
// Threading: constant after construction, may be shared.
#pragma once
#include <array>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <vector>

#include "tools/bench/random.h"

namespace lunar::tools {

using KvKey = std::array<char, 8>;

class KvContent {
 public:
  static constexpr size_t kValueBytesMin = 24;

  // pre: value_bytes is a multiple of 8, at least kValueBytesMin.
  KvContent(uint64_t seed, size_t value_bytes)
      : seed_(mix64(seed + 1)), bytes_(value_bytes), noise_(kNoiseWords + value_bytes / 8) {
    Random random(seed);
    for (size_t i = 0; i < noise_.size(); ++i) noise_[i] = i % 16 < 8 ? random.next() : 0;
  }
  size_t value_bytes() const { return bytes_; }
  KvKey key(uint64_t number) const {
    const uint64_t word = mix64(number ^ seed_);  // a bijection
    KvKey key;
    memcpy(key.data(), &word, sizeof word);
    return key;
  }
  void fill(uint64_t number, uint32_t version, void* value) const {
    const Words words = words_of(number, version);
    memcpy(value, words.data(), sizeof words);
    memcpy(static_cast<char*>(value) + sizeof words, &noise_[start(words)], bytes_ - sizeof words);
  }
  // Returns the version of a value of this number; 0 if a byte is wrong. (Versions begin at 1.)
  uint32_t check(uint64_t number, const void* value, int64_t length) const {
    if (length != static_cast<int64_t>(bytes_)) return 0;
    uint64_t version;
    memcpy(&version, static_cast<const char*>(value) + sizeof version, sizeof version);
    const Words words = words_of(number, static_cast<uint32_t>(version));
    if (memcmp(value, words.data(), sizeof words) != 0) return 0;
    const char* rest = static_cast<const char*>(value) + sizeof words;
    return memcmp(rest, &noise_[start(words)], bytes_ - sizeof words) == 0
               ? static_cast<uint32_t>(version)
               : 0;
  }

 private:
  using Words = std::array<uint64_t, 3>;
  static constexpr size_t kNoiseWords = 16384;  // 128 KiB, which fits into the second-level cache
  Words words_of(uint64_t number, uint32_t version) const {
    const uint64_t tag = mix64(seed_ + number);
    return {tag, version, mix64(tag + version)};
  }
  static size_t start(const Words& words) { return words[2] % kNoiseWords; }
  uint64_t seed_;
  size_t bytes_;
  std::vector<uint64_t> noise_;
};

}  // namespace lunar::tools
