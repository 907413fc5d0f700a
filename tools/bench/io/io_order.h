// SPDX-License-Identifier: Apache-2.0
// What one measurement of block I/O is asked for.
// Threading: plain data.
#pragma once
#include <cstdint>
#include <string>

namespace lunar::tools {

struct IoOrder {
  std::string system;
  unsigned read_percent = 100;
  unsigned depth = 1;  // in flight at once; of "legacy" the number of its threads
  unsigned batch = 1;  // handed over and waited for at once
  double seconds = 1, warm_seconds = 0.1;
  uint64_t seed = 1;
};

// Commands handed over and responses waited for at once: 32 where 128 are in flight, a quarter of
// the depth where that is less, one at depths up to 7.
constexpr unsigned batch_of(unsigned depth) {
  return depth < 8 ? 1 : depth / 4 < 32 ? depth / 4 : 32;
}

}  // namespace lunar::tools
