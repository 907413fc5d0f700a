// SPDX-License-Identifier: Apache-2.0
// The demo's data: key i and its value follow from i and a seed, so that nothing needs to be stored
// to check them. Values are incompressible (splitmix64 words). Threading: constant.
#pragma once
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>

#include "tools/bench/random.h"

namespace lunar::tools {

class DemoValues {
 public:
  DemoValues(uint64_t seed, size_t value_bytes) : seed_(seed), value_bytes_(value_bytes) {}
  size_t value_bytes() const { return value_bytes_; }
  static std::string key(uint64_t index) {
    char text[32];
    return std::string(text, static_cast<size_t>(snprintf(text, sizeof text, "value:%09llu",
                                                          static_cast<unsigned long long>(index))));
  }
  void value(uint64_t index, std::string* out) const {
    out->resize(value_bytes_);
    Random random(mix64(seed_) ^ index);
    size_t at = 0;
    for (; at + sizeof(uint64_t) <= value_bytes_; at += sizeof(uint64_t)) {
      const uint64_t word = random.next();
      memcpy(out->data() + at, &word, sizeof word);
    }
    const uint64_t last = random.next();
    memcpy(out->data() + at, &last, value_bytes_ - at);
  }

 private:
  uint64_t seed_;
  size_t value_bytes_;
};

}  // namespace lunar::tools
