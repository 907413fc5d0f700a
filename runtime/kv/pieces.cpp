// SPDX-License-Identifier: Apache-2.0
// Values that are too large for a record lie in pieces (record.h).
//
//   set   pieces ──► head, in the place of the old one ──► the old value's pieces are deleted
//   get   head ──► pieces, several at a time; if one is gone, the value was replaced meanwhile, so
//         again from the head
//
// *Unreferenced* pieces have no head: their set has not written it yet, or their value is being
// deleted. A saved state names the unreferenced pieces of its moment. After a crash the next open
// deletes them.
//
// Keys of pieces hold the id of their set, so a piece never changes. An entry with the tag of a
// piece is nearly always the piece's own, so a piece that must be there is found without a read of
// its record.
// Threading: as in store.h. A lock of a shard is held for one piece at a time.
#include <errno.h>

#include <algorithm>

#include "kv/store.h"

namespace lunar::kv {
namespace {

constexpr uint64_t kBlockBytes = media::kBlockBytes;

PieceKey key_of_piece(const Pieces& pieces, uint64_t number) {
  return {pieces.hash, pieces.id, number};
}
uint64_t hash_of_piece(const PieceKey& key) { return hash_of({&key, sizeof key}); }

bool is_piece(const Record* record, const PieceKey& key) {
  return record->is_piece() && record->type() == RecordType::kPair &&
         record->key_bytes == sizeof key && memcmp(record->key(), &key, sizeof key) == 0;
}

// Copies the bytes [from, from + size) of the content of the pieces.
void fill(char* to, uint64_t from, uint64_t size, const Pieces& pieces, Bytes key, Bytes value) {
  const auto part = [&](Bytes of, uint64_t begin) {
    const uint64_t first = std::max(from, begin), last = std::min(from + size, begin + of.size);
    if (first < last)
      memcpy(to + (first - from), static_cast<const char*>(of.data) + (first - begin),
             last - first);
  };
  const uint64_t padding = pieces.value_at() - (pieces.hold_key ? key.size : 0);
  static constexpr char kZeros[8] = {};
  if (pieces.hold_key) part(key, 0);
  part({kZeros, padding}, pieces.value_at() - padding);
  part(value, pieces.value_at());
}

}  // namespace

// ---- unreferenced pieces ------------------------------------------------------------------------

Store::UnreferencedPieces::~UnreferencedPieces() {
  if (place_ == kUnreferencedMost) return;
  const sys::Locked lock(store_.unreferenced_lock_);
  store_.unreferenced_[place_] = {};
}

bool Store::UnreferencedPieces::take(const Pieces& pieces, bool unsure) {
  const sys::Locked lock(store_.unreferenced_lock_);
  unsigned place = place_ == kUnreferencedMost ? 0 : place_;
  if (place_ == kUnreferencedMost)
    while (place < kUnreferencedMost && store_.unreferenced_[place].pieces.id != 0) ++place;
  if (place == kUnreferencedMost && pieces.id != 0) return false;
  pieces_ = pieces;
  if (place != kUnreferencedMost)
    store_.unreferenced_[place] = {{pieces.hash, pieces.id, pieces.count()}, unsure};
  place_ = pieces.id != 0 ? place : kUnreferencedMost;
  return true;
}

void Store::UnreferencedPieces::wait() const { sys::sleep_ns(50'000); }

bool Store::UnreferencedPieces::unsure() const {
  const sys::Locked lock(store_.unreferenced_lock_);
  return place_ != kUnreferencedMost && store_.unreferenced_[place_].unsure;
}

void Store::note_cleared() {
  const sys::Locked lock(unreferenced_lock_);
  for (UnreferencedSlot& slot : unreferenced_) slot.unsure = true;
}

void Store::cut_unreferenced() {
  const sys::Locked lock(unreferenced_lock_);
  unreferenced_at_cut_count_ = 0;
  for (const UnreferencedSlot& slot : unreferenced_)
    if (slot.pieces.id != 0) unreferenced_at_cut_[unreferenced_at_cut_count_++] = slot.pieces;
}

// The number of pieces. A damaged head may name too few, so this counts on up to the first piece
// that is missing.
uint64_t Store::count_left(const media::UnreferencedPieces& of) {
  uint64_t count = of.count;
  for (; count < log_.pieces_most(); ++count) {
    const PieceKey key{of.owner, of.id, count};
    Shard& shard = shard_of(hash_of_piece(key));
    const MutexLock lock(shard.lock);
    Found found;
    if (find_piece(shard, key, false, &found) == -ENOENT) break;
  }
  return count;
}

// The space of damaged pieces is lost. A piece that the device refuses to read may be readable
// later, and no later state would name it. So only an open that saves no state continues.
int Store::drop_unreferenced() {
  for (const media::UnreferencedPieces& left : left_unreferenced_) {
    for (uint64_t number = count_left(left); number-- > 0;) {
      const PieceKey key{left.owner, left.id, number};
      Shard& shard = shard_of(hash_of_piece(key));
      Found found;
      const int status = find_piece(shard, key, false, &found);
      if (status < 0 && status != -ENOENT && status != -EBADMSG && !read_only_) return status;
      if (status < 0) continue;
      shard.pieces.erase(found.place);
      log_.drop_live(found.address, found.units);
    }
  }
  left_unreferenced_.close();
  return 0;
}

// ---- writing ------------------------------------------------------------------------------------

uint64_t Store::units_of_piece(const Pieces& pieces, uint64_t number) const {
  return record_units(sizeof(PieceKey), pieces.bytes_of(number));
}

// Finds the entry of a piece. is_there: the caller knows that the piece exists. Otherwise, or if
// several entries have its tag, records are read, and out->units is set. 0; -ENOENT; -EBADMSG,
// -errno: a record that may be the piece cannot be read.
// pre: the lock
int Store::find_piece(Shard& shard, const PieceKey& key, bool is_there, Found* out) {
  const uint64_t hash = hash_of_piece(key);
  unsigned entries = 0;
  shard.pieces.find_entry(hash, [&](Address) { return ++entries == 2; });
  int error = 0;
  out->place = shard.pieces.find_entry(hash, [&](Address address) {
    out->address = address;
    if (is_there && entries == 1) return true;
    RecordReader reader(log_);
    const int status = reader.locked_again(address);
    if (status < 0) error = graver(error, status);
    if (status < 0 || !is_piece(reader.record(), key)) return false;
    out->units = reader->units();
    return true;
  });
  return out->place ? 0 : error < 0 ? error : -ENOENT;
}

// Writes one piece. before: the record that the pair replaces. 0 or -errno.
int Store::set_piece(const Pieces& pieces, uint64_t number, Bytes key, Bytes value,
                     Address before) {
  const PieceKey own = key_of_piece(pieces, number);
  const uint64_t hash = hash_of_piece(own), units = units_of_piece(pieces, number),
                 bytes = pieces.bytes_of(number);
  Shard& shard = shard_of(hash);
  for (;;) {
    bool index_full = false;
    const uint64_t freed = images_freed_.load(std::memory_order_acquire);
    {
      const ShardLock lock(*this, shard);
      index_full = make_room(shard.pieces, hash) < 0;
      Address address;
      if (!index_full && log_.allocate(units, false, before, &address) == 0) {
        Record* record = log_.at(address);
        fill_head(record, RecordNotes::kPiece, RecordType::kPair, units, {&own, sizeof own}, bytes);
        fill(record->value(), number * pieces.piece_bytes, bytes, pieces, key, value);
        const int status = shard.pieces.insert(hash, address);
        if (status < 0) forget_record(address, units);
        log_.published(address);
        if (status == 0) return 0;
        index_full = true;
      }
    }
    if (index_full) {
      if (!gain_memory(freed)) return -ENOSPC;
    } else if (const int status = room_for_segment(); status < 0) {
      return status;
    }
  }
}

// Deletes one piece. With durable sets and *says, appends a record of the delete; without room for
// it, *says becomes false.
void Store::delete_piece(const UnreferencedPieces& unreferenced, uint64_t number, bool* says) {
  const PieceKey own = key_of_piece(unreferenced.pieces(), number);
  const uint64_t hash = hash_of_piece(own);
  Shard& shard = shard_of(hash);
  int room = 0;
  for (;;) {
    {
      const ShardLock lock(*this, shard);
      Found found;
      found.units = units_of_piece(unreferenced.pieces(), number);
      if (find_piece(shard, own, !unreferenced.unsure(), &found) < 0) return;
      const bool said =
          *says && log_deleted(hash, {&own, sizeof own}, found, room < 0, RecordNotes::kPiece) == 0;
      *says = *says && (said || room == 0);
      if (said || !*says) {
        shard.pieces.erase(found.place);
        if (log_.drop_live(found.address, found.units))
          give_back_empty(log_.segment_of(found.address));
        return;
      }
    }
    room = room_for_segment();
  }
}

// Deletes the first `count` pieces, or more if their number is unsure. Number 0 is deleted last, so
// its record tells a replay that all are gone. Without that record, the replay deletes the pieces
// at its end.
void Store::delete_pieces(const UnreferencedPieces& unreferenced, uint64_t count) {
  if (unreferenced.unsure())
    count = count_left({unreferenced.pieces().hash, unreferenced.pieces().id, count});
  bool says = log_.commits();
  while (count > 0) {
    delete_piece(unreferenced, --count, &says);
    give_back_dead();
  }
}

// Checks that index and log have room for a large pair, before any piece is written. *before: the
// key's present record, if it has one. 0 or -errno.
int Store::prepare_large(Shard& shard, uint64_t hash, Bytes key, uint64_t bytes, Address* before) {
  const uint64_t room = (log_.segments_most() - Log::kReserve) * log_.segment_bytes();
  if (bytes > room || log_.bytes_live() > room - bytes) return refuse_as_full();
  for (;;) {
    const uint64_t freed = images_freed_.load(std::memory_order_acquire);
    {
      const ShardLock lock(*this, shard);
      Found found;
      if (const int status = find_replaceable(shard, hash, key, false, &found); status < 0)
        return status;
      *before = found.before();
      if (found.place || make_room(shard.index, hash) == 0) return 0;
    }
    if (!gain_memory(freed)) return -ENOSPC;
  }
}

// Writes the head, after all pieces. From then on `unreferenced` covers the pieces of the old
// value, if it has any. 0 or -errno.
int Store::publish_head(Shard& shard, const Pieces& pieces, Bytes key,
                        UnreferencedPieces* unreferenced) {
  const Bytes own = pieces.hold_key ? Bytes{} : key;
  for (;;) {
    const uint64_t freed = images_freed_.load(std::memory_order_acquire);
    int status = 0;
    {
      const ShardLock lock(*this, shard);
      if (unreferenced->unsure()) return 0;  // the store was cleared, as if after this set
      Found found;
      status = find_replaceable(shard, pieces.hash, key, false, &found);
      if (status < 0) return status;
      const uint64_t units = record_units(own.size, sizeof pieces) + units_of_notes(found);
      Address address;
      if (log_.allocate(units, false, found.before(), &address) == 0) {
        Record* record = log_.at(address);
        fill_record(record, RecordType::kLarge, units, own, {&pieces, sizeof pieces});
        note_replaced(record, found);
        status = publish(shard, pieces.hash, address, found, key.size + pieces.value_bytes);
        if (status == 0) {
          (void)unreferenced->take(found.pieces, found.damaged);
          shard.writes.fetch_add(1, std::memory_order_relaxed);
        } else {
          forget_record(address, units);
        }
        log_.published(address);
        if (status == 0) return 0;
      }
    }
    status = status == 0 ? room_for_segment() : gain_memory(freed) ? 0 : -ENOSPC;
    if (status < 0) return status;
  }
}

// After a failure the index keeps the room for the pieces, 12 bytes each, for later sets.
int Store::set_large(uint64_t hash, Bytes key, Bytes value) {
  Shard& shard = shard_of(hash);
  Pieces pieces{hash, key.size, value.size, log_.new_life(), 0, 0};
  constexpr uint64_t kNotes = sizeof(ReplacedLarge) / kUnitBytes;
  pieces.hold_key =
      record_units(key.size, sizeof pieces) + kNotes > log_.inline_units_max() ? 1 : 0;
  // All pieces have about one length, so that the last is not much shorter.
  const uint64_t most = log_.piece_bytes_max(), count = (pieces.bytes() + most - 1) / most;
  pieces.piece_bytes =
      static_cast<uint32_t>(round_up((pieces.bytes() + count - 1) / count, kUnitBytes));
  Address before;
  int status = prepare_large(shard, hash, key, pieces.bytes(), &before);
  if (status < 0) return status;
  UnreferencedPieces unreferenced(*this);
  while (!unreferenced.take(pieces)) unreferenced.wait();
  uint64_t done = 0;
  for (; status == 0 && done < pieces.count(); ++done) {
    status = set_piece(pieces, done, key, value, before);
    if (status < 0) break;
    save_early();
    clean_early();
  }
  if (status == 0) status = publish_head(shard, pieces, key, &unreferenced);
  const bool published = unreferenced.pieces().id != pieces.id;
  delete_pieces(unreferenced, published ? unreferenced.pieces().count() : done);
  return status;
}

// ---- reading ------------------------------------------------------------------------------------

// Copies a piece that is in DRAM. 0; -EINPROGRESS: it may be one of `cold`; -ESTALE; -EBADMSG.
int Store::copy_resident(const Pieces& pieces, PieceRead* read, Candidates* cold) {
  const PieceKey own = key_of_piece(pieces, read->number);
  const uint64_t hash = hash_of_piece(own);
  int status = -ESTALE;
  const Reading guard(epochs_);
  shard_of(hash).pieces.find(hash, [&](Address address) {
    if (cold->count == Candidates::kMax) {
      cold->more = true;
      return false;
    }
    Record* record = resident(address, &cold->list[cold->count]);
    if (!record) {
      ++cold->count;
      return false;
    }
    if (!is_piece(record, own)) return false;
    status = record->value_bytes == pieces.bytes_of(read->number) ? 0 : -EBADMSG;
    if (status == 0) memcpy(read->to, record->value() + read->skip, read->bytes);
    if (status == 0 && log_.on_device()) log_.note_read(record);
    return true;
  });
  return status == -ESTALE && cold->count != 0 ? -EINPROGRESS : status;
}

// Copies the piece that was read into its buffer. False: the bytes are not this piece.
bool Store::finish_read(const Pieces& pieces, PieceRead* read) {
  const uint64_t units = units_of_piece(pieces, read->number);
  const Record* record = log_.record_in_span(read->address, units, read->life, read->buffer);
  if (!record || !is_piece(record, key_of_piece(pieces, read->number))) return false;
  if (record->value_bytes != pieces.bytes_of(read->number)) return false;
  memcpy(read->to, const_cast<Record*>(record)->value() + read->skip, read->bytes);
  log_.cache().admit(record, read->address, read->life);
  read->done = true;
  return true;
}

// Reads one piece. If it moves meanwhile, the index leads elsewhere, and the read is repeated. If
// the index leads to the same record several times and the bytes are wrong, the record is damaged.
int Store::read_piece(const Pieces& pieces, PieceRead* read) {
  constexpr unsigned kTries = 3;
  const uint64_t units = units_of_piece(pieces, read->number);
  Candidate last;
  unsigned tries = 0;
  for (;;) {
    Candidates cold;
    int status = copy_resident(pieces, read, &cold);
    if (status != -EINPROGRESS) return status;
    // More than eight entries with the same known bits: the chance is 1% in a full log of 8 TiB.
    // Ids begin at random, so it cannot be brought about on purpose.
    status = cold.more ? -EBADMSG : -ESTALE;
    for (unsigned i = 0; i < cold.count; ++i) {
      read->address = cold.list[i].address;
      read->life = cold.list[i].life;
      const uint64_t bytes = log_.span_bytes(read->address, units);
      read->buffer = log_.take_buffer();
      int error = bytes == 0 ? -EBADMSG : 0;
      if (error == 0)
        error = log_.transfer(Op::kRead, round_down(read->address.value * kUnitBytes, kBlockBytes),
                              read->buffer, bytes);
      if (error == 0 && !finish_read(pieces, read)) error = -EBADMSG;
      log_.give_buffer(read->buffer);
      read->buffer = nullptr;
      if (error == 0) return 0;
      status = error;
    }
    const Candidate& now = cold.list[0];
    tries = now.address == last.address && now.life == last.life ? tries + 1 : 1;
    last = now;
    if (tries == kTries) return status;
  }
}

// Takes a ring for the caller alone, until its bit is cleared. nullptr: all are in use, or the
// device gives none.
Context* Store::take_ring(unsigned* number) {
  for (unsigned i = 0; i < kRings; ++i) {
    if (rings_busy_.fetch_or(1u << i, std::memory_order_acquire) >> i & 1) continue;
    *number = i;
    if (Context* context = rings_[i].load(std::memory_order_relaxed)) return context;
    ContextOptions options;
    options.depth = kReadsAtDepth;
    options.spin = false;
    options.shared = true;
    options.delegate = true;
    Context* context = nullptr;
    if (device_->attach(options, &context) == 0) {
      rings_[i].store(context, std::memory_order_relaxed);
      return context;
    }
    rings_busy_.fetch_and(~(1u << i), std::memory_order_release);
    return nullptr;
  }
  return nullptr;
}

// Reads as many pieces at once as there are buffers. Pieces that could not be read this way are not
// `done` afterwards.
void Store::read_at_depth(const Pieces& pieces, PieceRead* reads, unsigned count) {
  unsigned ring = 0, begun = 0;
  Context* context = count > 1 ? take_ring(&ring) : nullptr;
  if (!context) return;
  Command commands[kReadsAtDepth];
  for (unsigned i = 0; i < count; ++i) {
    PieceRead& read = reads[i];
    const uint64_t bytes = log_.span_bytes(read.address, units_of_piece(pieces, read.number));
    if (read.address.value == 0 || bytes == 0) continue;
    read.buffer = begun == 0 ? log_.take_buffer() : log_.try_buffer();
    if (!read.buffer) break;
    read.piece = {read.buffer, bytes};
    log_.cold_command(read.address, &read.piece, &commands[begun]);
    commands[begun++].tag = i;
  }
  int left = begun ? context->submit(commands, begun) : 0;
  while (left > 0) {
    Response responses[kReadsAtDepth];
    const int got = context->wait(responses, kReadsAtDepth, -1);
    if (got < 0 && got != -EINTR) {  // the context cannot be used any more
      // detach() waits for reads in progress.
      device_->detach(rings_[ring].exchange(nullptr, std::memory_order_relaxed));
      break;
    }
    for (int i = 0; i < got; ++i) {
      PieceRead& read = reads[responses[i].tag];
      if (responses[i].result == static_cast<int64_t>(read.piece.iov_len))
        (void)finish_read(pieces, &read);
    }
    left -= std::max(got, 0);
  }
  for (unsigned i = 0; i < count; ++i) log_.give_buffer(reads[i].buffer);
  rings_busy_.fetch_and(~(1u << ring), std::memory_order_release);
}

int Store::read_pieces(const Pieces& pieces, uint64_t offset, void* to, uint64_t bytes) {
  if (bytes > pieces.bytes() || offset > pieces.bytes() - bytes) return -EBADMSG;
  auto* out = static_cast<char*>(to);
  while (bytes != 0) {
    PieceRead reads[kReadsAtDepth];
    unsigned count = 0;
    while (bytes != 0 && count < kReadsAtDepth) {
      PieceRead& read = reads[count] = {};
      read.number = offset / pieces.piece_bytes;
      read.skip = offset % pieces.piece_bytes;
      read.bytes = std::min(bytes, pieces.bytes_of(read.number) - read.skip);
      read.to = out;
      out += read.bytes;
      offset += read.bytes;
      bytes -= read.bytes;
      Candidates cold;
      const int status = copy_resident(pieces, &read, &cold);
      if (status == 0) continue;
      if (status != -EINPROGRESS) return status;
      if (cold.count == 1 && !cold.more) {
        read.address = cold.list[0].address;
        read.life = cold.list[0].life;
      }
      ++count;
    }
    read_at_depth(pieces, reads, count);
    for (unsigned i = 0; i < count; ++i) {
      reads[i].buffer = nullptr;
      if (reads[i].done) continue;
      if (const int status = read_piece(pieces, &reads[i]); status < 0) return status;
    }
  }
  return 0;
}

}  // namespace lunar::kv
