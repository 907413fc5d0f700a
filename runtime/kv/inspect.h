// SPDX-License-Identifier: Apache-2.0
// Inspecting a whole store: Store::info and Store::sweep.
// Threading: as in store.h.
#pragma once
#include <cstdint>

#include "kv/store.h"

namespace lunar::kv {

struct StoreInfo {
  // of a persistent store; otherwise 0
  uint32_t version = 0;
  uint8_t uuid[16] = {};
  uint64_t place_bytes = 0;  // bytes of the device that the store takes
  uint64_t sequence = 0;     // of the saved state: each flush adds 1
  uint64_t state_bytes = 0;  // of the saved state
  uint64_t features = 0;

  uint64_t keys = 0, pair_bytes = 0;
  uint64_t pieces = 0;                       // of large pairs
  uint64_t index_bytes = 0, dram_bytes = 0;  // of DRAM
  unsigned shards = 0;
  uint64_t segment_bytes = 0;
  uint64_t segments[kSegmentStates] = {};  // by SegmentState
  uint64_t live_bytes = 0;                 // of live records in segments
};

// Something that differs from what was written.
struct Damage {
  const char* what = "";   // in words: "record", "superblock", ...
  const char* fault = "";  // what is wrong with it
  Bytes key;  // the first `key_bytes` bytes, or fewer of a long key; valid if `key_readable`
  uint64_t key_bytes = 0;     // of the whole key
  bool key_readable = false;  // a key can be read, and the index confirms it
  // a pair that the store should hold cannot be read; false: at most space is lost
  bool pair_lost = false;
  bool in_segment = false;  // `segment` is valid
  uint64_t segment = 0;
  uint64_t offset = 0;  // in bytes, from the start of the place
  uint64_t bytes = 0;   // 0: not known
};

struct Sweep {
  void* context = nullptr;
  void (*on_damage)(void* context, const Damage& damage) = nullptr;
  // Called for each pair whose checksums are right, once, in no order of the keys. Key and value
  // are valid during the call. Returns false to end the sweep. nullptr: pairs are only checked.
  bool (*on_pair)(void* context, Bytes key, Bytes value) = nullptr;
  // for on_pair: values of large pairs are not read; on_pair gets data == nullptr
  bool keys_only = false;
};

struct CheckReport {
  uint64_t records = 0, large_pairs = 0;  // sound pairs
  uint64_t dead_records = 0;              // sound records that were replaced or deleted
  uint64_t read_bytes = 0;
  uint64_t damages = 0, pairs_lost = 0;
  // sound pairs that a damaged state does not name, so they may be older or deleted
  uint64_t doubtful = 0;
};

}  // namespace lunar::kv
