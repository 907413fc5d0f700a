// SPDX-License-Identifier: Apache-2.0
// Values that are too large for a record: they lie in pieces (record.h).
//
//   set   pieces ──► head, in the place of the old one ──► the old value's pieces are deleted
//   get   head ──► pieces, several at a time; if one is gone, the value was replaced meanwhile, so
//         again from the head
//
// Pieces that no head leads to are in hand: of a set that has not come to its head yet, or of a
// value that is being deleted. A saved state names those of its moment. What a crash leaves of them
// is deleted by the next open.
//
// The id of a set is in no other's key, so a piece never changes, and an entry that has its tag is
// nearly always its own: while it is known to be there no record is read to find it.
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

// The bytes [from, from + size) of what the pieces hold.
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

// ---- in hand ------------------------------------------------------------------------------------

Store::InHand::~InHand() {
  if (place_ == kHandsMost) return;
  const sys::Locked lock(store_.hands_lock_);
  store_.hands_[place_] = {};
}

bool Store::InHand::take(const Pieces& pieces, bool unsure) {
  const sys::Locked lock(store_.hands_lock_);
  unsigned place = place_ == kHandsMost ? 0 : place_;
  if (place_ == kHandsMost)
    while (place < kHandsMost && store_.hands_[place].in.id != 0) ++place;
  if (place == kHandsMost && pieces.id != 0) return false;
  pieces_ = pieces;
  if (place != kHandsMost)
    store_.hands_[place] = {{pieces.hash, pieces.id, pieces.count()}, unsure};
  place_ = pieces.id != 0 ? place : kHandsMost;
  return true;
}

