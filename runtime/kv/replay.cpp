// SPDX-License-Identifier: Apache-2.0
// Opening a store with durable sets: applies the log behind the saved state. store_format.h has the
// format, and how the end of the log differs from damage.
//
// Every record names the record that it replaces, and during a replay the index leads where it led
// when the record was made. So replay reads only the log, once and in order. A record whose
// predecessor is missing is damage.
// Threading: one thread, at open.
#include <errno.h>

#include <algorithm>

#include "kv/saved_state.h"
#include "kv/store.h"

namespace lunar::kv {
namespace {

constexpr uint64_t kBlockBytes = media::kBlockBytes;
// The most segments that no header names and that an open looks at. It bounds the time of an open.
constexpr uint64_t kUnlinkedMost = 256;

unsigned long long number_of(uint64_t value) { return value; }

}  // namespace

Store::Before Store::before_of(Record* record) {
  const Replaced& old = *record->replaced();
  Before out{nullptr, Address{old.address}, old.units, old.value_bytes, 0, 0};
  if (record->size_type & RecordNotes::kReplacesLarge) {
    const auto& large = *reinterpret_cast<const ReplacedLarge*>(
        reinterpret_cast<const char*>(&old) - offsetof(ReplacedLarge, record));
    out.value_bytes = large.value_bytes;
    out.id = large.id;
    out.count = large.count;
  }
  return out;
}

// Finds the entry of the record that cleaning moved to `record`. Its tag and its segment nearly
// always identify it.
std::atomic<uint64_t>* Store::find_moved(Index& index, uint64_t hash, const Record* record,
                                         Address* from) {
  unsigned found = 0;
  const auto may_be = [&](Address address) {
    return record->may_be_from(log_.segment_of(address));
  };
  index.find_entry(hash, [&](Address address) {
    if (may_be(address)) {
      *from = address;
      ++found;
    }
    return false;
  });
  return index.find_entry(hash, [&](Address address) {
    if (found == 1) return address == *from;
    if (!may_be(address)) return false;
    *from = address;
    RecordReader reader(log_);
    // A record with a body differs behind the key, in the place of the body.
    const uint64_t same =
        record->has_body() ? record->key_bytes : record->units() * kUnitBytes - sizeof(Record);
    return reader.locked(address) == 0 &&
           reader->units() == record->units() + record->stripped_units() &&
           reader->type() == record->type() && reader->has_body() == record->has_body() &&
           reader->key_bytes == record->key_bytes && reader->value_bytes == record->value_bytes &&
           memcmp(reader->key(), record->key(), same) == 0;
  });
}

// Finds the pair of that hash that salvage took from a damaged state (rebuild.h). The log is more
// reliable.
void Store::find_rebuilt(Index& index, uint64_t hash, Before* out) {
  out->place = index.find_entry(hash, [&](Address address) {
    RecordReader reader(log_);
    if (reader.locked(address) < 0 || hash_of_record(reader.record()) != hash) return false;
    out->address = address;
    out->units = reader->live_units();
    out->value_bytes = reader->value_bytes;
    if (reader->type() != RecordType::kLarge) return true;
    out->value_bytes = reader->pieces().value_bytes;
    out->id = reader->pieces().id;
    out->count = reader->pieces().count();
    return true;
  });
}

// Keeps the list of unreferenced pieces up to date. Pieces are unreferenced from their first record
// to that of their head, and from the replacement of the head to the delete of number 0. The list
// has at most as many as a store has slots, plus those that had no room for the record of their
// delete.
int Store::note_unreferenced(const Record* record, uint64_t hash, const Before& before) {
  if (before.id != 0 && before.count > log_.pieces_most()) return -EBADMSG;
  if (before.id != 0 && !left_unreferenced_.push({hash, before.id, before.count})) return -ENOMEM;
  if (record->type() == RecordType::kLarge) end_unreferenced(hash, record->pieces().id);
  if (!record->is_piece()) return 0;
  if (record->type() == RecordType::kDeleted) {
    const auto ends = [&](const media::UnreferencedPieces& one) {
      const PieceKey first{one.owner, one.id, 0};
      return hash_of({&first, sizeof first}) == hash;
    };
    const media::UnreferencedPieces* one =
        std::find_if(left_unreferenced_.begin(), left_unreferenced_.end(), ends);
    if (one != left_unreferenced_.end()) end_unreferenced(one->owner, one->id);
    return 0;
  }
  PieceKey key;
  memcpy(&key, record->key(), sizeof key);
  for (media::UnreferencedPieces& one : left_unreferenced_) {
    if (one.owner != key.owner || one.id != key.id) continue;
    one.count = std::max(one.count, key.number + 1);
    return 0;
  }
  return left_unreferenced_.push({key.owner, key.id, key.number + 1}) ? 0 : -ENOMEM;
}

void Store::end_unreferenced(uint64_t owner, uint64_t id) {
  for (media::UnreferencedPieces& one : left_unreferenced_) {
    if (one.owner != owner || one.id != id) continue;
    one = *(left_unreferenced_.end() - 1);
    left_unreferenced_.pop();
    return;
  }
}

// Applies one record. 0; -EBADMSG: it does not fit the records before it, and nothing was changed;
// -ENOMEM: the index has no room.
int Store::apply(Record* record, Address address) {
  if (record->type() == RecordType::kMark) return 0;
  const bool deleted = record->type() == RecordType::kDeleted,
             large = record->type() == RecordType::kLarge;
  const auto& gone = *reinterpret_cast<const DeletedKey*>(record + 1);
  const uint64_t hash = deleted ? gone.hash : hash_of_record(record);
  const uint64_t key_bytes = deleted ? gone.key_bytes
                             : large ? record->pieces().key_bytes
                                     : record->key_bytes;
  const uint64_t value_bytes = large ? record->pieces().value_bytes : record->value_bytes;
  Shard& shard = shard_of(hash);
  Index& index = shard.index_of(record);
  const bool replaces = Record::replaced_units(record->size_type) != 0;
  Before before;
  if (record->moved()) {
    before.place = find_moved(index, hash, record, &before.address);
    before.units = record->live_units() + record->stripped_units();
    before.value_bytes = value_bytes;
  } else if (replaces) {
    before = before_of(record);
    before.place = index.find_entry(hash, [&](Address at) { return at == before.address; });
  }
  if (rebuilt_.any && !before.place) {  // after a rebuild, the entry may differ or be missing
    before = {};
    find_rebuilt(index, hash, &before);
    rebuilt_.settled += !record->is_piece() && (record->moved() || replaces || deleted) ? 1 : 0;
  } else if ((record->moved() || replaces || deleted) && !before.place) {
    return -EBADMSG;
  }
  if (!record->moved())
    if (const int status = note_unreferenced(record, hash, before); status < 0) return status;
  if (deleted) {
    if (before.place) index.erase(before.place);
  } else if (before.place) {
    Index::replace(before.place, address);
  } else if (const int status = index.insert(hash, address); status < 0) {
    return status;
  }
  if (!deleted) log_.add_live(address, record->live_units());
  if (before.place) log_.drop_live(before.address, before.units);
  if (!record->is_piece())
    shard.count_bytes(deleted ? 0 : key_bytes + value_bytes,
                      before.place ? key_bytes + before.value_bytes : 0);
  return 0;
}

// Replays the consecutive batches of a segment, whose bytes are in `memory`.
int Store::replay_segment(uint64_t log, char* memory, LogEnd* end, uint64_t* life) {
  const uint64_t begin = end->segment * log_.segment_bytes();
  while (const media::BatchHeader* batch = log_.batch_at(log, end->segment, memory, end->at)) {
    if (batch->number != end->number || (*life != 0 && batch->life != *life)) break;
    *life = batch->life;
    const uint64_t to = end->at + batch->bytes;
    if (!log_.records_are_sound(end->segment, memory, end->at, to, *life)) break;
    log_.replayed(end->segment, *life, static_cast<uint32_t>(to));
    for (uint64_t at = end->at; at < to;) {
      auto* record = reinterpret_cast<Record*>(memory + at);
      if (const int status = apply(record, Address{(begin + at) / kUnitBytes}); status < 0)
        return status;
      at += record->span();
    }
    ++end->number;
    end->next[0] = batch->next[0];
    end->next[1] = batch->next[1];
    end->at = Log::batch_end(to);
  }
  return 0;
}

// Visits the batches from `number` on in a segment, of which `memory` holds the bytes up to `to`.
// visit(batch, at) as in visit_later(). False: visit() ended it.
template <class Visit>
bool Store::visit_batches(uint64_t log, uint64_t number, uint64_t segment, const char* memory,
                          uint64_t from, uint64_t to, Visit visit) {
  for (uint64_t block = from; block < to; block = round_down(block, kBlockBytes) + kBlockBytes) {
    const uint64_t at = block == 0 ? log_.first_at(segment) : block;
    const media::BatchHeader* batch = log_.batch_at(log, segment, memory, at);
    if (batch && batch->number >= number && !visit(batch, at)) return false;
  }
  return true;
}

// Visits batches from number end.number on: looks where the first would be, in the rest of that
// segment, and in the segments after it. visit(batch, segment, memory, at) returns false to end. 0
// or -errno of the device; salvage continues behind unreadable segments.
//
// A header names two segments. If all headers that name the next segment are damaged, the log may
// still continue in one of the free segments from there on, which it takes in ascending order. So
// the first block of each is examined; an open that is not for salvage examines kUnlinkedMost. If
// damage is certain, salvage reads these segments whole.
template <class Visit>
int Store::visit_later(uint64_t log, const LogEnd& end, Visit visit) {
  int unread = 0;
  char* memory;
  uint64_t segment = end.segment + 1, next[2] = {end.next[0], end.next[1]}, number = end.number,
           last = 0;
  for (uint64_t visited = 0;
       segment != 0 && segment <= log_.segments() && visited < log_.segments(); ++visited) {
    last = segment - 1;
    const int status = log_.read_to_replay(last, log_.segment_bytes(), &memory);
    if (status < 0) unread = status;
    if (status < 0 && !salvage_) return status;
    const auto linked = [&](const media::BatchHeader* batch, uint64_t at) {
      next[0] = batch->next[0];
      next[1] = batch->next[1];
      number = std::max(number, batch->number + 1);
      return visit(batch, last, memory, at);
    };
    if (!visit_batches(log, end.number, last, memory, visited == 0 ? end.at : 0,
                       log_.segment_bytes(), linked))
      return 0;
    segment = next[0];
    next[0] = next[1];
    next[1] = 0;
  }
  const uint64_t most = salvage_ ? log_.segments() : kUnlinkedMost;
  const uint64_t bytes = lost_log_ != 0 ? log_.segment_bytes() : kBlockBytes;
  for (uint64_t i = 1, seen = 0; i < log_.segments() && seen < most; ++i) {
    const uint64_t unlinked = (last + i) % log_.segments();
    if (log_.state(unlinked) != SegmentState::kFree) continue;
    ++seen;
    // A segment that cannot be read counts as zeros, because nothing shows that it is of the log.
    (void)log_.read_to_replay(unlinked, bytes, &memory);
    const auto found = [&](const media::BatchHeader* batch, uint64_t at) {
      return visit(batch, unlinked, memory, at);
    };
    if (!visit_batches(log, number, unlinked, memory, 0, bytes, found)) return 0;
  }
  return unread;
}

// -EBADMSG if a later batch says that the batch missing at the end of the log was durable.
int Store::find_later(uint64_t log, const LogEnd& end, ErrorText* why) {
  uint64_t later = 0;
  const int status =
      visit_later(log, end, [&](const media::BatchHeader* batch, uint64_t, const char*, uint64_t) {
        if (batch->durable >= end.number) later = batch->number;
        return later == 0;
      });
  if (status < 0 && salvage_) return -EBADMSG;  // the log may continue there
  if (status < 0)
    return why->set(status,
                    "key/value store on %s: its log cannot be read to its end: %s; "
                    "`lunar kv dump --salvage` gives what is sound",
                    device_->name(), errno_text(status));
  if (later == 0) return 0;
  return why->set(-EBADMSG,
                  "key/value store on %s: its log is damaged: batch %llu, of byte %llu on, "
                  "is not what was written, and batch %llu came after it; "
                  "`lunar kv dump --salvage` gives what is sound",
                  device_->name(), number_of(end.number),
                  number_of(media::kHeadBytes + end.segment * log_.segment_bytes() + end.at),
                  number_of(later));
}

int Store::visit_lost(void* context, OnLost on_lost) {
  if (lost_log_ == 0) return 0;
  on_lost(context, nullptr, lost_.segment, lost_.at);
  const auto visit = [&](const media::BatchHeader* batch, uint64_t segment, const char* memory,
                         uint64_t from) {
    const uint64_t to = from + batch->bytes;
    if (!log_.records_are_sound(segment, memory, from, to, batch->life)) {
      if (batch->number != lost_.number) on_lost(context, nullptr, segment, from);
      return true;
    }
    for (uint64_t at = from; at < to;) {
      const auto* record = reinterpret_cast<const Record*>(memory + at);
      // Records that cleaning moved still exist at their old place. Pieces belong to their head.
      const bool of_pair = record->type() != RecordType::kMark && !record->is_piece();
      if (of_pair && !record->moved()) on_lost(context, record, segment, at);
      at += record->span();
    }
    return true;
  };
  (void)visit_later(lost_log_, lost_, visit);  // on_lost has reported the unreadable part
  return 0;
}

int Store::replay(const media::Root& root, ErrorText* why) {
  LogEnd end{root.log_batch,
             root.log_segments[0] - uint64_t{1},
             root.log_at,
             {root.log_segments[1], root.log_segments[2]}};
  LogEnd last = end;
  int status = 0, unread = 0;  // unread: the error of the last segments
  while (status == 0) {
    const bool possible =
        end.segment < log_.segments() && end.at < log_.segment_bytes() &&
        (log_.state(end.segment) == SegmentState::kFree ||
         (end.number == root.log_batch && log_.state(end.segment) == SegmentState::kSealed));
    if (!possible) {
      status = -EBADMSG;
      break;
    }
    uint64_t life = log_.state(end.segment) == SegmentState::kSealed ? log_.life(end.segment) : 0;
    const uint64_t number = end.number;
    char* memory;
    const int read = log_.read_to_replay(end.segment, log_.segment_bytes(), &memory);
    status = read < 0 && !salvage_ ? read : replay_segment(root.log, memory, &end, &life);
    if (number != end.number || read < 0) unread = read;
    if (number == end.number && status == 0) {
      // The segment has no durable batch: it is the log's first, or was only announced by the last.
      if (number != root.log_batch || end.next[0] == 0 || end.at == log_.first_at(end.segment))
        break;
    } else {
      last = end;
    }
    end = {end.number,
           end.next[0] - uint64_t{1},
           log_.first_at(end.next[0] - uint64_t{1}),
           {end.next[1], 0}};
  }
  last.number = end.number;
  const bool was_replayed = status == 0;
  if (was_replayed) status = find_later(root.log, last, why);
  if (status == 0 && unread < 0) status = -EBADMSG;  // the log may continue there
  if (status == -EBADMSG && salvage_) {
    lost_log_ = root.log;
    lost_ = last;
    return 0;
  }
  if (was_replayed) return status;
  if (status == -ENOMEM)
    return why->set(status, "key/value store on %s: %s of DRAM do not hold its index; give it more",
                    device_->name(), format_size(budget_.limit()).text);
  return why->set(status,
                  "key/value store on %s: its log cannot be replayed from batch %llu on, "
                  "at byte %llu (%s); `lunar kv dump --salvage` gives what is sound",
                  device_->name(), number_of(end.number),
                  number_of(media::kHeadBytes + end.segment * log_.segment_bytes() + end.at),
                  errno_text(status));
}

}  // namespace lunar::kv
