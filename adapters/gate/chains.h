// SPDX-License-Identifier: Apache-2.0
// The chain of one bucket of a hash table: entries of a dictionary (Redis), or further buckets of a
// table (Valkey). A walk touches an entry or a bucket only after have(address, bytes) was true.
//
// Threading: as lookup_steps.h. Allocates nothing.
#pragma once
#include "layout.h"

namespace lunar::redis {

// entries, or buckets; a longer chain of colliding keys is left to the server
constexpr unsigned kChainMax = 64;

// Dictionaries without values (sets of Redis 8) mark their pointers: to a key itself (always odd,
// or 2), to an entry without value (4).
struct Marked {
  uintptr_t raw;
  bool is_key() const { return (raw & 3) != 0; }
  bool is_without_value() const { return (raw & 7) == 4; }
  uintptr_t address() const { return (raw & 1) != 0 ? raw : raw & ~uintptr_t{7}; }
};

struct ChainEntry {
  const char* key;
  void* value;    // nullptr also where the dictionary has no values
  EntryView* at;  // nullptr: a marked key, or an entry without value
};

// Calls visit(ChainEntry) for each entry of the chain until it returns false. False: an entry is
// missing.
template <class Have, class Visit>
bool for_each_entry(EntryView* entry, Have have, Visit visit) {
  constexpr size_t kWithoutValueBytes = 16;
  for (unsigned n = 0; entry != nullptr && n < kChainMax; ++n) {
    const Marked marked{reinterpret_cast<uintptr_t>(entry)};
    auto* at = reinterpret_cast<EntryView*>(marked.address());
    if (marked.is_key()) {
      (void)visit(ChainEntry{reinterpret_cast<const char*>(at), nullptr, nullptr});
      return true;
    }
    const bool no_value = marked.is_without_value();
    if (!have(at, no_value ? kWithoutValueBytes : sizeof *at)) return false;
    if (!visit(no_value ? ChainEntry{at->key, nullptr, nullptr}
                        : ChainEntry{at->key, at->value, at}))
      return true;
    entry = no_value ? static_cast<EntryView*>(at->value) : at->next;
  }
  return true;
}

// Calls visit(bucket, place) for each place in use of the chain of buckets until it returns false.
// False: a bucket is missing.
template <class Have, class Visit>
bool for_each_place(const BucketView* bucket, Have have, Visit visit) {
  for (unsigned n = 0; bucket != nullptr && n < kChainMax; ++n, bucket = bucket->next()) {
    if (!have(bucket, sizeof *bucket)) return false;
    for (unsigned i = 0; i < bucket->places(); ++i)
      if (bucket->holds(i) && !visit(*bucket, i)) return true;
  }
  return true;
}

}  // namespace lunar::redis
