// SPDX-License-Identifier: Apache-2.0
// Reading a store whose saved state is damaged: see rebuild.h.
// Threading: one thread, at open.
#include "kv/rebuild.h"

#include <errno.h>
#include <string.h>

#include <initializer_list>

#include "kv/store.h"

namespace lunar::kv {
namespace {

constexpr uint64_t kBlockBytes = media::kBlockBytes;

// Why a record is taken for current. The order is that of trust.
enum class Proof : uint8_t {
  kNone,  // no word of the state is its entry
  kNear,  // a word of a damaged part is, but for one bit
  kHint,  // one of a damaged part is
  kWord,  // one of a sound part is
  kLost,  // the key of a damaged record, whose entry a word is
  kGone,  // the record of a delete
};

struct Seen {
  uint64_t hash;
  uint64_t packed;  // address | units << 40 | Proof << 56
  Address address() const { return Address{packed & ((uint64_t{1} << kAddressBits) - 1)}; }
  uint64_t units() const { return packed >> kAddressBits & 0xffff; }
  Proof proof() const { return static_cast<Proof>(packed >> 56); }
};

struct LargeSeen {
  uint64_t address;
  LargePlace place;
};

// An entry, turned so that words are sorted by address.
uint64_t turned(uint64_t entry) { return entry << Index::kTagBits | entry >> kAddressBits; }
uint64_t turned_entry(uint64_t hash, Address address) {
  return address.value << Index::kTagBits | (hash & ((uint64_t{1} << Index::kTagBits) - 1));
}

}  // namespace

class Rebuilder {
 public:
  Rebuilder(Store& store, const media::Root& root, Rebuilt* out)
      : store_(store), log_(store.log_), root_(root), out_(out), segment_bytes_(log_.segment_bytes()) {}
  int run();

 private:
  static constexpr uint64_t kNeighbours = 64, kLivesAround = 64;
  struct Part {
    uint64_t segment;  // + 1; 0: not known
    bool sound;
  };
  struct Known {  // of a segment
    uint64_t life;
    uint32_t used;     // bytes
    uint32_t current;  // records
    bool sound;        // the state says so, in a sound part
  };

  uint64_t room() const { return segment_bytes_ - sizeof(media::StateLink); }
  uint64_t bytes_of_part(uint64_t part) const {
    return part + 1 < parts_.count() ? room() : root_.bytes - part * room();
  }
  void read(uint64_t segment, uint64_t bytes);
  bool is_part(uint64_t part) const;
  void follow(uint64_t part, uint64_t segment);
  int gather_parts();
  void find_parts();
  int gather_words();
  bool has(const GrowingArray<uint64_t>& words, uint64_t word) const {
    return std::binary_search(words.begin(), words.end(), word);
  }
  Proof proof_of(uint64_t entry) const;
  const Record* record_at(uint64_t at) const { return reinterpret_cast<const Record*>(memory_ + at); }
  bool sound_at(uint64_t segment, uint64_t at, uint64_t life) const {
    return segment_bytes_ - at >= sizeof(Record) &&
           log_.sound(record_at(at), address(segment, at), life, segment_bytes_ - at);
  }
  Address address(uint64_t segment, uint64_t at) const { return Address{(segment * segment_bytes_ + at) / kUnitBytes}; }
  void know_segments();
  int scan();
  int scan_segment(uint64_t segment);
  int note(const Record* record, Address address);
  int note_damaged(uint64_t segment, uint64_t from, uint64_t to);
  bool is_behind_the_state(uint64_t segment) const;
  bool begins_in(uint64_t segment, uint64_t life) const { return sound_at(segment, log_.first_at(segment), life); }
  uint64_t guess_life(uint64_t segment) const;
  bool is_newer(const Seen& one, const Seen& other) const;
  bool has_order(const Seen& one, const Seen& other) const;  // is_newer() knows, and does not guess
  bool same_open(uint64_t one, uint64_t other) const { return one - other + (1u << 31) < uint64_t{1} << 32; }
  uint64_t life_of(const Seen& seen) const { return known_[log_.segment_of(seen.address())].life; }
  template <class Visit>
  int each_key(Visit visit);
  int decide(const Seen* first, const Seen* last);
  int doubt(const Seen* first, const Seen* last);
  int take(const Seen& seen, bool doubtful);
  bool run_is_whole(const LargePlace& place) const;
  const LargeSeen* large_at(Address address) const;
  int fill();

