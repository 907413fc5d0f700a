// SPDX-License-Identifier: Apache-2.0
// Counts how often clients use each key prefix, and how often its keys are cold. It samples one in
// kEvery commands at their first lookup. A prefix is the name up to and including its first ':', or
// up to its first digit, at most kBytes.
//
// The table keeps kWays prefixes per set. Each sample of an unknown prefix takes one from the count
// of the least used prefix, and replaces it when the count is used up: frequent prefixes stay,
// names without prefixes do not. It touches none of the server's memory.
//
// Threading: the server's main thread. Allocates nothing; some twenty nanoseconds per sample.
#pragma once
#include <cstddef>
#include <cstdint>

#include "resp.h"

namespace lunar::redis {

struct PrefixUse {
  static constexpr size_t kBytes = 40;
  uint32_t samples = 0, cold = 0;
  uint8_t bytes = 0;
  bool cut = false;  // the prefix is longer
  char text[kBytes];
};

class Prefixes {
 public:
  static constexpr unsigned kEvery = 8, kSets = 64, kWays = 4, kMost = kSets * kWays;

  // pre: called once per command.
  void note(Slice key, bool cold) {
    if (++commands_ % kEvery == 0) sample(key, cold);
  }
  void sample(Slice key, bool cold);
  // Halves all counts, so that old ones are forgotten.
  void age();
  // Copies the prefixes to `out` (room for kMost). Returns their number. *samples: all samples,
  // aged.
  unsigned copy(PrefixUse* out, uint64_t* samples) const;

  static size_t prefix_of(Slice key);

 private:
  PrefixUse table_[kSets][kWays] = {};
  uint64_t samples_ = 0;
  unsigned commands_ = 0;
};

}  // namespace lunar::redis
