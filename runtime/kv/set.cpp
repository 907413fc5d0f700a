// SPDX-License-Identifier: Apache-2.0
// Writing: set and del, see store.h.
//
// An entry is switched under the lock of its shard, after the record is complete. What it led to
// before is dead from then on; a reader may still be in it, and cleaning waits for that one. Where
// sets are durable the record says what that was, a delete appends a record too, and the call
// returns after the log's commit: for that no lock is held. Threading: as in store.h.
#include <errno.h>

#include <initializer_list>
#include <new>

#include "kv/store.h"
#include "sys/log.h"

namespace lunar::kv {
namespace {

// A value that shrank by more than half gets a record of its own, unless the store is full: the
// room would never come back.
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

// Whether what an entry leads to is the key's; if so, what it is. 1, 0, or -errno. whole: of a key
// that lies in pieces not only hash and length are compared, with the lock: for no longer than the
// caller took to bring such a key.
int Store::examine(Address address, uint64_t hash, Bytes key, bool whole, Found* out) {
  {
    Look look(log_);
    if (const int status = look.locked_again(address); status < 0) return status;
    if (!is_key(look.record(), hash, key)) return 0;
    const bool large = look->type() == RecordType::kLarge;
    out->units = look->live_units();
    out->pieces = large ? look->pieces() : Pieces{};
    out->value_bytes =
        large ? look->pieces().value_bytes : word32(look->value_bytes, std::memory_order_relaxed);
  }
  out->pair_bytes = key.size + out->value_bytes;
  const int same = whole ? is_key_of_pieces(out->pieces, key) : 1;
  return same == -ESTALE ? -EBADMSG : same;
}

// Pre: the lock. 0 (also when there is none), or -errno: one that may be the key's cannot be read.
// -EBADMSG: all such are damaged. What is found may be another's if its key lies in pieces and
// `read` is not full.
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

// Of a record that is damaged, by what of it can be read: the key, or the hash of one that lies in
// pieces. A key that the index leads here is another's. 0, or -errno: that cannot be read now.
int Store::whose_damaged(Shard& shard, uint64_t hash, Bytes key, Address address, Whose* out) {
  const auto led_here = [&](uint64_t its_hash) {
    return &shard_of(its_hash) == &shard &&
           shard.index.find_entry(its_hash, [&](Address at) { return at == address; }) != nullptr;
  };
  *out = Whose::kUnknown;
  Look look(log_);
  if (const int status = look.unproven(address); status < 0) return status == -EBADMSG ? 0 : status;
  const Record* record = look.record();
  if (!is_of_pair(record)) return 0;
  const bool shows_hash = record->type() == RecordType::kLarge && record->pieces().hold_key;
  if (is_key(record, hash, key))
    *out = Whose::kKeys;
  else if (led_here(shows_hash ? record->pieces().hash : hash_of(key_of(record))))
    *out = Whose::kAnothers;
  return 0;
}

// As find_locked, but a damaged record that is the key's is found, too: a set or delete ends the
// damage then, which gets have reported until now. A set also takes the place of one that may be
// the key's, as the index led to it by the key's bucket and 24 bits more, and what of it can be
// read names no other key; a delete would lose it unseen.
int Store::find_replaceable(Shard& shard, uint64_t hash, Bytes key, bool deletes, Found* out) {
  int error = 0;
  Address keys, unknown;  // 0: none
  out->place = shard.index.find_entry(hash, [&](Address address) {
    const int same = examine(address, hash, key, true, out);
    if (same < 0) error = graver(error, same);
    if (same == -EBADMSG) {
      Whose whose;
      if (const int status = whose_damaged(shard, hash, key, address, &whose); status < 0)
        error = status;
      if (whose == Whose::kKeys) keys = address;
      if (whose == Whose::kUnknown) unknown = address;
    }
    out->address = address;
    return same > 0;
  });
  if (!out->place && error == -EBADMSG) {
    out->address = keys.value || deletes ? keys : unknown;
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

// What a damaged record held and took. Its lengths are believed by the key's. What it took counts
// when it ends where its lengths say and another sound one begins; else nothing is given back, and
// its segment counts as fuller than it is until nothing lives in it. Too much would be worse: a
// state that says that less lives than the index leads to is refused. 0, or -errno: it cannot be
// read now.
int Store::guess_damaged(uint64_t hash, Bytes key, Found* out) {
  out->units = out->value_bytes = 0;
  out->pair_bytes = key.size;
  out->pieces = {};
  Look look(log_);
  if (const int status = look.unproven(out->address); status < 0)
    return status == -EBADMSG ? 0 : status;
  const Record* record = look.record();
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
      (last || (log_.segment_of(behind) == segment && look.locked(behind) == 0)))
    out->units = units;  // without its body, of whose length nothing is certain
  return 0;
}

// Once for each: it is gone. Pre: the key's entry leads elsewhere.
void Store::note_damage_replaced(const Found& found) {
  if (!found.damaged) return;
  damaged_replaced_.fetch_add(1, std::memory_order_relaxed);
  const uint64_t at = found.address.value * kUnitBytes;
  LUNAR_LOG_LIMITED(log_warning, 100,
                    "key/value store on %s: the record at byte %llu of its log was damaged; a set "
                    "or delete has taken "
                    "its place",
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

// Makes durable what was published. A call that took room of the log then makes some, before others
// have to wait for it; one that took none is not held up by that.
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

// How much longer a record is that says what it replaces.
uint64_t Store::units_of_notes(const Found& found) const {
  if (!log_.commits() || !found.place) return 0;
  return (found.pieces.id ? sizeof(ReplacedLarge) : sizeof(Replaced)) / kUnitBytes;
}

// The last of the record's content. Pre: its size is right.
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

// A pair whose value lies on blocks; their checksum comes when they are written.
void Store::fill_with_body(Record* record, uint64_t units, Bytes key, Bytes value,
                           const BodyRoom& room) {
  fill_head(record, RecordNotes::kBody, RecordType::kPair, units, key, value.size);
  const_cast<Body&>(record->body()) = {0, room.block, 0};
  memcpy(log_.value_of(record), value.data, value.size);
}

// A record that no entry leads to, though it is in the log: it has to mean nothing there.
void Store::forget_record(Address address, uint64_t units, uint64_t body_bytes) {
  fill_head(log_.at(address), 0, RecordType::kMark, units, {}, 0);
  log_.drop_live(address, units + body_bytes / kUnitBytes);
}

// What an entry led to lives no more. Pre: it is gone or leads elsewhere.
void Store::drop(const Found& found) {
  note_damage_replaced(found);
  if (log_.drop_live(found.address, found.units)) give_back_empty(log_.segment_of(found.address));
}

// The key's entry leads to the record at `address` from now on. Pre: the lock. -ENOMEM: no room for
// an entry, nothing changed.
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
  // A record that cleaning moved says by what it holds which one it takes the place of.
  const bool fits = !record->moved() && fits_in_place(record, value.size, full);
  if (fits) {
    value_overwrite(record, log_.value_of(record), value);
    shard.count_bytes(value.size, found.value_bytes);
  }
  log_.published(found.address);
  return fits;
}

// For an entry of a new key. A replay splits other buckets than the run that wrote the log did:
// with durable sets, no chains may be longer than they are in any index of that many entries and
// bytes. -ENOMEM: there is none.
int Store::make_room(Index& index, uint64_t hash) {
  const int status = log_.commits() ? index.keep_load() : 0;
  return status < 0 ? status : index.make_room(hash);
}

// 0; kInPlace; -errno.
int Store::set_inline(uint64_t hash, Bytes key, Bytes value, bool may_wait) {
  Shard& shard = shard_of(hash);
  shard.index.prefetch(hash);
  InHand hand(*this);  // a large pair's pieces that this takes the place of
  for (bool full = false, replaces = false;;) {
    bool index_full = false, no_hand = false;
    const uint64_t freed = images_freed_.load(std::memory_order_acquire);
    {
      const ShardLock lock(*this, shard);
      shard.writes.fetch_add(1, std::memory_order_relaxed);
      Found found;
      if (const int status = find_replaceable(shard, hash, key, false, &found); status < 0)
        return status;
      if (found.place && set_in_place(shard, found, value, full)) return kInPlace;
      replaces = found.place != nullptr;
      no_hand = found.pieces.id != 0 && (!may_wait || !hand.take(found.pieces, found.damaged));
      index_full = !replaces && make_room(shard.index, hash) < 0;
      BodyRoom body{log_.lies_on_blocks(key.size, value.size) ? value.size : 0};
      uint64_t units =
          record_units(key.size, body.bytes ? sizeof(Body) : value.size) + units_of_notes(found);
      uint64_t padding = 0;
      Address address;
      if (!no_hand && !index_full &&
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
      (void)hand.take({});
      shard.writes.fetch_sub(1, std::memory_order_relaxed);
    }
    if (!may_wait) return -EAGAIN;
    if (no_hand) {
      hand.wait();
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
  delete_pieces(hand, hand.pieces().count());
  return 0;
}

// A record that says so. Pre: the lock. -EAGAIN: there is no room for it.
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

// Pre: the lock. Length of the value that was there; -ENOENT; -EAGAIN: no room for the record of
// it; -EBUSY: no place in hand for its pieces.
int64_t Store::del_locked(Shard& shard, uint64_t hash, Bytes key, bool from_reserve, InHand* hand) {
  Found found;
  if (const int status = find_replaceable(shard, hash, key, true, &found); status < 0)
    return status;
  int status = found.place ? 0 : -ENOENT;
  if (status == 0 && !hand->take(found.pieces, found.damaged)) return -EBUSY;
  if (status == 0 && log_.commits()) status = log_deleted(hash, key, found, from_reserve, 0);
  if (status == -EAGAIN) (void)hand->take({});
  if (status != -EAGAIN) shard.writes.fetch_add(1, std::memory_order_relaxed);
  if (status < 0) return status;
  shard.index.erase(found.place);
  shard.count_bytes(0, found.pair_bytes);
  drop(found);
  return static_cast<int64_t>(found.value_bytes);
}

// Where the store is full the record that a key is gone goes into what is kept for cleaning.
int64_t Store::del(Bytes key) {
  if (read_only_) return -EROFS;
  if (log_.failed()) return -EIO;
  const uint64_t hash = hash_of(key);
  Shard& shard = shard_of(hash);
  int64_t length = -EAGAIN;
  InHand hand(*this);
  for (int room = 0;;) {
    {
      const ShardLock lock(*this, shard);
      length = del_locked(shard, hash, key, room == -ENOSPC, &hand);
    }
    if (length == -EBUSY) {
      hand.wait();
      continue;
    }
    if (length != -EAGAIN) break;
    if (room == -ENOSPC) return room;
    if (room = room_for_segment(); room < 0 && room != -ENOSPC) return room;
  }
  delete_pieces(hand, hand.pieces().count());
  const int status = length >= 0 ? end_change(log_.commits()) : 0;
  return status < 0 ? status : length;
}

}  // namespace lunar::kv