  Store& store_;
  Log& log_;
  const media::Root& root_;
  Rebuilt* out_;
  const uint64_t segment_bytes_;
  GrowingArray<char> frame_;  // of one segment
  char* memory_ = nullptr;    //   its bytes
  GrowingArray<Part> parts_;
  GrowingArray<char> state_;              // its bytes; 0 where they are not known
  GrowingArray<uint64_t> words_, hints_;  // of sound parts, and of damaged ones: turned, sorted
  GrowingArray<Known> known_;
  GrowingArray<Seen> seen_;
  GrowingArray<LargeSeen> large_;
  GrowingArray<Seen> current_;
  uint64_t keys_ = 0;  // that are accounted for
};

// What cannot be read becomes bytes that no checksum fits.
void Rebuilder::read(uint64_t segment, uint64_t bytes) {
  const uint64_t begin = segment * segment_bytes_;
  if (log_.transfer(Op::kRead, begin, memory_, bytes) == 0) return;
  for (uint64_t at = 0; at < bytes; at += kBlockBytes) {
    if (log_.transfer(Op::kRead, begin + at, memory_ + at, kBlockBytes) < 0) memset(memory_ + at, 0, kBlockBytes);
  }
}

// ---- the parts of the state -----------------------------------------------------------------------------------------

// Whether the segment that was read is that part.
bool Rebuilder::is_part(uint64_t part) const {
  media::StateLink link;
  memcpy(&link, memory_, sizeof link);
  const uint64_t from = sizeof link.checksum, bytes = sizeof link + link.bytes - from;
  return link.bytes == bytes_of_part(part) && link.checksum == part_checksum(memory_ + from, bytes, part, root_.life);
}

// From `part` on, which lies in `segment` (+ 1), as far as links lead to the next. Where a part is damaged its bytes
// are hints, and its link, too.
void Rebuilder::follow(uint64_t part, uint64_t segment) {
  for (bool was_sound = true; part < parts_.count() && segment != 0 && segment <= log_.segments(); ++part) {
    if (parts_[part].sound) return;
    read(segment - 1, segment_bytes_);
    const bool sound = is_part(part);
    media::StateLink link;
    memcpy(&link, memory_, sizeof link);
    if (!sound && !was_sound && link.bytes != bytes_of_part(part)) return;
    parts_[part] = {segment, sound};
    memcpy(state_.begin() + part * room(), memory_ + sizeof(media::StateLink), bytes_of_part(part));
    segment = link.next;
    was_sound = sound;
  }
}

// Parts that no link leads to.
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
      if (!is_part(part)) continue;
      follow(part, segment + 1);
      break;
    }
  }
}

int Rebuilder::gather_parts() {
  const uint64_t most = log_.bytes();
  const uint64_t bytes = root_.bytes % kUnitBytes == 0 && root_.bytes <= most ? root_.bytes : 0;
  if (!parts_.fill((bytes + room() - 1) / room()) || !state_.fill(bytes)) return -ENOMEM;
  follow(0, root_.first);
  find_parts();
  for (const Part& part : parts_)
    if (!part.sound && !out_->parts.push(part.segment)) return -ENOMEM;
  return 0;
}

int Rebuilder::gather_words() {
  for (uint64_t at = log_.segments() * sizeof(media::SegmentEntry); at < state_.count(); at += kUnitBytes) {
    uint64_t word;
    memcpy(&word, state_.begin() + at, sizeof word);
    const Part& part = parts_[at / room()];
    if (word != 0 && !(part.sound ? words_ : hints_).push(turned(word))) return -ENOMEM;
  }
  std::sort(words_.begin(), words_.end());
  std::sort(hints_.begin(), hints_.end());
  return 0;
}

Proof Rebuilder::proof_of(uint64_t entry) const {
  if (has(words_, entry)) return Proof::kWord;
  if (has(hints_, entry)) return Proof::kHint;
  for (unsigned bit = 0; bit < 64 && hints_.count() != 0; ++bit)
    if (has(hints_, entry ^ uint64_t{1} << bit)) return Proof::kNear;
  return Proof::kNone;
}

