// SPDX-License-Identifier: Apache-2.0
// What `lunar bench kv` and its children say to each other, one line a message, as run_result.h has it:
//
//   to the child   load THREADS | settle | run MIX DRAW MODE THREADS DEPTH SECONDS WARM_SECONDS RATE SEED
//                  | scan KEYS_AT_ONCE SECONDS
//   from it        ready | result NAME=NUMBER ... | error TEXT
//
// Threading: plain data.
#pragma once
#include <cstdint>
#include <string>

#include "tools/bench/run_result.h"

namespace lunar::tools {

struct KvRun : RunResult {
  double cores = 0;           // CPUs that the process kept busy, the bench's own loops and checks included
  double ops_per_core_s = 0;  // operations a CPU second of the process
  double reads = 0, writes = 0;
  double ios = -1, ios_per_s = -1;  // reads and writes of the device; -1: the store does not tell
  double keys = 0;                  // in the store when the run had ended
  double bytes_per_s = 0;           // of keys and values
  double resident_bytes = 0;        // of the process when the run had ended
  double in_use_bytes = -1;         // of the place, or of memory in memory mode; -1: the store does not tell
  // Of a run that writes: what the process had written to the disk, for each byte of keys and values, with what the
  // store does about it until it is quiet again. -1: in memory, or the kernel does not count it.
  double amplification = -1;
  double index_bytes = -1;  // of a load in memory: what the store grew by beyond in_use_bytes, a key
};
struct KvRunField {
  const char* name;
  double KvRun::* member;
};
inline constexpr KvRunField kKvRunFields[] = {
    {"cores", &KvRun::cores},
    {"ops_per_core_s", &KvRun::ops_per_core_s},
    {"reads", &KvRun::reads},
    {"writes", &KvRun::writes},
    {"ios", &KvRun::ios},
    {"ios_per_s", &KvRun::ios_per_s},
    {"keys", &KvRun::keys},
    {"bytes_per_s", &KvRun::bytes_per_s},
    {"resident_bytes", &KvRun::resident_bytes},
    {"in_use_bytes", &KvRun::in_use_bytes},
    {"amplification", &KvRun::amplification},
    {"index_bytes", &KvRun::index_bytes},
};

inline std::string format_kv_run(const KvRun& run) {
  std::ostringstream out;
  out.precision(17);
  out << format_run(run);
  for (const KvRunField& field : kKvRunFields) out << ' ' << field.name << '=' << run.*field.member;
  return out.str();
}
// False when the line is not a result.
inline bool parse_kv_run(const std::string& line, KvRun* run) {
  if (!parse_run(line, run)) return false;
  std::istringstream words(line);
  for (std::string word; words >> word;) {
    const size_t equals = word.find('=');
    if (equals == std::string::npos) continue;
    for (const KvRunField& field : kKvRunFields)
      if (word.compare(0, equals, field.name) == 0) run->*field.member = std::stod(word.substr(equals + 1));
  }
  return true;
}

// Shares of operations in percent; what is left of 100 reads and then writes the same key (one operation).
struct KvMix {
  const char* name;
  unsigned reads, updates, inserts;
};
inline constexpr KvMix kKvMixes[] = {
    {"get", 100, 0, 0}, {"set", 0, 100, 0}, {"insert", 0, 0, 100}, {"a", 50, 50, 0},
    {"b", 95, 5, 0},    {"c", 100, 0, 0},   {"d", 95, 0, 5},       {"f", 50, 0, 0},
};
// Which keys: all alike, zipfian 0.99 scattered over all keys, or zipfian 0.99 from the newest key back.
enum class KvDraw { kUniform, kZipf, kLatest };
inline constexpr const char* kKvDrawNames[] = {"uniform", "zipf", "latest"};

struct KvOrder {
  KvMix mix = kKvMixes[0];
  KvDraw draw = KvDraw::kUniform;
  bool async = false;
  unsigned threads = 1;  // that issue
  unsigned depth = 1;    // operations each has in flight; 1 where calls are synchronous
  double seconds = 1, warm_seconds = 0;
  double rate = 0;  // operations a second in all, of asynchronous ones; 0: as many as can be
  uint64_t seed = 1;
};

}  // namespace lunar::tools
