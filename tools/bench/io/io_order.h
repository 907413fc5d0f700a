// SPDX-License-Identifier: Apache-2.0
// The parameters of one measurement of block I/O.
// Threading: plain data.
#pragma once
#include <cstdint>
#include <string>

namespace lunar::tools {

struct IoOrder {
  std::string system;
  unsigned read_percent = 100;
  unsigned depth = 1;  // operations in flight; for "legacy" the number of threads
  unsigned batch = 1;  // operations per exchange
  double seconds = 1, warm_seconds = 0.1;
  uint64_t seed = 1;
};

// Commands and responses per exchange: one at depths up to 7, else a quarter of the depth, at most
// 32.
constexpr unsigned batch_of(unsigned depth) {
  return depth < 8 ? 1 : depth / 4 < 32 ? depth / 4 : 32;
}

}  // namespace lunar::tools
