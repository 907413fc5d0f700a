// SPDX-License-Identifier: Apache-2.0
// Writing: set and del, see store.h.
//
// An entry is switched under the lock of its shard, after the record is complete. What it led to before is dead from
// then on; a reader may still be in it, and cleaning waits for that one.
// Threading: as in store.h.
#include <errno.h>

#include <new>

#include "kv/store.h"

namespace lunar::kv {
namespace {

// A value that shrank by more than half gets a record of its own, unless the store is full: the room would never come
// back.
bool fits_in_place(const Record* record, uint64_t value_bytes, bool full) {
  const uint64_t room = record->value_room();
  const bool wastes = room >= 64 && value_bytes < room / 2 && !full;
  return record->type() == RecordType::kPair && value_bytes <= room && !wastes;
}

void fill_pair(Record* record, uint64_t units, Bytes key, Bytes value) {
  new (record) Record{0, 0, static_cast<uint32_t>(units << 2 | static_cast<uint32_t>(RecordType::kPair)),
                      static_cast<uint32_t>(key.size), static_cast<uint32_t>(value.size)};
  if (key.size) memcpy(record + 1, key.data, key.size);
  if (value.size) memcpy(record->value(), value.data, value.size);
}

}  // namespace

// Whether what an entry leads to is the key's; if so, what it is. 1, 0, or -errno.
int Store::examine(Address address, uint64_t hash, Bytes key, Found* out) {
  {
    Look look(log_);
    int status = -EIO;
    for (unsigned tries = 0; tries < 3 && status < 0; ++tries) status = look.locked(address);
    if (status < 0) return status;
    if (look->type() == RecordType::kPair || !log_.on_device()) {
      if (!is_key(look.record(), hash, key)) return 0;
    }
    out->units = look->units();
    if (look->type() == RecordType::kPair) {
      out->value_bytes = word32(look->value_bytes, std::memory_order_relaxed);
      out->pair_bytes = key.size + out->value_bytes;
      out->run = {};
      return 1;
    }
    out->run = look->large();
  }
  out->value_bytes = out->run.value_bytes;
  out->pair_bytes = key.size + out->value_bytes;
  return log_.on_device() ? is_key_of_run(out->run, hash, key) : 1;
}

// Pre: the lock. 0 (also when there is none), or -errno: one that may be the key's cannot be read.
int Store::find_locked(Shard& shard, uint64_t hash, Bytes key, Found* out) {
  int error = 0;
  out->place = shard.index.find_entry(hash, [&](Address address) {
    const int same = examine(address, hash, key, out);
    if (same < 0) error = same;
    out->address = address;
    return same > 0;
  });
  return out->place ? 0 : error;
}

int Store::set(Bytes key, Bytes value) {
  if (key.size > kPairBytesMax || value.size > kPairBytesMax) return -EINVAL;
  const uint64_t hash = hash_of(key);
  const bool large = record_units(key.size, value.size) > log_.inline_units_max();
  return large ? set_large(hash, key, value) : set_inline(hash, key, value, true);
}

int Store::set_now(Bytes key, Bytes value) {
  const bool large = key.size > kPairBytesMax || value.size > kPairBytesMax ||
                     record_units(key.size, value.size) > log_.inline_units_max();
  return large || log_.on_device() ? -EAGAIN : set_inline(hash_of(key), key, value, false);
}

// What an entry led to lives no more. Pre: it is gone or leads elsewhere.
void Store::drop(const Found& found) {
  log_.drop_live(found.address, found.units);
  if (found.run.count) log_.retire(found.run.first, found.run.count);
}

// The key's entry leads to the record at `address` from now on. Pre: the lock. -ENOMEM: no room for an entry, nothing
// changed.
int Store::publish(Shard& shard, uint64_t hash, Address address, const Found& found, uint64_t bytes) {
  if (found.place) {
    Index::replace(found.place, address);
    drop(found);
  } else if (const int status = shard.index.insert(hash, address); status < 0) {
    return status;
  }
  shard.pair_bytes.fetch_add(bytes - (found.place ? found.pair_bytes : 0), std::memory_order_relaxed);
  return 0;
}

bool Store::set_in_place(Shard& shard, const Found& found, Bytes value, bool full) {
  if (found.run.count || !log_.begin_change(found.address)) return false;
  Record* record = log_.at(found.address);
  const bool fits = fits_in_place(record, value.size, full);
  if (fits) {
    value_overwrite(record, value);
    shard.pair_bytes.fetch_add(value.size - found.value_bytes, std::memory_order_relaxed);
  }
  log_.published(found.address);
  return fits;
}

int Store::set_inline(uint64_t hash, Bytes key, Bytes value, bool may_wait) {
  Shard& shard = shard_of(hash);
  shard.index.prefetch(hash);
  const uint64_t units = record_units(key.size, value.size);
  for (bool full = false, replaces = false;;) {
    {
      MutexLock lock(shard.lock);
      shard.writes.fetch_add(1, std::memory_order_relaxed);
      Found found;
      if (const int status = find_locked(shard, hash, key, &found); status < 0) return status;
      if (found.place && set_in_place(shard, found, value, full)) return 0;
      replaces = found.place != nullptr;
      Address address;
      if (log_.allocate(units, false, &address) == 0) {
        fill_pair(log_.at(address), units, key, value);
        const int status = publish(shard, hash, address, found, key.size + value.size);
        if (status < 0) log_.drop_live(address, units);
        log_.published(address);
        return status < 0 ? -ENOSPC : 0;
      }
      shard.writes.fetch_sub(1, std::memory_order_relaxed);
    }
    if (!may_wait) return -EAGAIN;
    if (const int status = room_for_segment(); status < 0) {
      if (status != -ENOSPC || full || !replaces) return status;
      full = true;
    }
  }
}

int Store::set_large(uint64_t hash, Bytes key, Bytes value) {
  Shard& shard = shard_of(hash);
  const uint64_t units = record_units(sizeof(LargePlace), 0);
  LargePlace place{hash, key.size, value.size, 0, 0, 0};
  place.count = log_.run_segments(place.value_at() + value.size);
  if (const int status = room_for_run(place.count, &place.first); status < 0) return status;
  place.life = log_.life(place.first);
  int status = log_.write_run(place, key, value);
  while (status == 0) {
    {
      MutexLock lock(shard.lock);
      Found found;
      if (status = find_locked(shard, hash, key, &found); status < 0) break;
      Address address;
      if (log_.allocate(units, false, &address) == 0) {
        Record* record = log_.at(address);
        new (record) Record{0, 0, static_cast<uint32_t>(units << 2 | static_cast<uint32_t>(RecordType::kLarge)),
                            sizeof(LargePlace), 0};
        new (record + 1) LargePlace(place);
        status = publish(shard, hash, address, found, key.size + value.size) < 0 ? -ENOSPC : 0;
        if (status < 0) log_.drop_live(address, units);
        if (status == 0) log_.run_published(place.first, place.count);
        log_.published(address);
        shard.writes.fetch_add(1, std::memory_order_relaxed);
        break;
      }
    }
    status = room_for_segment();
  }
  if (status < 0) log_.retire(place.first, place.count);
  return status;
}

int64_t Store::del(Bytes key) {
  const uint64_t hash = hash_of(key);
  Shard& shard = shard_of(hash);
  MutexLock lock(shard.lock);
  shard.writes.fetch_add(1, std::memory_order_relaxed);
  Found found;
  if (const int status = find_locked(shard, hash, key, &found); status < 0) return status;
  if (!found.place) return -ENOENT;
  shard.index.erase(found.place);
  shard.pair_bytes.fetch_sub(found.pair_bytes, std::memory_order_relaxed);
  drop(found);
  return static_cast<int64_t>(found.value_bytes);
}

}  // namespace lunar::kv
