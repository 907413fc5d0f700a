// SPDX-License-Identifier: Apache-2.0
// Writing: set and del, see store.h.
//
// An entry is switched under the lock of its shard, after the record is complete. What it led to before is dead from then on; a reader
// may still be in it, and cleaning waits for that one.
// Threading: as in store.h.
#include <errno.h>

#include <new>

#include "kv/store.h"

namespace lunar::kv {
namespace {

// A value that shrank by more than half gets a record of its own: the room would never come back.
bool fits_in_place(const Record* record, uint64_t value_bytes) {
  const uint64_t room = record->value_room();
  return record->type() == RecordType::kPair && value_bytes <= room && (room < 64 || value_bytes >= room / 2);
}

void fill_pair(Record* record, uint64_t units, Bytes key, Bytes value) {
  new (record) Record{0, static_cast<uint32_t>(units << 2 | static_cast<uint32_t>(RecordType::kPair)), static_cast<uint32_t>(key.size),
                      static_cast<uint32_t>(value.size)};
  if (key.size) memcpy(record + 1, key.data, key.size);
  if (value.size) memcpy(record->value(), value.data, value.size);
}

}  // namespace

std::atomic<uint64_t>* Store::find_locked(Shard& shard, uint64_t hash, Bytes key) const {
  return shard.index.find_entry(hash, [&](Address address) { return is_key(log_.at(address), hash, key); });
}

int Store::set(Bytes key, Bytes value) {
  if (key.size > kPairBytesMax || value.size > kPairBytesMax) return -EINVAL;
  const uint64_t hash = hash_of(key);
  const bool large = record_units(key.size, value.size) > log_.inline_units_max();
  return large ? set_large(hash, key, value) : set_inline(hash, key, value);
}

// What an address led to lives no more. Pre: its entry is gone or leads elsewhere.
void Store::drop(Address address) {
  const Record* record = log_.at(address);
  const LargePlace* place = record->type() == RecordType::kLarge ? reinterpret_cast<const LargePlace*>(record->key()) : nullptr;
  const uint64_t first = place ? place->first : 0, count = place ? place->count : 0;
  log_.drop_live(address, record->units());
  if (count) log_.retire(first, count);
}

// The entry of the key leads to the record at `address` from now on. Pre: the lock. -ENOMEM: no room for an entry, nothing changed.
int Store::publish(Shard& shard, uint64_t hash, Address address, std::atomic<uint64_t>* place, uint64_t bytes) {
  uint64_t before = 0;
  if (place) {
    const Address old = Index::address_in(*place);
    const Record* record = log_.at(old);
    before = key_bytes_of(record) + value_bytes_of(record);
    Index::replace(place, address);
    drop(old);
  } else if (const int status = shard.index.insert(hash, address); status < 0) {
    return status;
  }
  shard.pair_bytes.fetch_add(bytes - before, std::memory_order_relaxed);
  return 0;
}

int Store::set_inline(uint64_t hash, Bytes key, Bytes value) {
  Shard& shard = shard_of(hash);
  const uint64_t units = record_units(key.size, value.size);
  for (;;) {
    {
      Held lock(shard.lock);
      std::atomic<uint64_t>* place = find_locked(shard, hash, key);
      if (place) {
        Record* record = log_.at(Index::address_in(*place));
        if (fits_in_place(record, value.size)) {
          shard.pair_bytes.fetch_add(value.size - record->value_bytes, std::memory_order_relaxed);
          value_overwrite(record, value);
          shard.writes.fetch_add(1, std::memory_order_relaxed);
          return 0;
        }
      }
      Address address;
      if (log_.allocate(units, false, &address) == 0) {
        fill_pair(log_.at(address), units, key, value);
        const int status = publish(shard, hash, address, place, key.size + value.size);
        if (status < 0) log_.drop_live(address, units);
        log_.published(address);
        shard.writes.fetch_add(1, std::memory_order_relaxed);
        return status < 0 ? -ENOSPC : 0;
      }
    }
    if (const int status = room_for_segment(); status < 0) return status;
  }
}

int Store::set_large(uint64_t hash, Bytes key, Bytes value) {
  Shard& shard = shard_of(hash);
  const uint64_t bytes = round_up(key.size, 8) + value.size, units = record_units(sizeof(LargePlace), 0);
  LargePlace place{hash, key.size, value.size, 0, (bytes + log_.segment_bytes() - 1) / log_.segment_bytes()};
  if (const int status = room_for_run(place.count, &place.first); status < 0) return status;
  char* memory = log_.segment_memory(place.first);
  if (key.size) memcpy(memory, key.data, key.size);
  if (value.size) memcpy(memory + round_up(key.size, 8), value.data, value.size);
  for (;;) {
    {
      Held lock(shard.lock);
      Address address;
      if (log_.allocate(units, false, &address) == 0) {
        Record* record = log_.at(address);
        new (record) Record{0, static_cast<uint32_t>(units << 2 | static_cast<uint32_t>(RecordType::kLarge)), sizeof(LargePlace), 0};
        new (record + 1) LargePlace(place);
        const int status = publish(shard, hash, address, find_locked(shard, hash, key), key.size + value.size);
        if (status < 0) drop(address);
        log_.published(address);
        shard.writes.fetch_add(1, std::memory_order_relaxed);
        return status < 0 ? -ENOSPC : 0;
      }
    }
    if (const int status = room_for_segment(); status < 0) {
      log_.retire(place.first, place.count);
      return status;
    }
  }
}

int64_t Store::del(Bytes key) {
  const uint64_t hash = hash_of(key);
  Shard& shard = shard_of(hash);
  Held lock(shard.lock);
  shard.writes.fetch_add(1, std::memory_order_relaxed);
  std::atomic<uint64_t>* place = find_locked(shard, hash, key);
  if (!place) return -ENOENT;
  const Address address = Index::address_in(*place);
  const uint64_t bytes = value_bytes_of(log_.at(address));
  shard.index.erase(place);
  shard.pair_bytes.fetch_sub(key.size + bytes, std::memory_order_relaxed);
  drop(address);
  return static_cast<int64_t>(bytes);
}

}  // namespace lunar::kv
