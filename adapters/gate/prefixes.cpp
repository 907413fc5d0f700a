// SPDX-License-Identifier: Apache-2.0
// See prefixes.h.
#include "prefixes.h"

#include <cstring>

namespace lunar::redis {

size_t Prefixes::prefix_of(Slice key) {
  for (size_t i = 0; i < key.bytes; ++i) {
    if (key.data[i] == ':') return i + 1;
    if (key.data[i] >= '0' && key.data[i] <= '9') return i;
  }
  return key.bytes;
}

void Prefixes::sample(Slice key, bool cold) {
  ++samples_;
  if (key.bytes > PrefixUse::kBytes + 1) key.bytes = PrefixUse::kBytes + 1;
  size_t bytes = prefix_of(key);
  const bool cut = bytes > PrefixUse::kBytes;
  if (cut) bytes = PrefixUse::kBytes;
  uint32_t hash = 2166136261u;  // FNV-1a
  for (size_t i = 0; i < bytes; ++i) hash = (hash ^ static_cast<uint8_t>(key.data[i])) * 16777619u;
  PrefixUse* set = table_[(hash ^ hash >> 16) % kSets];
  PrefixUse* least = set;
  for (unsigned way = 0; way < kWays; ++way) {
    PrefixUse& one = set[way];
    if (one.samples != 0 && one.bytes == bytes && one.cut == cut &&
        memcmp(one.text, key.data, bytes) == 0) {
      ++one.samples;
      one.cold += cold ? 1 : 0;
      return;
    }
    if (one.samples < least->samples) least = &one;
  }
  if (least->samples > 1) {
    if (least->cold == least->samples) --least->cold;
    --least->samples;
    return;
  }
  *least = {1, cold ? 1u : 0u, static_cast<uint8_t>(bytes), cut, {}};
  memcpy(least->text, key.data, bytes);
}

void Prefixes::age() {
  samples_ /= 2;
  for (auto& set : table_)
    for (PrefixUse& one : set) {
      one.samples /= 2;
      one.cold /= 2;
    }
}

unsigned Prefixes::copy(PrefixUse* out, uint64_t* samples) const {
  unsigned count = 0;
  for (const auto& set : table_)
    for (const PrefixUse& one : set)
      if (one.samples != 0) out[count++] = one;
  *samples = samples_;
  return count;
}

}  // namespace lunar::redis
