// SPDX-License-Identifier: Apache-2.0
// Reading and changing a value in its place: see record.h.
// Threading: as there. May not: allocate, block (a reader yields while a writer that lost its CPU is within the
// record).
#include "kv/record.h"

#include <stddef.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "sys/thread.h"

namespace lunar::kv {

uint64_t part_checksum(const void* data, uint64_t bytes, uint64_t number, uint64_t life) {
  return XXH3_64bits_withSeed(data, bytes, life * 0x9e3779b97f4a7c15 ^ number);
}

uint64_t record_checksum(const Record* record, Address address, uint64_t life) {
  constexpr uint64_t kFrom = offsetof(Record, size_type);
  return part_checksum(&record->size_type, record->units() * kUnitBytes - kFrom, address.value, life);
}

uint64_t value_copy_out(Record* record, uint64_t offset, void* to, uint64_t bytes) {
  for (unsigned tries = 0;; ++tries) {
    const uint32_t version = word32(record->version, std::memory_order_acquire);
    if ((version & 1) == 0) {
      const uint64_t length = word32(record->value_bytes, std::memory_order_acquire);
      const uint64_t rest = offset < length ? length - offset : 0;
      value_copy_words(record->value(), offset, to, rest < bytes ? rest : bytes);
      if (word32(record->version, std::memory_order_relaxed) == version) return length;
    }
    tries < 100 ? sys::cpu_relax() : sys::yield_cpu();
  }
}

void value_overwrite(Record* record, Bytes value) {
  std::atomic_ref<uint32_t> version(record->version), length(record->value_bytes);
  const uint32_t before = version.load(std::memory_order_relaxed);
  version.store(before + 1, std::memory_order_relaxed);
  length.store(static_cast<uint32_t>(value.size), std::memory_order_release);  // release: not before the odd version
  auto* from = static_cast<const char*>(value.data);
  char* to = record->value();
  for (uint64_t left = value.size; left;) {
    const uint64_t part = left < 8 ? left : 8;
    uint64_t word = 0;
    memcpy(&word, from, part);
    std::atomic_ref<uint64_t>(*reinterpret_cast<uint64_t*>(to)).store(word, std::memory_order_release);
    from += part, to += 8, left -= part;
  }
  version.store(before + 2, std::memory_order_release);
}

}  // namespace lunar::kv