void Store::InHand::wait() const { sys::sleep_ns(50'000); }

bool Store::InHand::unsure() const {
  const sys::Locked lock(store_.hands_lock_);
  return place_ != kHandsMost && store_.hands_[place_].unsure;
}

void Store::note_cleared() {
  const sys::Locked lock(hands_lock_);
  for (Hand& hand : hands_) hand.unsure = true;
}

void Store::cut_in_hand() {
  const sys::Locked lock(hands_lock_);
  hands_cut_ = 0;
  for (const Hand& hand : hands_)
    if (hand.in.id != 0) hands_at_cut_[hands_cut_++] = hand.in;
}

// A damaged head may say less than there are: then the others are there up to the first that is
// not.
uint64_t Store::count_left(const media::InHand& of) {
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

// Of those that are damaged the space is lost. What the device refuses to read may be there later,
// and no later state would name it: so only an open that saves none goes on.
int Store::drop_in_hand() {
  for (const media::InHand& left : left_in_hand_) {
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
  left_in_hand_.close();
  return 0;
}

// ---- writing ------------------------------------------------------------------------------------

uint64_t Store::units_of_piece(const Pieces& pieces, uint64_t number) const {
  return record_units(sizeof(PieceKey), pieces.bytes_of(number));
}

// is_there: the caller knows that. Otherwise, and where several entries have its tag, records are
// read; then its units are found, too. 0; -ENOENT; -EBADMSG, -errno: one that may be it cannot be
// read. Pre: the lock.
int Store::find_piece(Shard& shard, const PieceKey& key, bool is_there, Found* out) {
  const uint64_t hash = hash_of_piece(key);
  unsigned entries = 0;
  shard.pieces.find_entry(hash, [&](Address) { return ++entries == 2; });
  int error = 0;
  out->place = shard.pieces.find_entry(hash, [&](Address address) {
    out->address = address;
    if (is_there && entries == 1) return true;
    Look look(log_);
    const int status = look.locked_again(address);
    if (status < 0) error = graver(error, status);
    if (status < 0 || !is_piece(look.record(), key)) return false;
    out->units = look->units();
    return true;
  });
  return out->place ? 0 : error < 0 ? error : -ENOENT;
}

// 0 or -errno. before: the head that the value takes the place of.
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

// With durable sets a record says so. When there is no room for one, *says is false from then on.
void Store::delete_piece(const InHand& hand, uint64_t number, bool* says) {
  const PieceKey own = key_of_piece(hand.pieces(), number);
  const uint64_t hash = hash_of_piece(own);
  Shard& shard = shard_of(hash);
  for (int room = 0;;) {
    {
      const ShardLock lock(*this, shard);
      Found found;
      found.units = units_of_piece(hand.pieces(), number);
      if (find_piece(shard, own, !hand.unsure(), &found) < 0) return;
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

// The first `count` of what is in hand, or more if it is unsure. Number 0 is the last that goes: by
// its record a replay knows that all are gone. Where there is none, a replay deletes them at its
// end.
void Store::delete_pieces(const InHand& hand, uint64_t count) {
  if (hand.unsure()) count = count_left({hand.pieces().hash, hand.pieces().id, count});
  for (bool says = log_.commits(); count > 0;) {
    delete_piece(hand, --count, &says);
    give_back_dead();
  }
}

// Whether there is room for it at all, in the index and in the log, so that what certainly has none
// is not written. *before: the key's present record, if it has one. 0 or -errno.
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

// The head, for pieces that are there; then the old value's are in hand instead, if there are any.
// 0 or -errno.
int Store::publish_head(Shard& shard, const Pieces& pieces, Bytes key, InHand* hand) {
  const Bytes own = pieces.hold_key ? Bytes{} : key;
  for (;;) {
    const uint64_t freed = images_freed_.load(std::memory_order_acquire);
    int status = 0;
    {
      const ShardLock lock(*this, shard);
      if (hand->unsure()) return 0;  // cleared: as if that had come after it
      Found found;
      if (status = find_replaceable(shard, pieces.hash, key, false, &found); status < 0)
        return status;
      const uint64_t units = record_units(own.size, sizeof pieces) + units_of_notes(found);
      Address address;
      if (log_.allocate(units, false, found.before(), &address) == 0) {
        Record* record = log_.at(address);
        fill_record(record, RecordType::kLarge, units, own, {&pieces, sizeof pieces});
        note_replaced(record, found);
        status = publish(shard, pieces.hash, address, found, key.size + pieces.value_bytes);
        if (status == 0) {
          (void)hand->take(found.pieces, found.damaged);
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

// One that fails leaves the index's room for its pieces, 12 bytes each, to later sets.
int Store::set_large(uint64_t hash, Bytes key, Bytes value) {
  Shard& shard = shard_of(hash);
  Pieces pieces{hash, key.size, value.size, log_.new_life(), 0, 0};
  constexpr uint64_t kNotes = sizeof(ReplacedLarge) / kUnitBytes;
  pieces.hold_key =
      record_units(key.size, sizeof pieces) + kNotes > log_.inline_units_max() ? 1 : 0;
  // All as long as the last, so that none is much shorter than it could be.
  const uint64_t most = log_.piece_bytes_max(), count = (pieces.bytes() + most - 1) / most;
  pieces.piece_bytes =
      static_cast<uint32_t>(round_up((pieces.bytes() + count - 1) / count, kUnitBytes));
  Address before;
  int status = prepare_large(shard, hash, key, pieces.bytes(), &before);
  if (status < 0) return status;
  InHand hand(*this);
  while (!hand.take(pieces)) hand.wait();
  uint64_t done = 0;
  for (; status == 0 && done < pieces.count(); ++done) {
    status = set_piece(pieces, done, key, value, before);
    if (status < 0) break;
    save_early();
    clean_early();
  }
  if (status == 0) status = publish_head(shard, pieces, key, &hand);
  const bool published = hand.pieces().id != pieces.id;
  delete_pieces(hand, published ? hand.pieces().count() : done);
  return status;
}

// ---- reading ------------------------------------------------------------------------------------

// 0; -EINPROGRESS: it may be one of `cold`; -ESTALE; -EBADMSG.
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

// What was read into its buffer. False: it is not this piece.
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

// One that may move while it is read: then the index leads elsewhere. What it led to before and
// after, and is not what was written, is damaged.
int Store::read_piece(const Pieces& pieces, PieceRead* read) {
  constexpr unsigned kTries = 3;
  const uint64_t units = units_of_piece(pieces, read->number);
  Candidate last;
  for (unsigned tries = 0;;) {
    Candidates cold;
    int status = copy_resident(pieces, read, &cold);
    if (status != -EINPROGRESS) return status;
    // Nine with the same known bits: in a full log of 8 TiB with a chance of 1%, and as ids begin
    // at random, not on purpose.
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

// A ring of its own for the caller, until its bit is cleared; nullptr: all are in use, or there can
// be none.
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

// As many as there are buffers for. What could not be read this way is not done afterwards.
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
  const int taken = begun ? context->submit(commands, begun) : 0;
  for (int left = taken > 0 ? taken : 0; left > 0;) {
    Response responses[kReadsAtDepth];
    const int got = context->wait(responses, kReadsAtDepth, -1);
    if (got < 0 && got != -EINTR) {  // it is of no use any more
      // waits for what is being read
      device_->detach(rings_[ring].exchange(nullptr, std::memory_order_relaxed));
      break;
    }
    for (int i = 0; i < got; ++i) {
      PieceRead& read = reads[responses[i].tag];
      if (responses[i].result == static_cast<int64_t>(read.piece.iov_len))
        (void)finish_read(pieces, &read);
    }
    left -= got > 0 ? got : 0;
  }
  for (unsigned i = 0; i < count; ++i) log_.give_buffer(reads[i].buffer);
  rings_busy_.fetch_and(~(1u << ring), std::memory_order_release);
}

int Store::read_pieces(const Pieces& pieces, uint64_t offset, void* to, uint64_t bytes) {
  if (bytes > pieces.bytes() || offset > pieces.bytes() - bytes) return -EBADMSG;
  for (auto* out = static_cast<char*>(to); bytes != 0;) {
    PieceRead reads[kReadsAtDepth];
    unsigned count = 0;
    while (bytes != 0 && count < kReadsAtDepth) {
      PieceRead& read = reads[count] = {};
      read.number = offset / pieces.piece_bytes;
      read.skip = offset % pieces.piece_bytes;
      read.bytes = std::min(bytes, pieces.bytes_of(read.number) - read.skip);
      read.to = out;
      out += read.bytes, offset += read.bytes, bytes -= read.bytes;
      Candidates cold;
      const int status = copy_resident(pieces, &read, &cold);
      if (status == 0) continue;
      if (status != -EINPROGRESS) return status;
      if (cold.count == 1 && !cold.more)
        read.address = cold.list[0].address, read.life = cold.list[0].life;
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
