// SPDX-License-Identifier: Apache-2.0
// Reading: get, exists; see store.h.
//
// Records in DRAM are found and copied under one epoch. Entries of records on the device are only
// noted there, and the records are read after the epoch. A checksum tells whether the bytes read
// are the record that the index led to. On a mismatch the record has moved or is damaged, so the
// get looks again, a few times without the lock of the shard, and at last with it. Then nothing
// moves, so a mismatch is damage. (Pieces are read without the lock even then.)
// Threading: as in store.h.
#include <errno.h>

#include <algorithm>
#include <optional>

#include "base/xxh3.h"
#include "kv/store.h"

namespace lunar::kv {
namespace {

constexpr unsigned kTries = 5;

}  // namespace

uint64_t hash_of(Bytes key) { return XXH3_64bits(key.data, key.size); }

// A damaged index may lead to bytes that are no record. The limit keeps the key within the mapping.
Bytes Store::key_of(const Record* record) const {
  return {record->key(),
          std::min<uint64_t>(record->key_bytes, log_.inline_units_max() * kUnitBytes)};
}

uint64_t Store::hash_of_record(const Record* record) const {
  return record->type() == RecordType::kPair ? hash_of(key_of(record)) : record->pieces().hash;
}

bool Store::is_key(const Record* record, uint64_t hash, Bytes key) const {
  if (record->type() == RecordType::kLarge && record->pieces().hold_key)
    return record->pieces().hash == hash && record->pieces().key_bytes == key.size;
  const Bytes own = key_of(record);
  return own.size == key.size && (key.size == 0 || memcmp(own.data, key.data, key.size) == 0);
}

// 1, 0, or -errno as read_pieces().
int Store::is_key_of_pieces(const Pieces& pieces, Bytes key) {
  char part[4096];
  for (uint64_t at = 0; pieces.hold_key && at < key.size; at += sizeof part) {
    const uint64_t n = std::min<uint64_t>(sizeof part, key.size - at);
    if (const int status = read_pieces(pieces, at, part, n); status < 0) return status;
    if (memcmp(part, static_cast<const char*>(key.data) + at, n) != 0) return 0;
  }
  return 1;
}

Record* Store::resident(Address address, Candidate* cold) const {
  Record* record = log_.in_dram(address);
  if (!record) *cold = {address, log_.life_of(address), {}, {}};
  return record;
}

// -ENOENT: not in DRAM; the pair may be one of `cold`.
int64_t Store::get_resident(uint64_t hash, Bytes key, void* buffer, uint64_t bytes, uint64_t offset,
                            Candidates* cold) {
  int64_t result = -ENOENT;
  Reading guard(epochs_);
  shard_of(hash).index.find(hash, [&](Address address) {
    if (cold->count == Candidates::kMax) {
      cold->more = true;
      return false;
    }
    Record* record = resident(address, &cold->list[cold->count]);
    if (!record) {
      (void)log_.bodies().find(address, &cold->list[cold->count].body);
      ++cold->count;
      return false;
    }
    if (!is_key(record, hash, key)) return false;
    if (log_.on_device()) log_.note_read(record);
    if (record->type() == RecordType::kLarge) {
      cold->list[cold->count++] = {address, 0, record->pieces(), {}};
      // If the key lies in the pieces, another pair may have the same hash and length.
      return !record->pieces().hold_key;
    }
    result =
        static_cast<int64_t>(value_copy_out(record, log_.value_of(record), offset, buffer, bytes));
    return true;
  });
  if (result >= 0 || cold->count == 0) guard.count();
  return result;
}

// Admits a body that was read alone, and proved, to the cache. The record for the copy is made from
// the key and the table's entry.
void Store::admit_body(const BodyPlace& body, Bytes key, const char* value, Address address,
                       uint64_t life) {
  alignas(Record) char memory[Log::kBodyRecordUnits * kUnitBytes];
  if (body.units > Log::kBodyRecordUnits || body.units < record_units(key.size, sizeof(Body)))
    return;
  auto* record = reinterpret_cast<Record*>(memory);
  memset(memory, 0, sizeof memory);
  fill_head(record, RecordNotes::kBody, RecordType::kPair, body.units, key,
            body.blocks * media::kBlockBytes);
  log_.cache().admit(record, address, life, false, value);
}

// -ENOENT: the record is another key's. -ESTALE: its pieces are gone.
int64_t Store::get_cold(const Candidate& one, uint64_t hash, Bytes key, void* buffer,
                        uint64_t bytes, uint64_t offset) {
  Pieces pieces = one.pieces;
  if (pieces.id == 0) {
    RecordReader reader(log_);
    if (one.body.blocks != 0 && reader.known_body(one.body, one.address, one.life, key) == 0) {
      const uint64_t whole = one.body.blocks * media::kBlockBytes,
                     rest = offset < whole ? whole - offset : 0;
      value_copy_words(reader.value(), offset, buffer, std::min<uint64_t>(rest, bytes));
      admit_body(one.body, key, reader.value(), one.address, one.life);
      return static_cast<int64_t>(whole);
    }
    if (const int status = reader.cold(one.address, one.life); status < 0) return status;
    if (!is_key(reader.record(), hash, key)) return -ENOENT;
    if (const int status = reader.find_value(); status < 0) return status;
    log_.cache().admit(reader.record(), one.address, one.life, false, reader.value());
    if (reader->type() == RecordType::kPair)
      return static_cast<int64_t>(
          value_copy_out(reader.record(), reader.value(), offset, buffer, bytes));
    pieces = reader->pieces();
  }
  if (const int same = is_key_of_pieces(pieces, key); same <= 0) return same < 0 ? same : -ENOENT;
  const uint64_t rest = offset < pieces.value_bytes ? pieces.value_bytes - offset : 0;
  const int status =
      read_pieces(pieces, pieces.value_at() + std::min<uint64_t>(offset, pieces.value_bytes),
                  buffer, std::min<uint64_t>(rest, bytes));
  return status < 0 ? status : static_cast<int64_t>(pieces.value_bytes);
}

// Reads with the lock of the shard, if there were too many candidates, or the record moved faster
// than it was read. Pieces are read without the lock until HeadsRead is full. A piece that is
// missing while the index still leads to its head is damaged.
int64_t Store::get_locked(uint64_t hash, Bytes key, void* buffer, uint64_t bytes, uint64_t offset) {
  Shard& shard = shard_of(hash);
  HeadsRead read;
  for (;;) {
    Found found;
    std::optional<MutexLock> lock(std::in_place, shard.lock);
    if (const int status = find_locked(shard, hash, key, read, &found); status < 0) return status;
    if (!found.place) return -ENOENT;
    if (found.pieces.id == 0) {
      RecordReader reader(log_);
      if (const int status = reader.locked(found.address); status < 0) return status;
      if (const int status = reader.find_value(); status < 0) return status;
      return static_cast<int64_t>(
          value_copy_out(reader.record(), reader.value(), offset, buffer, bytes));
    }
    if (!read.full()) lock.reset();
    int64_t result =
        get_cold({found.address, 0, found.pieces, {}}, hash, key, buffer, bytes, offset);
    if (result == -ESTALE) result = -EBADMSG;
    if (result >= 0 || lock) return result;
    read.list[read.count++] = {found.pieces.id, result == -ENOENT ? 0 : static_cast<int>(result)};
  }
}

int64_t Store::get_now(Bytes key, void* buffer, uint64_t bytes, uint64_t offset) {
  const uint64_t hash = hash_of(key);
  Candidates cold;
  const int64_t result = get_resident(hash, key, buffer, bytes, offset, &cold);
  return result >= 0 || cold.count == 0 ? result : -EAGAIN;
}

int64_t Store::cold_begin(ColdGet* get, Bytes key, void* buffer, uint64_t bytes, uint64_t offset) {
  const uint64_t hash = hash_of(key);
  Candidates cold;
  const int64_t result = get_resident(hash, key, buffer, bytes, offset, &cold);
  if (result >= 0 || cold.count == 0) return result;
  if (cold.count > 1 || cold.more || cold.list[0].pieces.id != 0) return -EAGAIN;
  const Candidate& one = cold.list[0];
  const uint64_t body_bytes = one.body.blocks * media::kBlockBytes;
  if (body_bytes > Log::kColdBytes) return -EAGAIN;
  char* block = log_.take_block();
  if (!block) return -ENOBUFS;
  *get = {{},          {block, body_bytes ? body_bytes : log_.cold_bytes(one.address)},
          key,         buffer,
          bytes,       offset,
          hash,        one.life,
          one.address, one.body};
  if (body_bytes)
    log_.read_command(log_.body_offset(one.address, one.body.block), &get->piece, &get->command);
  else
    log_.cold_command(get->address, &get->piece, &get->command);
  return -EINPROGRESS;
}

int64_t Store::cold_finish(ColdGet* get, int64_t moved) {
  auto* block = static_cast<char*>(get->piece.iov_base);
  int64_t result = -EAGAIN;
  Record* record = nullptr;
  const bool read = moved == static_cast<int64_t>(get->piece.iov_len);
  if (get->body.blocks != 0) {
    const uint64_t whole = get->piece.iov_len, rest = get->offset < whole ? whole - get->offset : 0;
    if (read &&
        body_checksum(get->key, block, whole, get->address, get->life) == get->body.checksum) {
      value_copy_words(block, get->offset, get->buffer, std::min<uint64_t>(rest, get->bytes));
      admit_body(get->body, get->key, block, get->address, get->life);
      result = static_cast<int64_t>(whole);
      Reading(epochs_).count();
    } else {
      log_.bodies().forget(get->address);
    }
  } else if (read &&
             log_.cold_record(get->address, get->life, block, get->piece.iov_len, &record) == 0 &&
             record->type() == RecordType::kPair && !record->has_body()) {
    result = -ENOENT;
    if (is_key(record, get->hash, get->key)) {
      result = static_cast<int64_t>(
          value_copy_out(record, record->value(), get->offset, get->buffer, get->bytes));
      log_.cache().admit(record, get->address, get->life);
    }
    Reading(epochs_).count();
  }
  log_.give_block(block);
  log_.grow_bodies();
  return result;
}

int64_t Store::get(Bytes key, void* buffer, uint64_t bytes, uint64_t offset) {
  const uint64_t hash = hash_of(key);
  shard_of(hash).index.prefetch(hash);
  bool known = false;
  int64_t status = -ENOENT;
  for (unsigned tries = 0; !known && tries < kTries; ++tries) {
    Candidates cold;
    status = get_resident(hash, key, buffer, bytes, offset, &cold);
    if (status >= 0 || cold.count == 0) return status;
    if (cold.more) break;  // the key may be among the entries that were not noted
    bool all_read = true;
    for (unsigned i = 0; i < cold.count; ++i) {
      const int64_t one = get_cold(cold.list[i], hash, key, buffer, bytes, offset);
      if (one == -ENOENT) continue;
      status = one;
      all_read = false;
      if (one >= 0) break;
    }
    known = status >= 0 || all_read;
  }
  if (!known) status = get_locked(hash, key, buffer, bytes, offset);
  log_.grow_bodies();
  Reading(epochs_).count();
  return status;
}

int64_t Store::copy_key(const Record* record, void* buffer, uint64_t bytes) const {
  const Bytes key = key_of(record);
  if (const uint64_t n = std::min<uint64_t>(key.size, bytes)) memcpy(buffer, key.data, n);
  return static_cast<int64_t>(key.size);
}

int64_t Store::copy_cold_key(const Candidate& one, void* buffer, uint64_t bytes) {
  Pieces pieces = one.pieces;
  if (pieces.id == 0) {
    RecordReader reader(log_);
    if (const int status = reader.cold(one.address, one.life); status < 0) return status;
    if (reader->type() == RecordType::kPair || !reader->pieces().hold_key)
      return copy_key(reader.record(), buffer, bytes);
    pieces = reader->pieces();
  }
  const int status = read_pieces(pieces, 0, buffer, std::min<uint64_t>(pieces.key_bytes, bytes));
  return status < 0 ? status : static_cast<int64_t>(pieces.key_bytes);
}

}  // namespace lunar::kv
