// SPDX-License-Identifier: Apache-2.0
// Looking at a store as a whole: see inspect.h.
//
// A sweep reads each segment in one piece and goes from record to record. The lengths of a damaged
// record mean nothing, so the sweep continues where the index says that the next record begins. So
// it examines all of a segment, and every pair that the index knows is either read with its
// checksum or named.
// Threading: as in store.h.
#include "kv/inspect.h"

#include <errno.h>

#include <algorithm>
#include <initializer_list>

#include "base/bytes.h"
#include "kv/store_head.h"
#include "lun/raw_io.h"
#include "sys/arena.h"

namespace lunar::kv {

void Store::info(StoreInfo* out) {
  *out = {};
  {
    MutexLock guard(cleaning_);
    if (persistent_) {
      out->version = super_.version;
      memcpy(out->uuid, super_.uuid, sizeof out->uuid);
      out->place_bytes = super_.device_bytes;
    }
    if (persistent_ && root_.loaded()) {
      media::Root root;
      memcpy(&root, root_.body(), sizeof root);
      out->sequence = root_.sequence();
      out->state_bytes = root.bytes;
      out->features = root_.header().features;
    }
  }
  out->keys = count();
  out->pair_bytes = bytes_actual();
  out->pieces = pieces();
  out->index_bytes = index_bytes();
  out->dram_bytes = dram_used();
  out->shards = 1u << shard_bits_;
  out->segment_bytes = log_.segment_bytes();
  for (uint64_t i = 0; i < log_.segments(); ++i) {
    const SegmentState state = log_.state(i);
    ++out->segments[static_cast<unsigned>(state)];
    if (state == SegmentState::kOpen || state == SegmentState::kSealed ||
        state == SegmentState::kDamaged)
      out->live_bytes += log_.live(i) * kUnitBytes;
  }
}

// One run of Store::sweep.
class Sweeper {
 public:
  Sweeper(Store& store, const Sweep& sweep, CheckReport* out)
      : store_(store), log_(store.log_), sweep_(sweep), out_(out) {}
  int run();

 private:
  static constexpr uint64_t kBlockBytes = media::kBlockBytes, kKeyShown = 256;

  // bytes: 0: not known.
  Damage damage_in(uint64_t number, uint64_t offset, uint64_t bytes, const char* what,
                   const char* fault) const {
    return {.what = what,
            .fault = fault,
            .in_segment = true,
            .segment = number,
            .offset = media::kHeadBytes + number * log_.segment_bytes() + offset,
            .bytes = bytes};
  }
  void report(Damage damage) {
    ++out_->damages;
    out_->pairs_lost += damage.pair_lost ? 1 : 0;
    sweep_.on_damage(sweep_.context, damage);
  }
  void check_heads();
  void report_rebuilt();
  void report_missing();
  void report_doubtful(const Record* record, uint64_t number, uint64_t offset);
  void report_lost(const Record* record, uint64_t number, uint64_t offset);
  void gather_addresses();
  void read_segment(uint64_t number, uint64_t bytes);
  const char* fault_at(uint64_t offset, uint64_t end) const;
  uint64_t check_segment(uint64_t number, uint64_t next);
  void show_key(const Record* record, char* shown, Damage* damage);
  enum class Lives : uint8_t { kNo, kPair, kPiece };
  uint64_t check_live(const Record* record, uint64_t number, uint64_t offset, Lives lives);
  void check_large(const Record* record, uint64_t number, uint64_t offset);
  void check_head_of(const Record* piece, uint64_t number, uint64_t offset);
  int read_large(const Pieces& pieces);
  int deliver_large(const Record* record);
  void report_body(const Record* record, uint64_t number, uint64_t offset);
  void report_damaged(const Record* record, uint64_t number, uint64_t offset, uint64_t end,
                      Lives lives);
  uint64_t address_in(uint64_t next, uint64_t number) const;

