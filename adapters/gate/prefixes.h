// SPDX-License-Identifier: Apache-2.0
// Counts which key prefixes clients use, and which of them hit cold memory. It samples one in
// kEvery commands at their first lookup. A prefix is the name up to and including its first ':', or
// up to its first digit, at most kBytes.
//
// The table keeps kWays prefixes per set. A new one replaces the least used one after others have
// used up that one's count: frequent prefixes stay, names without prefixes pass through. It touches
// none of the server's memory.
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

  // pre: called once a command.
  void note(Slice key, bool cold) {
    if (++commands_ % kEvery == 0) sample(key, cold);
  }
  void sample(Slice key, bool cold);
  // Halves all counts, so that old ones are forgotten.
  void age();
  // Copies the counts of all samples that are not forgotten to `out` (kMost entries).
  unsigned copy(PrefixUse* out, uint64_t* samples) const;

  static size_t prefix_of(Slice key);

 private:
  PrefixUse table_[kSets][kWays] = {};
  uint64_t samples_ = 0;
  unsigned commands_ = 0;
};

}  // namespace lunar::redis