// ---- records --------------------------------------------------------------------------------------------------------

// What the state says of each segment. A life that is only a hint is tried.
void Rebuilder::know_segments() {
  for (uint64_t i = 0; i < log_.segments(); ++i) {
    media::SegmentEntry entry;
    const uint64_t at = i * sizeof entry, last = at + sizeof entry - 1;
    if (last >= state_.count()) return;
    memcpy(&entry, state_.begin() + at, sizeof entry);
    const bool sound = parts_[at / room()].sound && parts_[last / room()].sound;
    if (sound && entry.kind != media::SegmentKind::kRecords)
      known_[i] = {0, 0, 0, true};
    else
      known_[i] = {entry.life, static_cast<uint32_t>(sound ? entry.used : segment_bytes_), 0, sound};
    if (known_[i].used > segment_bytes_) known_[i].used = 0;
  }
}

// A segment of the log that goes on behind the state: replay is for that.
bool Rebuilder::is_behind_the_state(uint64_t segment) const {
  if (root_.log == 0) return false;
  const media::BatchHeader* batch = log_.batch_at(root_.log, segment, memory_, log_.first_at(segment));
  return batch && batch->number >= root_.log_batch;
}

// Of the segment that was read; 0: nothing proves one.
uint64_t Rebuilder::guess_life(uint64_t segment) const {
  const uint64_t said = known_[segment].life;
  const auto* header = reinterpret_cast<const media::BatchHeader*>(record_at(log_.first_at(segment)) + 1);
  if (begins_in(segment, header->life)) return header->life;
  for (unsigned bit = 0; bit < 64; ++bit)
    if (begins_in(segment, said ^ uint64_t{1} << bit)) return said ^ uint64_t { 1 } << bit;
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
  const bool gone = record->type() == RecordType::kDeleted, large = record->type() == RecordType::kLarge;
  const uint64_t hash = gone    ? reinterpret_cast<const DeletedKey*>(record + 1)->hash
                        : large ? record->large().hash
                                : hash_of({record->key(), record->key_bytes});
  const Proof proof = gone ? Proof::kGone : proof_of(turned_entry(hash, address));
  const Seen seen{hash, address.value | uint64_t{record->units()} << kAddressBits | static_cast<uint64_t>(proof) << 56};
  if (!seen_.push(seen)) return -ENOMEM;
  return large && !large_.push({address.value, record->large()}) ? -ENOMEM : 0;
}

// Bytes in which no record is sound: a word that leads there is the entry of a record that is damaged; in a damaged
// part only where the key that stands there confirms it. (Words with tag 0 may be counts.)
int Rebuilder::note_damaged(uint64_t segment, uint64_t from, uint64_t to) {
  for (const GrowingArray<uint64_t>* words : {&words_, &hints_}) {
    const uint64_t* word = std::lower_bound(words->begin(), words->end(), turned_entry(0, address(segment, from)));
    for (; word != words->end() && *word < turned_entry(0, address(segment, to)); ++word) {
      const uint64_t at = (*word >> Index::kTagBits) * kUnitBytes - segment * segment_bytes_;
      const Record* record = record_at(at);
      const bool readable = record->type() == RecordType::kPair && segment_bytes_ - at >= sizeof(Record) &&
                            record->key_bytes <= segment_bytes_ - at - sizeof(Record);
      uint64_t hash = readable ? hash_of({record->key(), record->key_bytes}) : 0;
      const bool confirmed = readable && turned_entry(hash, address(segment, at)) == *word;
      if (!confirmed && (words == &hints_ || turned_entry(*word, Address{0}) == 0)) continue;
      if (!confirmed) hash = *word;  // of no key: a group of its own, and the entry is as it was
      if (!seen_.push({hash, address(segment, at).value | static_cast<uint64_t>(Proof::kLost) << 56})) return -ENOMEM;
    }
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
      at += record_at(at)->units() * kUnitBytes;
      end = static_cast<uint32_t>(at);
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
    if (root_.log != 0 && i + 1 == root_.log_segments[0])
      known.used = std::min(root_.log_at, static_cast<uint32_t>(segment_bytes_));
    else if (!known.sound && is_behind_the_state(i))
      known.used = 0;
    if (!known.sound && !begins_in(i, known.life)) {
      if (const uint64_t life = guess_life(i)) known.life = life;
      if (known.life == 0) known.used = 0;
    }
    if (const int status = scan_segment(i); status < 0) return status;
  }
  return 0;
}

