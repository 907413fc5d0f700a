// SPDX-License-Identifier: Apache-2.0
// Reading a store whose saved state is damaged: see rebuild.h.
// Threading: one thread, at open.
#include "kv/rebuild.h"

#include <errno.h>
#include <string.h>

#include <algorithm>

#include "kv/saved_state.h"
#include "kv/store.h"

namespace lunar::kv {
namespace {

constexpr uint64_t kBlockBytes = media::kBlockBytes;

// Why a record is taken for current, in the order of trust.
enum class Proof : uint8_t {
  kNone,  // no word of the state is its entry
  kHint,  // a word of a damaged block is its entry
  kWord,  // a word of a sound block is its entry
  kLost,  // as kWord, and the record is damaged
  kGone,  // it is the record of a delete
};
bool is_certain(Proof proof) { return proof == Proof::kWord || proof == Proof::kLost; }

struct Seen {
  uint64_t hash;
  uint64_t packed;  // address | units << 40 | Proof << 56 | of a piece << 63
  Address address() const { return Address{packed & ((uint64_t{1} << kAddressBits) - 1)}; }
  uint64_t units() const { return packed >> kAddressBits & 0xffff; }
  Proof proof() const { return static_cast<Proof>(packed >> 56 & 0x7f); }
  bool piece() const { return packed >> 63 != 0; }  // a piece, or the record of its delete
};

struct LargeSeen {
  uint64_t address;
  Pieces pieces;
};

// An index entry with address and tag exchanged, so that words sort by address.
uint64_t turned(uint64_t entry) { return entry << Index::kTagBits | entry >> kAddressBits; }
uint64_t turned_entry(uint64_t hash, Address address) {
  return address.value << Index::kTagBits | (hash & ((uint64_t{1} << Index::kTagBits) - 1));
}

}  // namespace

class Rebuilder {
 public:
  Rebuilder(Store& store, const media::Root& root, Rebuilt* out)
      : store_(store),
        log_(store.log_),
        root_(root),
        out_(out),
        segment_bytes_(log_.segment_bytes()) {}
  int run();

 private:
  static constexpr uint64_t kNeighbours = 64, kLivesAround = 64;
  struct Part {
    uint64_t segment;  // + 1; 0: not known
    bool whole;        // it was read undamaged
    bool sound;        // its first block is sound, or was computed
  };
  struct Known {  // of a segment
    uint64_t life;
    uint32_t used;     // bytes
    uint32_t current;  // records that were taken
    uint32_t named;    // sound records that a word names
    bool sound;        // a sound block of the state has life and used
    // Only its own header has its life, so another store may have left it here.
    bool may_be_a_strangers;
  };