  Store& store_;
  Log& log_;
  const Sweep& sweep_;
  CheckReport* out_;
  char* memory_ = nullptr;  // of one segment
  int unread_ = 0;          //   the error of blocks that the device could not read; they are zeros
  // All index entries, in order: address << 1 | whether it is a piece.
  uint64_t* addresses_ = nullptr;
  uint64_t count_ = 0;
  uint64_t doubtful_ = 0;  // pairs that salvage took from their records alone
  int status_ = 0;         // not 0: the end
  PieceKey last_ = {};     // the piece whose head was looked for last
};

// Checks the copies that opening did not need.
void Sweeper::check_heads() {
  const char* fault = nullptr;
  for (const uint64_t at : {uint64_t{0}, media::kSecondSuperAt}) {
    if (!superblock_is_copy(store_.device_, at, store_.super_, &fault))
      report({.what = "superblock", .fault = fault, .offset = at, .bytes = kBlockBytes});
  }
  if (store_.root_may_be_old_) {
    report({.what = "root of the saved state",
            .fault = "the newest may be gone: what is shown is an older state then",
            .offset = media::kFrontRootsAt});
    out_->doubtful += store_.count();
  }
  const unsigned bad = store_.root_bad_;
  for (unsigned i = 0; i < 4; ++i) {
    const uint64_t copy = i < 2 ? media::kFrontRootsAt : store_.super_.back_offset;
    if (bad >> i & 1)
      report({.what = "root of the saved state",
              .fault = "its checksum is wrong, or it is older than its other copies",
              .offset = copy + (i % 2) * kBlockBytes,
              .bytes = kBlockBytes});
  }
}

// Reports the parts of the saved state that salvage found damaged.
void Sweeper::report_rebuilt() {
  for (const uint64_t segment : store_.rebuilt_.parts) {
    const char* fault =
        "the checksum of a part is wrong; its sound blocks counted, and a single damaged one was "
        "computed from them";
    if (segment == 0)
      report({.what = "saved state",
              .fault = "a part was not found; the records of its pairs were looked for"});
    else
      report(damage_in(segment - 1, 0, log_.segment_bytes(), "saved state", fault));
  }
}

// Reports the number of pairs that the state counts but of which no record was found.
void Sweeper::report_missing() {
  const Rebuilt& rebuilt = store_.rebuilt_;
  const uint64_t found = rebuilt.settled + doubtful_;
  if (rebuilt.not_certain <= found) return;
  report({.what = "index", .fault = "it counts pairs of which no record was found"});
  out_->pairs_lost += rebuilt.not_certain - found;
}

// Reports a pair that salvage took from its record alone.
void Sweeper::report_doubtful(const Record* record, uint64_t number, uint64_t offset) {
  char shown[kKeyShown];
  Damage damage = damage_in(
      number, offset, record->units() * kUnitBytes, "entry",
      "it is damaged or lost, so the pair may be older, or deleted (or of a store before this "
      "one)");
  show_key(record, shown, &damage);
  ++out_->doubtful;
  ++doubtful_;
  report(damage);
}

// Reports a set, delete or batch that salvage left out.
void Sweeper::report_lost(const Record* record, uint64_t number, uint64_t offset) {
  Damage damage = damage_in(
      number, offset, 0, "log of durable sets",
      "a batch is not what was written; the store is shown as it was before the first of these");
  damage.pair_lost = true;
  char shown[kKeyShown];
  if (record) {
    damage.bytes = record->units() * kUnitBytes;
    damage.what = "set behind the damage";
    damage.fault = "it is left out: the value of before is shown, if there was one";
  }
  if (record && record->type() != RecordType::kDeleted) {
    show_key(record, shown, &damage);
  } else if (record) {
    damage.what = "delete behind the damage";
    damage.fault = "it is left out: its key is shown";
    damage.pair_lost = false;
  }
  report(damage);
}

void Sweeper::gather_addresses() {
  for (unsigned i = 0; i < 1u << store_.shard_bits_; ++i) {
    const Shard& shard = store_.shards_[i];
    for (const Index* index : {&shard.index, &shard.pieces})
      for (uint64_t bucket = 0; bucket < index->buckets(); ++bucket)
        index->for_bucket(bucket, [&](uint64_t entry) {
          addresses_[count_++] =
              Index::address_in(entry).value << 1 | (index == &shard.pieces ? 1 : 0);
        });
  }
  std::sort(addresses_, addresses_ + count_);
}

void Sweeper::read_segment(uint64_t number, uint64_t bytes) {
  out_->read_bytes += bytes;
  unread_ = log_.read_what_can_be(number, memory_, bytes);
}

// Describes the fault of damaged bytes: a wrong checksum, or the error of the device.
const char* Sweeper::fault_at(uint64_t offset, uint64_t end) const {
  for (uint64_t at = round_down(offset, kBlockBytes); unread_ < 0 && at < end; at += kBlockBytes)
    if (bytes_are_zero(memory_ + at, kBlockBytes)) return errno_text(unread_);
  return "the checksum is wrong";
}

// The address of entry `next`, in bytes from the start of segment `number`; the end of the segment
// if the entry leads to another one.
uint64_t Sweeper::address_in(uint64_t next, uint64_t number) const {
  const uint64_t begin = number * log_.segment_bytes();
  const bool inside =
      next < count_ && (addresses_[next] >> 1) * kUnitBytes < begin + log_.segment_bytes();
  return inside ? (addresses_[next] >> 1) * kUnitBytes - begin : log_.segment_bytes();
}

// Reports damage between `offset` and `end`. A key found there counts if the index has it at that
// address.
void Sweeper::report_damaged(const Record* record, uint64_t number, uint64_t offset, uint64_t end,
                             Lives lives) {
  const bool live = lives == Lives::kPair;
  const uint64_t begin = number * log_.segment_bytes();
  const char* what = live                     ? "record"
                     : lives == Lives::kPiece ? "piece of a large pair"
                                              : "space of dead records";
  Damage damage = damage_in(number, offset, end - offset, what, fault_at(offset, end));
  damage.pair_lost = live;
  const uint64_t room = log_.segment_bytes() - offset;
  if (live && sizeof(Record) + uint64_t{record->key_bytes} <= room && log_.possible(record, room)) {
    damage.key = store_.key_of(record);
    damage.key_bytes = damage.key.size;
    damage.key_readable = store_.lives(record, Address{(begin + offset) / kUnitBytes});
  }
  report(damage);
}

void Sweeper::show_key(const Record* record, char* shown, Damage* damage) {
  damage->key = store_.key_of(record);
  damage->key_bytes = damage->key.size;
  damage->key_readable = true;
  if (record->type() != RecordType::kLarge || !record->pieces().hold_key) return;
  const Pieces& pieces = record->pieces();
  damage->key = {shown, std::min(pieces.key_bytes, kKeyShown)};
  damage->key_bytes = pieces.key_bytes;
  damage->key_readable = store_.read_pieces(pieces, 0, shown, damage->key.size) == 0;
}

// Checks a large pair, piece by piece.
int Sweeper::read_large(const Pieces& pieces) {
  GrowingArray<char> part;
  if (!part.fill(pieces.piece_bytes)) return -ENOMEM;
  int status = 0;
  for (uint64_t i = 0; status == 0 && i < pieces.count(); ++i)
    status = store_.read_pieces(pieces, i * pieces.piece_bytes, part.begin(), pieces.bytes_of(i));
  return status;
}

// Reads a large pair, with keys_only only its key, and passes it to on_pair.
int Sweeper::deliver_large(const Record* record) {
  const Pieces& pieces = record->pieces();
  const uint64_t bytes =
      sweep_.keys_only ? (pieces.hold_key ? pieces.key_bytes : 0) : pieces.bytes();
  auto* read = static_cast<char*>(map_private(bytes + 1, ForkPolicy::kInherit));
  if (!read) return -ENOMEM;
  const int status = store_.read_pieces(pieces, 0, read, bytes);
  const Bytes key = pieces.hold_key ? Bytes{read, pieces.key_bytes} : store_.key_of(record);
  const Bytes value{sweep_.keys_only ? nullptr : read + pieces.value_at(), pieces.value_bytes};
  if (status == 0 && !sweep_.on_pair(sweep_.context, key, value)) status_ = -ECANCELED;
  unmap_private(read, bytes + 1);
  return status;
}

void Sweeper::check_large(const Record* record, uint64_t number, uint64_t offset) {
  const int status = sweep_.on_pair ? deliver_large(record) : read_large(record->pieces());
  if (status == -ENOMEM) status_ = status;
  if (status == 0) {
    out_->read_bytes += record->pieces().bytes();
    ++out_->large_pairs;
  }
  if (status == 0 || status == -ENOMEM) return;
  char shown[kKeyShown];
  const char* fault = status == -ESTALE    ? "a piece of it is not there"
                      : status == -EBADMSG ? "the checksum of a piece is wrong"
                                           : errno_text(status);
  Damage damage = damage_in(number, offset, record->units() * kUnitBytes, "large pair", fault);
  damage.pair_lost = true;
  show_key(record, shown, &damage);
  report(damage);
}

// Reports pieces whose head is damaged, or was damaged when it was replaced. After salvage of a
// damaged state there are also pieces of dead pairs (rebuild.cpp), which are not damage.
void Sweeper::check_head_of(const Record* piece, uint64_t number, uint64_t offset) {
  if (store_.rebuilt_.any) return;
  PieceKey key;
  memcpy(&key, piece->key(), sizeof key);
  const bool same = key.owner == last_.owner && key.id == last_.id;
  last_ = key;
  if (same) return;
  int error = 0;
  const auto* head = store_.shard_of(key.owner).index.find_entry(key.owner, [&](Address address) {
    RecordReader reader(log_);
    const int status = reader.locked_again(address);
    if (status < 0) error = graver(error, status);
    return status == 0 && reader->type() == RecordType::kLarge && reader->pieces().id == key.id;
  });
  if (head) return;
  const bool refused = error < 0 && error != -EBADMSG;
  report(damage_in(number, offset, piece->units() * kUnitBytes, "pieces of a large pair",
                   refused ? errno_text(error) : "no sound record leads to them"));
}

// Reports a damaged body of a sound record that the index leads to.
void Sweeper::report_body(const Record* record, uint64_t number, uint64_t offset) {
  const uint64_t at = Log::body_at(record), end = at + record->value_bytes;
  Damage damage = damage_in(number, at, record->value_bytes, "record", fault_at(at, end));
  damage.pair_lost = true;
  damage.key = store_.key_of(record);
  damage.key_bytes = record->key_bytes;
  damage.key_readable =
      store_.lives(record, Address{(number * log_.segment_bytes() + offset) / kUnitBytes});
  report(damage);
}

// Checks that a sound record that the index leads to is the right one. Returns its units.
uint64_t Sweeper::check_live(const Record* record, uint64_t number, uint64_t offset, Lives lives) {
  const uint64_t begin = number * log_.segment_bytes();
  const bool has_key = record->type() == RecordType::kPair || record->type() == RecordType::kLarge;
  const bool piece = lives == Lives::kPiece, is_pair = has_key && record->is_piece() == piece;
  if (!is_pair || !store_.lives(record, Address{(begin + offset) / kUnitBytes})) {
    Damage damage = damage_in(
        number, offset, record->units() * kUnitBytes, "index",
        is_pair ? "it leads another key to this record" : "it leads to a record of no pair");
    damage.pair_lost = !piece;
    report(damage);
    return record->live_units();
  }
  if (piece) {
    check_head_of(record, number, offset);
    return record->live_units();
  }
  const GrowingArray<uint64_t>& doubtful = store_.rebuilt_.doubtful;
  if (std::binary_search(doubtful.begin(), doubtful.end(), (begin + offset) / kUnitBytes))
    report_doubtful(record, number, offset);
  if (record->type() == RecordType::kLarge) {
    check_large(record, number, offset);
  } else {
    ++out_->records;
    const Bytes value{Log::value_in(record, memory_), record->value_bytes};
    if (sweep_.on_pair && !sweep_.on_pair(sweep_.context, store_.key_of(record), value))
      status_ = -ECANCELED;
  }
  return record->live_units();
}

// next: the first entry that leads into this segment or a later one. Returns the first entry that
// leads behind it.
uint64_t Sweeper::check_segment(uint64_t number, uint64_t next) {
  const uint64_t begin = number * log_.segment_bytes(), used = log_.used(number),
                 life = log_.life(number);
  const uint64_t damages = out_->damages;
  uint64_t live_units = 0;
  read_segment(number, round_up(used, kBlockBytes));
  uint64_t at = log_.first_at(number);
  while (at < used && status_ == 0) {
    const auto* record = reinterpret_cast<const Record*>(memory_ + at);
    const bool live = address_in(next, number) == at;
    const Lives lives = !live                         ? Lives::kNo
                        : (addresses_[next] & 1) != 0 ? Lives::kPiece
                                                      : Lives::kPair;
    if (live) ++next;
    if (log_.sound(record, Address{(begin + at) / kUnitBytes}, life, used - at)) {
      if (!live)
        ++out_->dead_records;
      else if (log_.body_is_sound(record, Address{(begin + at) / kUnitBytes}, life, memory_, used))
        live_units += check_live(record, number, at, lives);
      else
        report_body(record, number, at);
      at += record->span();
    } else {
      // A length that leads to a sound record is right; otherwise the next known record counts.
      uint64_t end = std::min(address_in(next, number), used);
      const uint64_t behind = at + record->units() * kUnitBytes;
      if (behind > at && behind < end &&
          log_.sound(reinterpret_cast<const Record*>(memory_ + behind),
                     Address{(begin + behind) / kUnitBytes}, life, used - behind))
        end = behind;
      report_damaged(record, number, at, end, lives);
      at = end;
    }
    for (; address_in(next, number) < at; ++next) {
      Damage damage = damage_in(number, address_in(next, number), 0, "index",
                                "it leads into the middle of a record");
      damage.pair_lost = (addresses_[next] & 1) == 0;
      report(damage);
    }
  }
  if (status_ == 0 && damages == out_->damages && live_units != log_.live(number))
    report(damage_in(number, 0, log_.segment_bytes(), "segment",
                     "what lives in it is not what the saved state says"));
  return next;
}

int Sweeper::run() {
  const uint64_t bytes = (store_.count() + store_.pieces() + 1) * sizeof(uint64_t),
                 segment_bytes = log_.segment_bytes();
  // One block more, because a record's header may seem to begin at the very end of a segment.
  memory_ = static_cast<char*>(map_private(segment_bytes + kBlockBytes, ForkPolicy::kInherit));
  addresses_ = static_cast<uint64_t*>(map_private(bytes, ForkPolicy::kInherit));
  const bool room = memory_ && addresses_;
  if (room) {
    check_heads();
    report_rebuilt();
    const auto lost = [](void* sweeper, const Record* record, uint64_t number, uint64_t offset) {
      static_cast<Sweeper*>(sweeper)->report_lost(record, number, offset);
    };
    status_ = store_.visit_lost(this, lost);
    gather_addresses();
    uint64_t next = 0;
    for (uint64_t i = 0; status_ == 0 && i < log_.segments(); ++i)
      if (log_.state(i) == SegmentState::kSealed) next = check_segment(i, next);
    if (status_ == 0) report_missing();
  }
  if (memory_) unmap_private(memory_, segment_bytes + kBlockBytes);
  if (addresses_) unmap_private(addresses_, bytes);
  return room ? status_ : -ENOMEM;
}

int Store::sweep(const Sweep& sweep, CheckReport* out) {
  *out = {};
  if (!read_only_ || !persistent_ || !sweep.on_damage) return -EINVAL;
  MutexLock guard(cleaning_);
  return Sweeper(*this, sweep, out).run();
}

}  // namespace lunar::kv
