// SPDX-License-Identifier: Apache-2.0
// Reading and changing a value in its place: see record.h.
// Threading: as there. May not: allocate, block (a reader yields while a writer that lost its CPU
// is within the record).
#include "kv/record.h"

#include <stddef.h>

#include <algorithm>
#include <new>

#include "base/xxh3.h"
#include "sys/thread.h"

namespace lunar::kv {
namespace {

// A value is copied while another thread may change it: word by word with acquire loads and release
// stores, so C++ sees no data race. That is half as fast as the processor's own copy, so long runs
// of words use REP MOVS, except where a sanitizer must see each access. REP MOVS moves whole words
// here (the addresses in the record are aligned), other loads and stores do not pass it, and the
// compiler may not move memory accesses over the asm.
#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
constexpr uint64_t kLongWords = 64;
void move_words(void* to, const void* from, uint64_t words) {
  asm volatile("rep movsq" : "+D"(to), "+S"(from), "+c"(words) : : "memory", "cc");
}
#else
constexpr uint64_t kLongWords = UINT64_MAX;
void move_words(void*, const void*, uint64_t) {}
#endif

uint64_t load_word(const char* at) {
  return std::atomic_ref<uint64_t>(*reinterpret_cast<uint64_t*>(const_cast<char*>(at)))
      .load(std::memory_order_acquire);
}

void store_word(char* at, uint64_t word) {
  std::atomic_ref<uint64_t>(*reinterpret_cast<uint64_t*>(at))
      .store(word, std::memory_order_release);
}

}  // namespace

void fill_head(Record* record, uint32_t notes, RecordType type, uint64_t units, Bytes key,
               uint64_t value_bytes) {
  new (record) Record{0, 0, notes | static_cast<uint32_t>(units << 2 | static_cast<uint32_t>(type)),
                      static_cast<uint32_t>(key.size), static_cast<uint32_t>(value_bytes)};
  if (key.size) memcpy(record + 1, key.data, key.size);
}

void fill_record(Record* record, RecordType type, uint64_t units, Bytes key, Bytes value) {
  fill_head(record, 0, type, units, key, value.size);
  if (value.size) memcpy(record->value(), value.data, value.size);
}

void value_copy_words(const char* value, uint64_t offset, void* to, uint64_t n) {
  auto* out = static_cast<char*>(to);
  const char* at = value + round_down(offset, 8);
  if (const uint64_t skip = offset % 8; skip && n) {
    const uint64_t word = load_word(at), part = std::min(n, 8 - skip);
    memcpy(out, reinterpret_cast<const char*>(&word) + skip, part);
    at += 8;
    out += part;
    n -= part;
  }
  if (const uint64_t words = n / 8; words >= kLongWords) {
    move_words(out, at, words);
    at += words * 8;
    out += words * 8;
    n -= words * 8;
  }
  while (n >= 8) {
    const uint64_t word = load_word(at);
    memcpy(out, &word, 8);
    at += 8;
    out += 8;
    n -= 8;
  }
  if (n) {
    const uint64_t word = load_word(at);
    memcpy(out, &word, n);
  }
}

uint64_t part_checksum(const void* data, uint64_t bytes, uint64_t number, uint64_t life) {
  return XXH3_64bits_withSeed(data, bytes, life * 0x9e3779b97f4a7c15 ^ number);
}

uint64_t record_checksum(const Record* record, Address address, uint64_t life) {
  constexpr uint64_t kFrom = offsetof(Record, size_type);
  return part_checksum(&record->size_type, record->units() * kUnitBytes - kFrom, address.value,
                       life);
}

uint64_t body_checksum(Bytes key, const char* value, uint64_t bytes, Address address,
                       uint64_t life) {
  return XXH3_64bits_withSeed(key.data, key.size, part_checksum(value, bytes, address.value, life));
}

uint64_t value_copy_out(const Record* record, const char* value, uint64_t offset, void* to,
                        uint64_t bytes) {
  for (unsigned tries = 0;; ++tries) {
    const uint32_t version = word32(record->version, std::memory_order_acquire);
    if ((version & 1) == 0) {
      const uint64_t length = word32(record->value_bytes, std::memory_order_acquire);
      const uint64_t rest = offset < length ? length - offset : 0;
      value_copy_words(value, offset, to, std::min(rest, bytes));
      if (word32(record->version, std::memory_order_relaxed) == version) return length;
    }
    tries < 100 ? sys::cpu_relax() : sys::yield_cpu();
  }
}

void value_overwrite(Record* record, char* to, Bytes value) {
  std::atomic_ref<uint32_t> version(record->version), length(record->value_bytes);
  const uint32_t before = version.load(std::memory_order_relaxed);
  version.store(before + 1, std::memory_order_relaxed);
  // release: not before the odd version
  length.store(static_cast<uint32_t>(value.size), std::memory_order_release);
  auto* from = static_cast<const char*>(value.data);
  uint64_t left = value.size;
  if (const uint64_t words = left / 8; words >= kLongWords) {
    move_words(to, from, words);
    from += words * 8;
    to += words * 8;
    left -= words * 8;
  }
  while (left) {
    const uint64_t part = std::min<uint64_t>(left, 8);
    uint64_t word = 0;
    memcpy(&word, from, part);
    store_word(to, word);
    from += part;
    to += 8;
    left -= part;
  }
  version.store(before + 2, std::memory_order_release);
}

}  // namespace lunar::kv