  uint64_t bytes_of_part(uint64_t part) const {
    return part + 1 < parts_.count() ? room_ : root_.bytes - part * room_;
  }
  void read(uint64_t segment, uint64_t bytes) {
    (void)log_.read_what_can_be(segment, memory_, bytes);
  }
  bool prove_blocks(uint64_t part);
  // Whether a byte of the state lies in a sound block.
  bool is_proven(uint64_t at) const {
    return proven_[at / room_ * blocks_ + (sizeof(media::StateLink) + at % room_) / kBlockBytes] !=
           0;
  }
  void follow(uint64_t part, uint64_t segment);
  int gather_parts();
  void find_parts();
  int gather_words();
  bool has(const GrowingArray<uint64_t>& words, uint64_t word) const {
    return std::binary_search(words.begin(), words.end(), word);
  }
  Proof proof_of(uint64_t entry) const;
  const Record* record_at(uint64_t at) const {
    return reinterpret_cast<const Record*>(memory_ + at);
  }
  bool sound_at(uint64_t segment, uint64_t at, uint64_t life) const {
    return segment_bytes_ - at >= sizeof(Record) &&
           log_.sound(record_at(at), address(segment, at), life, segment_bytes_ - at) &&
           log_.body_is_sound(record_at(at), address(segment, at), life, memory_, segment_bytes_);
  }
  Address address(uint64_t segment, uint64_t at) const {
    return Address{(segment * segment_bytes_ + at) / kUnitBytes};
  }
  void know_segments();
  void prove_life(uint64_t segment);
  int scan();
  int scan_segment(uint64_t segment);
  int note(const Record* record, Address address);
  int note_damaged(uint64_t segment, uint64_t from, uint64_t to);
  bool is_behind_the_state(uint64_t segment) const;
  bool begins_in(uint64_t segment, uint64_t life) const {
    return sound_at(segment, log_.first_at(segment), life);
  }
  uint64_t units_of(uint64_t segment, uint64_t life) const;
  uint64_t guess_life(uint64_t segment) const;
  bool is_newer(const Seen& one, const Seen& other) const;
  bool has_order(const Seen& one, const Seen& other) const;  // is_newer() does not guess
  bool same_open(uint64_t one, uint64_t other) const {
    return one - other + (1u << 31) < uint64_t{1} << 32;
  }
  uint64_t life_of(const Seen& seen) const { return known_[log_.segment_of(seen.address())].life; }
  template <class Visit>
  int each_key(Visit visit);
  int decide(const Seen* first, const Seen* last);
  bool is_better(const Seen& one, const Seen& other) const;
  bool may_be_a_strangers(const Seen& seen) const {
    const Known& known = known_[log_.segment_of(seen.address())];
    return known.may_be_a_strangers && known.named == 0 && words_.count() + hints_.count() != 0;
  }
  int doubt(const Seen* first, const Seen* last);
  int take(const Seen& seen, bool doubtful);
  bool are_there(const Pieces& pieces) const;
  const LargeSeen* large_at(Address address) const;
  int fill();