// ---- which of them are current --------------------------------------------------------------------------------------

// Lives of one open are counted, of different opens not in order; the state's own is of the last.
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
  ++known_[log_.segment_of(seen.address())].current;
  ++keys_;
  return current_.push(seen) ? 0 : -ENOMEM;
}

// A key that words of the state name. Of several that may be meant the newest is.
int Rebuilder::decide(const Seen* first, const Seen* last) {
  const Seen* best = nullptr;
  bool ordered = true;
  for (const Seen* one = first; one != last; ++one) {
    if (one->proof() == Proof::kWord || one->proof() == Proof::kLost) return take(*one, false);
    if (one->proof() != Proof::kHint && one->proof() != Proof::kNear) continue;
    ordered = ordered && (!best || has_order(*one, *best));
    if (!best || is_newer(*one, *best)) best = one;
  }
  return best ? take(*best, !ordered) : 0;
}

// One that none names: its newest record whose pair can be read.
int Rebuilder::doubt(const Seen* first, const Seen* last) {
  const Seen *newest = nullptr, *gone = nullptr;
  for (const Seen* one = first; one != last; ++one) {
    if (one->proof() != Proof::kNone && one->proof() != Proof::kGone) return 0;
    const Seen*& best = one->proof() == Proof::kGone ? gone : newest;
    if (best && !is_newer(*one, *best)) continue;
    const LargeSeen* large = large_at(one->address());
    if (!large || run_is_whole(large->place)) best = one;
  }
  if (!newest || (gone && is_newer(*gone, *newest) && has_order(*gone, *newest))) return 0;
  return take(*newest, true);
}

const LargeSeen* Rebuilder::large_at(Address address) const {
  const auto before = [](const LargeSeen& one, uint64_t at) { return one.address < at; };
  const LargeSeen* found = std::lower_bound(large_.begin(), large_.end(), address.value, before);
  return found != large_.end() && found->address == address.value ? found : nullptr;
}

bool Rebuilder::run_is_whole(const LargePlace& place) const {
  char byte;
  for (uint64_t at = 0; at < place.value_at() + place.value_bytes; at += Log::kPartData)
    if (log_.read_run(place, at, &byte, 1) != 0) return false;
  return true;
}

// The log and the index, as the state would have filled them.
int Rebuilder::fill() {
  for (uint64_t i = 0; i < log_.segments(); ++i)
    if (known_[i].current != 0 || (known_[i].sound && known_[i].used != 0))
      log_.restore(i, SegmentState::kSealed, known_[i].life, 0, known_[i].used);
  for (const Seen& seen : current_) {
    const Address address = seen.address();
    if (const int status = store_.shard_of(seen.hash).index.insert(seen.hash, address); status < 0) return status;
    log_.add_live(address, seen.units());
    // Where that fails, its segments are another's, and the sweep says so.
    if (const LargeSeen* large = large_at(address)) (void)log_.restore_run(large->place);
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
  if (status = scan(); status < 0) return status;
  std::sort(seen_.begin(), seen_.end(), [](const Seen& a, const Seen& b) { return a.hash < b.hash; });
  std::sort(large_.begin(), large_.end(), [](const auto& a, const auto& b) { return a.address < b.address; });
  status = each_key([&](const Seen* first, const Seen* last) { return decide(first, last); });
  if (status == 0 && keys_ < root_.keys)
    status = each_key([&](const Seen* first, const Seen* last) { return doubt(first, last); });
  if (status == 0) status = fill();
  std::sort(out_->doubtful.begin(), out_->doubtful.end());
  out_->missing = root_.keys > keys_ ? root_.keys - keys_ : 0;
  return status;
}

int rebuild(Store& store, const media::Root& root, Rebuilt* out) {
  out->any = true;
  return Rebuilder(store, root, out).run();
}

}  // namespace lunar::kv
