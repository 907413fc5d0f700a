// SPDX-License-Identifier: Apache-2.0
// Writing: set and del, see store.h.
//
// A set writes the record, then switches the index entry to it under the lock of the shard. The
// record that the entry led to before is dead from then on. A reader may still be in it, so
// cleaning waits for readers.
// With durable sets, the new record names the one that it replaces, a delete appends a record too,
// and the call returns after the log's commit. No lock is held during the commit.
// Threading: as in store.h.
#include <errno.h>

#include <initializer_list>
#include <new>

#include "kv/store.h"
#include "sys/log.h"

namespace lunar::kv {
namespace {

// A value that shrank by more than half gets a new record, unless the store is full. In place, the
// rest of the room would stay lost.
bool fits_in_place(const Record* record, uint64_t value_bytes, bool full) {
  if (record->has_body()) return value_bytes == record->value_bytes;
  const uint64_t room = record->value_room();
  const bool wastes = room >= 64 && value_bytes < room / 2 && !full;
  return record->type() == RecordType::kPair && value_bytes <= room && !wastes;
}

bool is_of_pair(const Record* record) {
  return !record->is_piece() &&
         (record->type() == RecordType::kPair || record->type() == RecordType::kLarge);
}

}  // namespace

// Whether the record that an entry leads to is the key's; if so, fills *out. 1, 0, or -errno.
// whole: of a key that lies in pieces, compares the bytes too, not only hash and length. That takes
// no longer than the caller took to bring such a key.
int Store::examine(Address address, uint64_t hash, Bytes key, bool whole, Found* out) {
  {
    RecordReader reader(log_);
    if (const int status = reader.locked_again(address); status < 0) return status;
    if (!is_key(reader.record(), hash, key)) return 0;
    const bool large = reader->type() == RecordType::kLarge;
    out->units = reader->live_units();
    out->pieces = large ? reader->pieces() : Pieces{};
    out->value_bytes = large ? reader->pieces().value_bytes
                             : word32(reader->value_bytes, std::memory_order_relaxed);
  }
  out->pair_bytes = key.size + out->value_bytes;
  const int same = whole ? is_key_of_pieces(out->pieces, key) : 1;
  return same == -ESTALE ? -EBADMSG : same;
}

// 0 (also if no record was found), or -errno: a record that may be the key's cannot be read.
// -EBADMSG: all such records are damaged. If `read` is not full, a record whose key lies in pieces
// may be another key's.
// pre: the lock
int Store::find_locked(Shard& shard, uint64_t hash, Bytes key, const HeadsRead& read, Found* out) {
  int error = 0;
  out->place = shard.index.find_entry(hash, [&](Address address) {
    int same = examine(address, hash, key, read.full(), out);
    if (same > 0) same = read.result_of(out->pieces.id);
    if (same < 0) error = graver(error, same);
    out->address = address;
    return same > 0;
  });
  return out->place ? 0 : error;
}

// Determines whose a damaged record is by the key that it shows, or by the hash of a key that lies
// in pieces. It is another key's if the index leads that key here. 0, or -errno: it cannot be read
// now.
int Store::owner_of_damaged(Shard& shard, uint64_t hash, Bytes key, Address address,
                            DamagedOwner* out) {
  const auto led_here = [&](uint64_t its_hash) {
    return &shard_of(its_hash) == &shard &&
           shard.index.find_entry(its_hash, [&](Address at) { return at == address; }) != nullptr;
  };
  *out = DamagedOwner::kUnknown;
  RecordReader reader(log_);
  if (const int status = reader.unproven(address); status < 0)
    return status == -EBADMSG ? 0 : status;
  const Record* record = reader.record();
  if (!is_of_pair(record)) return 0;
  const bool shows_hash = record->type() == RecordType::kLarge && record->pieces().hold_key;
  if (is_key(record, hash, key))
    *out = DamagedOwner::kThisKey;
  else if (led_here(shows_hash ? record->pieces().hash : hash_of(key_of(record))))
    *out = DamagedOwner::kOtherKey;
  return 0;
}

// As find_locked, but finds damaged records of the key as well, because a set or delete ends the
// damage that gets have reported until now. A set also replaces a damaged record that may be the
// key's: the index led to it by the key's bucket and 24 more bits, and its readable part names no
// other key. A delete does not, because it would lose another key's record unseen.
int Store::find_replaceable(Shard& shard, uint64_t hash, Bytes key, bool deletes, Found* out) {
  int error = 0;
  Address of_key, unknown;  // 0: none
  out->place = shard.index.find_entry(hash, [&](Address address) {
    const int same = examine(address, hash, key, true, out);
    if (same < 0) error = graver(error, same);
    if (same == -EBADMSG) {
      DamagedOwner owner = DamagedOwner::kUnknown;
      if (const int status = owner_of_damaged(shard, hash, key, address, &owner); status < 0)
        error = status;
      if (owner == DamagedOwner::kThisKey) of_key = address;
      if (owner == DamagedOwner::kUnknown) unknown = address;
    }
    out->address = address;
    return same > 0;
  });
  if (!out->place && error == -EBADMSG) {
    out->address = of_key.value || deletes ? of_key : unknown;
    if (out->address.value) {
      if (const int status = guess_damaged(hash, key, out); status < 0) return status;
      out->place =
          shard.index.find_entry(hash, [&](Address address) { return address == out->address; });
      out->damaged = true;
    } else if (!deletes) {
      error = 0;  // all are others'
    }
  }
  return out->place ? 0 : error;
}

// Estimates the size of a damaged record. Its lengths count only if the length of its key is right.
// Its units count if the record ends where its lengths say, and a sound record begins there or the
// segment ends. Otherwise nothing is given back, and the segment counts as fuller than it is until
// no record lives in it. To give back too much would be worse: a saved state with fewer live units
// than the index leads to is refused. 0, or -errno: it cannot be read now.
int Store::guess_damaged(uint64_t hash, Bytes key, Found* out) {
  out->units = out->value_bytes = 0;
  out->pair_bytes = key.size;
  out->pieces = {};
  RecordReader reader(log_);
  if (const int status = reader.unproven(out->address); status < 0)
    return status == -EBADMSG ? 0 : status;
  const Record* record = reader.record();
  const bool large = record->type() == RecordType::kLarge;
  if (!is_of_pair(record) || (large ? record->pieces().key_bytes : record->key_bytes) != key.size)
    return 0;
  if (large && record->pieces().hash == hash) out->pieces = record->pieces();
  const uint64_t units = record->units();
  const uint64_t wanted = record_units(record->key_bytes, record->stored_bytes()) +
                          Record::replaced_units(record->size_type);
  out->value_bytes = large ? record->pieces().value_bytes : record->value_bytes;
  out->pair_bytes += out->value_bytes;
  const Address behind{out->address.value + units};
  const uint64_t segment = log_.segment_of(out->address);
  const bool last =
      behind.value * kUnitBytes == segment * log_.segment_bytes() + log_.used(segment);
  const bool padded = units > wanted && behind.value * kUnitBytes % media::kBlockBytes == 0 &&
                      (units - wanted) * Log::kPaddingShare <= wanted;
  if ((units == wanted || padded) &&
      (last || (log_.segment_of(behind) == segment && reader.locked(behind) == 0)))
    out->units = units;  // without its body, whose length is not certain
  return 0;
}

// Logs a damaged record that was replaced.
// pre: the key's entry leads elsewhere
void Store::note_damage_replaced(const Found& found) {
  if (!found.damaged) return;
  damaged_replaced_.fetch_add(1, std::memory_order_relaxed);
  const uint64_t at = found.address.value * kUnitBytes;
  LUNAR_LOG_LIMITED(log_warning, 100,
                    "key/value store on %s: the record at byte %llu of its log was damaged; "
                    "a set or delete has taken its place",
                    device_->name(), static_cast<unsigned long long>(at));
}

int Store::set(Bytes key, Bytes value) {
  if (read_only_) return -EROFS;
  if (key.size > kPairBytesMax || value.size > kPairBytesMax) return -EINVAL;
  if (log_.failed()) return -EIO;
  const uint64_t hash = hash_of(key),
                 notes = log_.commits() ? sizeof(ReplacedLarge) / kUnitBytes : 0;
  const bool large = !log_.lies_on_blocks(key.size, value.size) &&
                     record_units(key.size, value.size) + notes > log_.inline_units_max();
  const int status = large ? set_large(hash, key, value) : set_inline(hash, key, value, true);
  return status < 0 ? status : end_change(status != kInPlace);
}

// Makes published records durable. A call that took room of the log then makes room, before other
// calls have to wait for it.
int Store::end_change(bool took_room) {
  const int status = log_.commits() ? log_.commit() : 0;
  give_back_dead();
  if (took_room) {
    save_early();
    clean_early();
  }
  return status;
}

int Store::set_now(Bytes key, Bytes value) {
  const bool large = key.size > kPairBytesMax || value.size > kPairBytesMax ||
                     record_units(key.size, value.size) > log_.inline_units_max();
  if (large || log_.on_device() || log_.wastes_memory()) return -EAGAIN;
  const int status = set_inline(hash_of(key), key, value, false);
  return status == kInPlace ? 0 : status;
}

// The units that a record needs to name the record that it replaces.
uint64_t Store::units_of_notes(const Found& found) const {
  if (!log_.commits() || !found.place) return 0;
  return (found.pieces.id ? sizeof(ReplacedLarge) : sizeof(Replaced)) / kUnitBytes;
}

// Names the replaced record at the end of the new one. Called last.
// pre: its size is right
void Store::note_replaced(Record* record, const Found& found) {
  if (units_of_notes(found) == 0) return;
  const bool large = found.pieces.id != 0;
  record->size_type |= large ? RecordNotes::kReplacesLarge : RecordNotes::kReplacesPair;
  *record->replaced() = {found.address.value, static_cast<uint32_t>(found.units),
                         static_cast<uint32_t>(large ? 0 : found.value_bytes)};
  if (!large) return;
  auto* of = reinterpret_cast<ReplacedLarge*>(reinterpret_cast<char*>(record->replaced()) -
                                              offsetof(ReplacedLarge, record));
  of->value_bytes = found.value_bytes;
  of->id = found.pieces.id;
  of->count = found.pieces.count();
}

// Fills the record of a pair whose value lies on blocks. The checksum of the value is computed when
// its blocks are written.
void Store::fill_with_body(Record* record, uint64_t units, Bytes key, Bytes value,
                           const BodyRoom& room) {
  fill_head(record, RecordNotes::kBody, RecordType::kPair, units, key, value.size);
  const_cast<Body&>(record->body()) = {0, room.block, 0};
  memcpy(log_.value_of(record), value.data, value.size);
}

// Turns a record of the log that no entry leads to into a mark, so that replay ignores it.
void Store::forget_record(Address address, uint64_t units, uint64_t body_bytes) {
  fill_head(log_.at(address), 0, RecordType::kMark, units, {}, 0);
  log_.drop_live(address, units + body_bytes / kUnitBytes);
}

// The record that an entry led to lives no more.
// pre: it is gone or leads elsewhere
void Store::drop(const Found& found) {
  note_damage_replaced(found);
  if (log_.drop_live(found.address, found.units)) give_back_empty(log_.segment_of(found.address));
}

// The key's entry leads to the record at `address` from now on. -ENOMEM: no room for an entry,
// nothing changed.
// pre: the lock
int Store::publish(Shard& shard, uint64_t hash, Address address, const Found& found,
                   uint64_t bytes) {
  if (found.place) {
    Index::replace(found.place, address);
    drop(found);
  } else if (const int status = shard.index.insert(hash, address); status < 0) {
    return status;
  }
  shard.count_bytes(bytes, found.place ? found.pair_bytes : 0);
  return 0;
}

bool Store::set_in_place(Shard& shard, const Found& found, Bytes value, bool full) {
  if (found.pieces.id != 0 || !log_.begin_change(found.address)) return false;
  Record* record = log_.at(found.address);
  // Replay finds the predecessor of a record that cleaning moved by its content, so the content
  // must not change.
  const bool fits = !record->moved() && fits_in_place(record, value.size, full);
  if (fits) {
    value_overwrite(record, log_.value_of(record), value);
    shard.count_bytes(value.size, found.value_bytes);
  }
  log_.published(found.address);
  return fits;
}

// Makes room for an entry of a new key. With durable sets, no chain may be longer than in any index
// with so many entries and bytes, because a replay splits other buckets than the run that wrote the
// log. -ENOMEM: no room.
int Store::make_room(Index& index, uint64_t hash) {
  const int status = log_.commits() ? index.keep_load() : 0;
  return status < 0 ? status : index.make_room(hash);
}

// 0; kInPlace; -errno.
int Store::set_inline(uint64_t hash, Bytes key, Bytes value, bool may_wait) {
  Shard& shard = shard_of(hash);
  shard.index.prefetch(hash);
  UnreferencedPieces unreferenced(*this);  // of the large pair that this set replaces
  bool full = false, replaces = false;
  for (;;) {
    bool index_full = false, no_slot = false;
    const uint64_t freed = images_freed_.load(std::memory_order_acquire);
    {
      const ShardLock lock(*this, shard);
      shard.writes.fetch_add(1, std::memory_order_relaxed);
      Found found;
      if (const int status = find_replaceable(shard, hash, key, false, &found); status < 0)
        return status;
      if (found.place && set_in_place(shard, found, value, full)) return kInPlace;
      replaces = found.place != nullptr;
      no_slot =
          found.pieces.id != 0 && (!may_wait || !unreferenced.take(found.pieces, found.damaged));
      index_full = !replaces && make_room(shard.index, hash) < 0;
      BodyRoom body{log_.lies_on_blocks(key.size, value.size) ? value.size : 0};
      uint64_t units =
          record_units(key.size, body.bytes ? sizeof(Body) : value.size) + units_of_notes(found);
      uint64_t padding = 0;
      Address address;
      if (!no_slot && !index_full &&
          log_.allocate(units, false, found.before(), &address, body.bytes ? nullptr : &padding,
                        &body) == 0) {
        if (padding)
          memset(reinterpret_cast<char*>(log_.at(address)) + units * kUnitBytes, 0,
                 padding * kUnitBytes);
        units += padding;
        if (body.bytes)
          fill_with_body(log_.at(address), units, key, value, body);
        else
          fill_record(log_.at(address), RecordType::kPair, units, key, value);
        note_replaced(log_.at(address), found);
        const int status = publish(shard, hash, address, found, key.size + value.size);
        if (status < 0) forget_record(address, units, body.bytes);
        log_.published(address);
        if (status == 0) break;
        index_full = true;
      }
      (void)unreferenced.take({});
      shard.writes.fetch_sub(1, std::memory_order_relaxed);
    }
    if (!may_wait) return -EAGAIN;
    if (no_slot) {
      unreferenced.wait();
      continue;
    }
    if (index_full) {
      if (!gain_memory(freed)) return -ENOSPC;
      continue;
    }
    if (const int status = room_for_segment(); status < 0) {
      if (status != -ENOSPC || full || !replaces) return status;
      full = true;
    }
  }
  delete_pieces(unreferenced, unreferenced.pieces().count());
  return 0;
}

// Appends the record of a delete. -EAGAIN: there is no room for it.
// pre: the lock
int Store::log_deleted(uint64_t hash, Bytes key, const Found& found, bool from_reserve,
                       uint32_t notes) {
  const uint64_t units = record_units(sizeof(DeletedKey), 0) + units_of_notes(found);
  Address address;
  if (const int status = log_.allocate(units, from_reserve, found.address, &address); status < 0)
    return status;
  Record* record = log_.at(address);
  const DeletedKey gone{hash, key.size};
  fill_head(record, notes, RecordType::kDeleted, units, {&gone, sizeof gone}, 0);
  note_replaced(record, found);
  log_.drop_live(address, units);
  log_.published(address);
  return 0;
}

// Length of the deleted value; -ENOENT; -EAGAIN: no room for the record of the delete; -EBUSY: no
// slot for its pieces.
// pre: the lock
int64_t Store::del_locked(Shard& shard, uint64_t hash, Bytes key, bool from_reserve,
                          UnreferencedPieces* unreferenced) {
  Found found;
  if (const int status = find_replaceable(shard, hash, key, true, &found); status < 0)
    return status;
  int status = found.place ? 0 : -ENOENT;
  if (status == 0 && !unreferenced->take(found.pieces, found.damaged)) return -EBUSY;
  if (status == 0 && log_.commits()) status = log_deleted(hash, key, found, from_reserve, 0);
  if (status == -EAGAIN) (void)unreferenced->take({});
  if (status != -EAGAIN) shard.writes.fetch_add(1, std::memory_order_relaxed);
  if (status < 0) return status;
  shard.index.erase(found.place);
  shard.count_bytes(0, found.pair_bytes);
  drop(found);
  return static_cast<int64_t>(found.value_bytes);
}

// In a full store, the record of the delete goes into the reserve for cleaning.
int64_t Store::del(Bytes key) {
  if (read_only_) return -EROFS;
  if (log_.failed()) return -EIO;
  const uint64_t hash = hash_of(key);
  Shard& shard = shard_of(hash);
  int64_t length = -EAGAIN;
  UnreferencedPieces unreferenced(*this);
  int room = 0;
  for (;;) {
    {
      const ShardLock lock(*this, shard);
      length = del_locked(shard, hash, key, room == -ENOSPC, &unreferenced);
    }
    if (length == -EBUSY) {
      unreferenced.wait();
      continue;
    }
    if (length != -EAGAIN) break;
    if (room == -ENOSPC) return room;
    room = room_for_segment();
    if (room < 0 && room != -ENOSPC) return room;
  }
  delete_pieces(unreferenced, unreferenced.pieces().count());
  const int status = length >= 0 ? end_change(log_.commits()) : 0;
  return status < 0 ? status : length;
}

}  // namespace lunar::kv