  Store& store_;
  Log& log_;
  const media::Root& root_;
  Rebuilt* out_;
  const uint64_t segment_bytes_, blocks_ = segment_bytes_ / kBlockBytes;
  uint64_t room_ = media::link_room(segment_bytes_);
  GrowingArray<char> frame_;  // of one segment
  char* memory_ = nullptr;    //   its bytes
  GrowingArray<Part> parts_;
  GrowingArray<char> proven_;             // for each block of each part
  GrowingArray<char> state_;              // its bytes; 0 where they are not known
  GrowingArray<uint64_t> words_, hints_;  // of sound blocks, and of damaged ones: turned, sorted
  GrowingArray<Known> known_;
  GrowingArray<Seen> seen_;
  GrowingArray<LargeSeen> large_;
  GrowingArray<Seen> current_;
  uint64_t keys_ = 0;  // keys that were taken
};

// ---- the parts of the state ---------------------------------------------------------------------

// Finds which blocks of the segment that was read belong to that part. False: none.
bool Rebuilder::prove_blocks(uint64_t part) {
  const LinkBlocks blocks{memory_, sizeof(media::StateLink) + bytes_of_part(part), part,
                          root_.life};
  char* proven = &proven_[part * blocks_];
  const bool whole = blocks.is_whole(), has_sums = room_ == media::link_room(segment_bytes_);
  memset(proven, whole, blocks.count());
  parts_[part].whole = whole;
  return whole || (has_sums && blocks.repair(proven) != 0);
}

// Reads parts from `part` on, which lies in `segment` (+ 1), as far as links lead to the next. The
// bytes of a damaged block are hints, and so is a damaged link.
void Rebuilder::follow(uint64_t part, uint64_t segment) {
  bool was_sound = true;
  for (; part < parts_.count() && segment != 0 && segment <= log_.segments(); ++part) {
    if (parts_[part].sound) return;
    read(segment - 1, segment_bytes_);
    const bool any = prove_blocks(part), sound = proven_[part * blocks_] != 0;
    media::StateLink link;
    memcpy(&link, memory_, sizeof link);
    if (!any && !was_sound && link.bytes != bytes_of_part(part)) return;
    parts_[part].segment = segment;
    parts_[part].sound = sound;
    memcpy(state_.begin() + part * room_, memory_ + sizeof(media::StateLink), bytes_of_part(part));
    segment = link.next;
    was_sound = sound;
  }
}

// Finds parts that no link leads to.
void Rebuilder::find_parts() {
  const auto is_missing = [](const Part& part) { return part.segment == 0; };
  for (uint64_t segment = 0; segment < log_.segments(); ++segment) {
    if (std::none_of(parts_.begin(), parts_.end(), is_missing)) return;
    read(segment, kBlockBytes);
    media::StateLink link;
    memcpy(&link, memory_, sizeof link);
    bool whole = false;
    for (uint64_t part = 0; part < parts_.count(); ++part) {
      if (parts_[part].segment != 0 || link.bytes != bytes_of_part(part)) continue;
      if (!whole) read(segment, segment_bytes_);
      whole = true;
      if (!prove_blocks(part)) continue;
      follow(part, segment + 1);
      break;
    }
  }
}

int Rebuilder::gather_parts() {
  const uint64_t most = log_.bytes(), first = root_.first;
  const uint64_t bytes = root_.bytes % kUnitBytes == 0 && root_.bytes <= most ? root_.bytes : 0;
  media::StateLink link = {};
  if (first != 0 && first <= log_.segments()) {
    read(first - 1, kBlockBytes);
    memcpy(&link, memory_, sizeof link);
  }
  const uint64_t without_sums = segment_bytes_ - sizeof link;
  if (link.bytes > room_ && link.bytes == std::min(bytes, without_sums)) room_ = without_sums;
  const uint64_t parts = (bytes + room_ - 1) / room_;
  if (!parts_.fill(parts) || !proven_.fill(parts * blocks_) || !state_.fill(bytes)) return -ENOMEM;
  follow(0, first);
  find_parts();
  for (const Part& part : parts_)
    if (!part.whole && !out_->parts.push(part.segment)) return -ENOMEM;
  return 0;
}

int Rebuilder::gather_words() {
  for (uint64_t at = log_.segments() * sizeof(media::SegmentEntry); at < state_.count();
       at += kUnitBytes) {
    uint64_t word;
    memcpy(&word, state_.begin() + at, sizeof word);
    if (word != 0 && !(is_proven(at) ? words_ : hints_).push(turned(word))) return -ENOMEM;
  }
  std::sort(words_.begin(), words_.end());
  std::sort(hints_.begin(), hints_.end());
  return 0;
}

Proof Rebuilder::proof_of(uint64_t entry) const {
  if (has(words_, entry)) return Proof::kWord;
  return has(hints_, entry) ? Proof::kHint : Proof::kNone;
}

// ---- records ------------------------------------------------------------------------------------

// Takes the state's entry of each segment.
void Rebuilder::know_segments() {
  const auto whole = static_cast<uint32_t>(segment_bytes_);
  for (uint64_t i = 0; i < log_.segments(); ++i) {
    media::SegmentEntry entry = {};
    const uint64_t at = i * sizeof entry, last = at + sizeof entry - 1;
    const bool there = last < state_.count();
    if (there) memcpy(&entry, state_.begin() + at, sizeof entry);
    Known& known = known_[i];
    known.sound = there && is_proven(at) && is_proven(last);
    if (known.sound && (entry.kind != media::SegmentKind::kRecords || entry.used > whole)) continue;
    known.life = entry.life;
    known.used = known.sound ? entry.used : whole;
  }
}

// Whether a segment was begun, or continued, after the state. Replay reads such segments of a log.
bool Rebuilder::is_behind_the_state(uint64_t segment) const {
  const uint64_t life = known_[segment].life;
  if (same_open(life, root_.life) && life - root_.life < uint64_t{1} << 31) return true;
  if (root_.log == 0) return false;
  const media::BatchHeader* batch =
      log_.batch_at(root_.log, segment, memory_, log_.first_at(segment));
  return batch && batch->number >= root_.log_batch;
}

// How many units of the segment that was read have sound records of that life.
uint64_t Rebuilder::units_of(uint64_t segment, uint64_t life) const {
  uint64_t units = 0;
  for (uint64_t at = log_.first_at(segment); life != 0 && at < segment_bytes_;) {
    const bool sound = sound_at(segment, at, life);
    units += sound ? record_at(at)->live_units() : 0;
    at += sound ? record_at(at)->span() : kUnitBytes;
  }
  return units;
}

// Determines the life of the segment that was read, which is known at most from a hint. If sound
// records prove two lives, the one with more units counts; the other is a remainder.
void Rebuilder::prove_life(uint64_t segment) {
  Known& known = known_[segment];
  if (begins_in(segment, known.life)) return;
  const auto* header =
      reinterpret_cast<const media::BatchHeader*>(record_at(log_.first_at(segment)) + 1);
  const uint64_t guess = guess_life(segment), life = guess ? guess : header->life;
  if (!begins_in(segment, life) || units_of(segment, life) <= units_of(segment, known.life)) return;
  known.life = life;
  known.may_be_a_strangers = guess == 0 && header->log != root_.log;
}

// Guesses the life of the segment that was read. 0: no guess is proved.
uint64_t Rebuilder::guess_life(uint64_t segment) const {
  const auto around = [&](uint64_t life) {
    for (uint64_t guess = life - kLivesAround; guess != life + kLivesAround; ++guess)
      if (begins_in(segment, guess)) return guess;
    return uint64_t{0};
  };
  if (const uint64_t life = around(root_.life)) return life;
  const uint64_t from = segment > kNeighbours ? segment - kNeighbours : 0;
  for (uint64_t i = from; i < log_.segments() && i <= segment + kNeighbours; ++i)
    if (const uint64_t life = known_[i].life ? around(known_[i].life) : 0) return life;
  return 0;
}

int Rebuilder::note(const Record* record, Address address) {
  if (record->type() == RecordType::kMark) return 0;
  const bool gone = record->type() == RecordType::kDeleted,
             large = record->type() == RecordType::kLarge;
  const uint64_t hash =
      gone ? reinterpret_cast<const DeletedKey*>(record + 1)->hash : store_.hash_of_record(record);
  const Proof proof = gone ? Proof::kGone : proof_of(turned_entry(hash, address));
  const Seen seen{hash, address.value | record->live_units() << kAddressBits |
                            static_cast<uint64_t>(proof) << 56 |
                            uint64_t{record->is_piece()} << 63};
  Known& known = known_[log_.segment_of(address)];
  known.named += proof == Proof::kWord || proof == Proof::kHint ? 1 : 0;
  if (!seen_.push(seen)) return -ENOMEM;
  return large && !large_.push({address.value, record->pieces()}) ? -ENOMEM : 0;
}

// Notes damaged records in bytes without a sound record: each word that leads there is the entry of
// one. (A word with tag 0 may be a count, so it counts only if the key there confirms it.)
int Rebuilder::note_damaged(uint64_t segment, uint64_t from, uint64_t to) {
  const uint64_t* word =
      std::lower_bound(words_.begin(), words_.end(), turned_entry(0, address(segment, from)));
  for (; word != words_.end() && *word < turned_entry(0, address(segment, to)); ++word) {
    const uint64_t at = (*word >> Index::kTagBits) * kUnitBytes - segment * segment_bytes_;
    const Record* record = record_at(at);
    const bool readable = record->type() == RecordType::kPair &&
                          segment_bytes_ - at >= sizeof(Record) &&
                          record->key_bytes <= segment_bytes_ - at - sizeof(Record);
    uint64_t hash = readable ? hash_of({record->key(), record->key_bytes}) : 0;
    const bool confirmed = readable && turned_entry(hash, address(segment, at)) == *word;
    const bool may_be_count = turned_entry(*word, Address{0}) == 0;
    if (!confirmed && may_be_count) continue;
    if (confirmed && record->is_piece()) continue;  // its head shows that it is missing
    if (!confirmed) hash = *word;  // no key: a group of its own, whose entry stays the same
    const uint64_t packed = address(segment, at).value | static_cast<uint64_t>(Proof::kLost) << 56;
    if (!seen_.push({hash, packed})) return -ENOMEM;
  }
  return 0;
}

int Rebuilder::scan_segment(uint64_t segment) {
  Known& known = known_[segment];
  uint32_t end = 0;
  uint64_t damaged = UINT64_MAX;
  for (uint64_t at = log_.first_at(segment); at < known.used;) {
    const bool sound = sound_at(segment, at, known.life);
    if (!sound && damaged == UINT64_MAX) damaged = at;
    if (sound && damaged != UINT64_MAX) {
      if (const int status = note_damaged(segment, damaged, at); status < 0) return status;
      damaged = UINT64_MAX;
    }
    if (sound) {
      if (const int status = note(record_at(at), address(segment, at)); status < 0) return status;
      const uint64_t body = record_at(at)->has_body() ? Log::body_at(record_at(at)) : 0;
      const uint64_t body_end = body + record_at(at)->body_bytes();
      at += record_at(at)->span();
      end = static_cast<uint32_t>(std::max({uint64_t{end}, at, body_end}));
    } else {
      at += kUnitBytes;
    }
  }
  if (!known.sound) known.used = end;
  return damaged < known.used ? note_damaged(segment, damaged, known.used) : 0;
}

int Rebuilder::scan() {
  for (uint64_t i = 0; i < log_.segments(); ++i) {
    Known& known = known_[i];
    if (known.sound && known.used == 0) continue;
    read(i, segment_bytes_);
    if (!known.sound) prove_life(i);
    if (root_.log != 0 && i + 1 == root_.log_segments[0])
      known.used = std::min(root_.log_at, static_cast<uint32_t>(segment_bytes_));
    else if (!known.sound && (known.life == 0 || is_behind_the_state(i)))
      known.used = 0;
    if (const int status = scan_segment(i); status < 0) return status;
  }
  return 0;
}

// ---- which of them are current ------------------------------------------------------------------

// Lives of one open are in order, those of different opens are not. The life of the state is of the
// last open.
bool Rebuilder::is_newer(const Seen& one, const Seen& other) const {
  const uint64_t a = life_of(one), b = life_of(other);
  if (a == b) return one.address().value > other.address().value;
  if (same_open(a, b)) return a - b < uint64_t{1} << 32;
  if (same_open(a, root_.life) != same_open(b, root_.life)) return same_open(a, root_.life);
  return a > b;
}

bool Rebuilder::has_order(const Seen& one, const Seen& other) const {
  const uint64_t a = life_of(one), b = life_of(other);
  return same_open(a, b) || same_open(a, root_.life) || same_open(b, root_.life);
}

template <class Visit>
int Rebuilder::each_key(Visit visit) {
  for (const Seen* first = seen_.begin(); first != seen_.end();) {
    const Seen* last = first;
    while (last != seen_.end() && last->hash == first->hash) ++last;
    if (const int status = visit(first, last); status < 0) return status;
    first = last;
  }
  return 0;
}

int Rebuilder::take(const Seen& seen, bool doubtful) {
  if (doubtful && !out_->doubtful.push(seen.address().value)) return -ENOMEM;
  Known& known = known_[log_.segment_of(seen.address())];
  ++known.current;
  keys_ += seen.piece() ? 0 : 1;
  return current_.push(seen) ? 0 : -ENOMEM;
}

// Takes the record of a key that a word of the state names. A piece that no word names is taken
// too, because a head decides whether it counts.
int Rebuilder::decide(const Seen* first, const Seen* last) {
  const Seen* current =
      std::find_if(first, last, [](const Seen& one) { return is_certain(one.proof()); });
  if (current == last)
    current = std::find_if(first, last, [&](const Seen& one) {
      return one.piece() && one.proof() != Proof::kGone && !may_be_a_strangers(one);
    });
  return current == last ? 0 : take(*current, false);
}

// The newer of two records, or, if their order is a guess, the one that a damaged block names.
bool Rebuilder::is_better(const Seen& one, const Seen& other) const {
  return has_order(one, other) || one.proof() == other.proof() ? is_newer(one, other)
                                                               : one.proof() > other.proof();
}

// For a key that no word names, takes the newest record whose pair can be read.
int Rebuilder::doubt(const Seen* first, const Seen* last) {
  const Seen *newest = nullptr, *gone = nullptr;
  for (const Seen* one = first; one != last; ++one) {
    if (is_certain(one->proof()) || one->piece()) return 0;
    if (may_be_a_strangers(*one)) continue;
    const Seen*& best = one->proof() == Proof::kGone ? gone : newest;
    if (best && !is_better(*one, *best)) continue;
    const LargeSeen* large = large_at(one->address());
    if (!large || are_there(large->pieces)) best = one;
  }
  if (!newest || (gone && is_newer(*gone, *newest) && has_order(*gone, *newest))) return 0;
  return take(*newest, true);
}

const LargeSeen* Rebuilder::large_at(Address address) const {
  const auto before = [](const LargeSeen& one, uint64_t at) { return one.address < at; };
  const LargeSeen* found = std::lower_bound(large_.begin(), large_.end(), address.value, before);
  return found != large_.end() && found->address == address.value ? found : nullptr;
}

bool Rebuilder::are_there(const Pieces& pieces) const {
  const auto before = [](const Seen& one, uint64_t hash) { return one.hash < hash; };
  for (uint64_t number = 0; number < pieces.count(); ++number) {
    const PieceKey key{pieces.hash, pieces.id, number};
    const uint64_t hash = hash_of({&key, sizeof key});
    const Seen* seen = std::lower_bound(seen_.begin(), seen_.end(), hash, before);
    const auto is_it = [](const Seen& one) { return one.piece() && one.proof() != Proof::kGone; };
    while (seen != seen_.end() && seen->hash == hash && !is_it(*seen)) ++seen;
    if (seen == seen_.end() || seen->hash != hash) return false;
  }
  return true;
}

// Fills the log and the index as the state would have.
int Rebuilder::fill() {
  for (uint64_t i = 0; i < log_.segments(); ++i)
    if (known_[i].current != 0 || (known_[i].sound && known_[i].used != 0))
      log_.restore(i, SegmentState::kSealed, known_[i].life, 0, known_[i].used);
  for (const Seen& seen : current_) {
    const Address address = seen.address();
    Shard& shard = store_.shard_of(seen.hash);
    Index& index = seen.piece() ? shard.pieces : shard.index;
    if (const int status = index.insert(seen.hash, address); status < 0) return status;
    log_.add_live(address, seen.units());
  }
  return 0;
}

int Rebuilder::run() {
  if (!frame_.fill(segment_bytes_ + kBlockBytes) || !known_.fill(log_.segments())) return -ENOMEM;
  memory_ = frame_.begin();
  int status = gather_parts();
  if (status == 0) status = gather_words();
  if (status < 0) return status;
  know_segments();
  status = scan();
  if (status < 0) return status;
  std::sort(seen_.begin(), seen_.end(),
            [](const Seen& a, const Seen& b) { return a.hash < b.hash; });
  std::sort(large_.begin(), large_.end(),
            [](const auto& a, const auto& b) { return a.address < b.address; });
  status = each_key([&](const Seen* first, const Seen* last) { return decide(first, last); });
  if (status == 0 && keys_ < root_.keys)
    status = each_key([&](const Seen* first, const Seen* last) { return doubt(first, last); });
  if (status == 0) status = fill();
  std::sort(out_->doubtful.begin(), out_->doubtful.end());
  const uint64_t certain = keys_ - out_->doubtful.count();
  out_->not_certain = root_.keys > certain ? root_.keys - certain : 0;
  return status;
}

int rebuild(Store& store, const media::Root& root, Rebuilt* out) {
  out->any = true;
  return Rebuilder(store, root, out).run();
}

}  // namespace lunar::kv
