// SPDX-License-Identifier: Apache-2.0
// The orders of `lunar bench kv` to its children, one line each. A child answers "result ..."
// (run_result.h) or "error TEXT".
//
//   load THREADS | run MIX DRAW MODE THREADS DEPTH SECONDS WARM_SECONDS SEED
//
// Threading: plain data.
#pragma once
#include <cstdint>

namespace lunar::tools {

// Shares of operations in percent. The rest of 100 are operations that read and then write a key.
struct KvMix {
  const char* name;
  unsigned reads, updates, inserts;
};
inline constexpr KvMix kKvMixes[] = {
    {"get", 100, 0, 0}, {"set", 0, 100, 0}, {"insert", 0, 0, 100}, {"a", 50, 50, 0},
    {"b", 95, 5, 0},    {"c", 100, 0, 0},   {"d", 95, 0, 5},       {"f", 50, 0, 0},
};
// The choice of keys: uniform, zipfian 0.99 scattered over all keys, or zipfian 0.99 from the
// newest key back.
enum class KvDraw { kUniform, kZipf, kLatest };
inline constexpr const char* kKvDrawNames[] = {"uniform", "zipf", "latest"};

struct KvOrder {
  KvMix mix = kKvMixes[0];
  KvDraw draw = KvDraw::kUniform;
  bool async = false;
  unsigned threads = 1;
  unsigned depth = 1;  // operations in flight per thread; 1 for synchronous calls
  double seconds = 1, warm_seconds = 0;
  uint64_t seed = 1;
};

}  // namespace lunar::tools
