// SPDX-License-Identifier: Apache-2.0
// The loader against images that no store wrote: fields of a sound image are changed and the
// checksums made right again, so that nothing but the checks of the fields themselves stands
// between them and the engine.
//
//   kv_fuzz [--images N]
//
// Whatever an image holds: opening refuses it by one line, or every operation ends, without a crash
// and with a value or an error. A forged value with a right checksum is a value; what is asked for
// is that nothing leaves the log's bounds.
#include <errno.h>

#include <algorithm>
#include <vector>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "kv/inspect.h"
#include "lun/volume/image_format.h"
#include "tests/kv/kv_support.h"
#include "tests/support/cases.h"
#include "tests/support/lun_device.h"
#include "tests/support/seed.h"

using namespace lunar;
using namespace lunar::kv;
namespace form = lunar::kv::media;

namespace {

using lunar_test::option;

constexpr uint64_t kBytes = 4 * kMiB, kSegment = 64 * kKiB, kKeys = 3000, kSlot = 4096;
constexpr uint64_t kPiecesTooMany = 1 << 20;  // for a log of kBytes

struct Counts {
  uint64_t images = 0, refused = 0, opened = 0, salvaged = 0, damages = 0;
};

class Image {
 public:
  explicit Image(uint64_t seed) : random_(seed) {}
  void make();
  void restore() { memory = sound_; }
  void mutate();
  // What each field of a saved state may not be, one after the other: nullptr when there is no case
  // `number`.
  const char* forge(unsigned number);
  // What a record may not be that the index leads to; case 0 is sound. nullptr: there is no case
  // `number`.
  const char* forge_record(unsigned number);
  // The same of pieces in hand, of which a sound image that was closed names none.
  const char* forge_in_hand(unsigned number);
  std::vector<char> memory = std::vector<char>(kBytes);

 private:
  struct Link {
    uint64_t segment, number;
  };
  template <class T>
  T read(uint64_t at) const {
    T out;
    memcpy(&out, memory.data() + at, sizeof out);
    return out;
  }
  template <class T>
  void write(uint64_t at, const T& value) {
    memcpy(memory.data() + at, &value, sizeof value);
  }
  static uint64_t place(uint64_t segment) { return form::kHeadBytes + segment * kSegment; }
  void learn();
  void seal_link(const Link& link);
  void seal_root();
  void write_state(uint64_t at, uint64_t value, uint64_t bytes);
  void change_word(uint64_t at, uint64_t bytes);
  void seal_record(uint64_t segment, uint64_t offset, uint64_t life);
  void mutate_superblock();
  void mutate_root();
  void mutate_link();
  void mutate_record();

  struct Place {
    uint64_t segment, offset, life;
    RecordType type;
  };
  kv_test::Random random_;
  std::vector<char> sound_;
  std::string state_;
  std::vector<Link> links_;
  std::vector<Place> records_, large_;
  uint64_t back_ = 0, life_ = 0;
  unsigned newest_ = 0;
};

StoreOptions options_for(Device* device, Contents contents) {
  StoreOptions options;
  options.device = device;
  options.contents = contents;
  options.log_bytes = 0;
  options.segment_bytes = kSegment;
  options.dram_bytes = 4 * kMiB;
  options.shards = 4;
  options.expected_keys = 16;
  return options;
}

void Image::make() {
  lunar_test::MemoryDevice device(memory.data(), kBytes);
  Store* store = kv_test::open_store(options_for(&device, Contents::kNew));
  std::string value;
  for (uint64_t key = 0; key < kKeys; ++key) {
    kv_test::fill(&value, key, 1, key % 20 == 1 ? 4096 : random_.below(key % 50 == 0 ? 3000 : 200));
    REQUIRE(store->set({&key, sizeof key}, kv_test::bytes_of(value)) == 0);
  }
  for (uint64_t key = kKeys; key < kKeys + 6; ++key) {
    kv_test::fill(&value, key, 1, 5000 + random_.below(120'000));
    REQUIRE(store->set({&key, sizeof key}, kv_test::bytes_of(value)) == 0, "set of a large pair");
  }
  for (uint64_t key = 0; key < kKeys; key += 3) (void)store->del({&key, sizeof key});
  REQUIRE(store->flush() == 0);
  store->close();
  sound_ = memory;
  learn();
}

// Where links and records lie.
void Image::learn() {
  const auto super = read<form::Superblock>(0);
  back_ = super.back_offset;
  const auto a = read<lunar::media::ImageHeader>(form::kFrontRootsAt);
  const auto b = read<lunar::media::ImageHeader>(form::kFrontRootsAt + kSlot);
  newest_ = a.sequence > b.sequence ? 0 : 1;
  const auto root = read<form::Root>(form::kFrontRootsAt + newest_ * kSlot + sizeof a);
  life_ = root.life;
  std::string state;
  for (uint64_t next = root.first, number = 0; next; ++number) {
    const auto link = read<form::StateLink>(place(next - 1));
    links_.push_back({next - 1, number});
    state.append(memory.data() + place(next - 1) + sizeof link, link.bytes);
    next = link.next;
  }
  REQUIRE(state.size() == root.bytes, "the chain of links is not understood");
  state_ = state;
  for (uint64_t i = 0; i < super.segment_count; ++i) {
    form::SegmentEntry entry;
    memcpy(&entry, state.data() + i * sizeof entry, sizeof entry);
    if (entry.kind != form::SegmentKind::kRecords) continue;
    for (uint64_t at = i == 0 ? kUnitBytes : 0; at < entry.used;) {
      const auto* record = reinterpret_cast<const Record*>(memory.data() + place(i) + at);
      REQUIRE(record->checksum ==
                  record_checksum(record, Address{(i * kSegment + at) / kUnitBytes}, entry.life),
              "records are not understood");
      (record->type() == RecordType::kLarge ? large_ : records_)
          .push_back({i, at, entry.life, record->type()});
      at += record->span();
    }
  }
  REQUIRE(!links_.empty() && records_.size() >= kKeys && large_.size() >= 6,
          "the image lacks something");
}

// One aligned word of [at, at + bytes), to what breaks most.
void Image::change_word(uint64_t at, uint64_t bytes) {
  const bool wide = random_.below(2) != 0 && bytes >= 8;
  const uint64_t size = wide ? 8 : 4, where = at + random_.below(bytes / size) * size;
  uint64_t value = 0;
  memcpy(&value, memory.data() + where, size);
  switch (random_.below(8)) {
    case 0:
      value = 0;
      break;
    case 1:
      value = UINT64_MAX;
      break;
    case 2:
      ++value;
      break;
    case 3:
      --value;
      break;
    case 4:
      value ^= uint64_t{1} << random_.below(64);
      break;
    case 5:
      value = random_.below(kBytes / 8 * 2);
      break;
    case 6:
      value = uint64_t{1} << random_.below(64);
      break;
    default:
      value = random_.next();
  }
  memcpy(memory.data() + where, &value, size);
}

void Image::mutate_superblock() {
  const uint64_t at = offsetof(form::Superblock, device_bytes);
  change_word(at, offsetof(form::Superblock, reserved) - at);
  auto super = read<form::Superblock>(0);
  super.checksum = XXH3_64bits(&super, offsetof(form::Superblock, checksum));
  write(0, super);
  write(form::kSecondSuperAt, super);
}

void Image::mutate_root() {
  const uint64_t front = form::kFrontRootsAt + newest_ * kSlot;
  const auto header = read<lunar::media::ImageHeader>(front);
  random_.below(8) == 0
      ? change_word(front + offsetof(lunar::media::ImageHeader, body_bytes), sizeof(uint64_t))
      : change_word(front + sizeof header, sizeof(form::Root));
  seal_root();
}

void Image::seal_root() {
  const uint64_t front = form::kFrontRootsAt + newest_ * kSlot;
  auto header = read<lunar::media::ImageHeader>(front);
  header.body_checksum = XXH3_64bits(memory.data() + front + sizeof header, sizeof(form::Root));
  header.checksum = XXH3_64bits(&header, offsetof(lunar::media::ImageHeader, checksum));
  write(front, header);
  memcpy(memory.data() + back_ + newest_ * kSlot, memory.data() + front, kSlot);
}

void Image::mutate_link() {
  const Link link = links_[random_.below(links_.size())];
  const uint64_t begin = place(link.segment), bytes = read<form::StateLink>(begin).bytes;
  const uint64_t used = bytes < 8 || bytes > kSegment - sizeof(form::StateLink)
                            ? kSegment
                            : sizeof(form::StateLink) + bytes;
  const uint64_t table = kBytes / kSegment * sizeof(form::SegmentEntry);
  switch (random_.below(4)) {
    case 0:
      change_word(begin + sizeof(uint64_t), 16);  // next, bytes
      break;
    case 1:
      change_word(begin + sizeof(form::StateLink), std::min(table, used - sizeof(form::StateLink)));
      break;
    default:
      change_word(begin + sizeof(form::StateLink), used - sizeof(form::StateLink));
  }
  seal_link(link);
}

void Image::seal_link(const Link& link) {
  const uint64_t begin = place(link.segment), after = read<form::StateLink>(begin).bytes;
  const uint64_t covered =
      after > kSegment - sizeof(form::StateLink) ? kSegment : sizeof(form::StateLink) + after;
  write(begin, part_checksum(memory.data() + begin + 8, covered - 8, link.number, life_));
}

void Image::mutate_record() {
  const auto& list = random_.below(2) ? large_ : records_;
  const Place where = list[random_.below(list.size())];
  const uint64_t at = place(where.segment) + where.offset;
  const auto* record = reinterpret_cast<const Record*>(memory.data() + at);
  const uint64_t value = where.type == RecordType::kLarge ? sizeof(Pieces) : sizeof(Body);
  change_word(
      at + offsetof(Record, size_type),
      where.type == RecordType::kLarge || record->has_body() ? 12 + sizeof(uint64_t) + value : 12);
  seal_record(where.segment, where.offset, where.life);
}

void Image::seal_record(uint64_t segment, uint64_t offset, uint64_t life) {
  auto* record = reinterpret_cast<Record*>(memory.data() + place(segment) + offset);
  if (record->units() * kUnitBytes < sizeof(Record) ||
      record->units() * kUnitBytes > kSegment - offset)
    return;
  record->checksum =
      record_checksum(record, Address{(segment * kSegment + offset) / kUnitBytes}, life);
}

const char* Image::forge_record(unsigned number) {
  struct Case {
    const char* what;
    bool large;
    RecordType type;
  };
  constexpr Case kCases[] = {
      {"as it was", false, RecordType::kPair},
      {"a mark", false, RecordType::kMark},
      {"a head without pieces", false, RecordType::kLarge},
      {"a delete", false, RecordType::kDeleted},
      {"no room for what it replaces", false, RecordType::kPair},
      {"a mark instead of a head", true, RecordType::kMark},
      {"a pair instead of a head", true, RecordType::kPair},
      {"a delete instead of a head", true, RecordType::kDeleted},
      {"more value than a log holds", true, RecordType::kLarge},
      {"pieces that are shorter than a set makes them", true, RecordType::kLarge}};
  if (number == std::size(kCases)) return nullptr;
  const Case& now = kCases[number];
  const Place& where = now.large ? large_[0] : records_[1];  // of what was not deleted
  auto* record = reinterpret_cast<Record*>(memory.data() + place(where.segment) + where.offset);
  record->size_type = (record->size_type & ~3u) | static_cast<uint32_t>(now.type);
  if (now.type == RecordType::kDeleted) {
    record->key_bytes = sizeof(DeletedKey);
    record->value_bytes = 0;
  }
  const uint64_t far_away = uint64_t{1} << 36;
  const uint32_t short_pieces = 16;
  if (number == 4) record->size_type |= RecordNotes::kReplacesLarge;
  if (number == 8) memcpy(record->value() + offsetof(Pieces, value_bytes), &far_away, 8);
  if (number == 9) memcpy(record->value() + offsetof(Pieces, piece_bytes), &short_pieces, 4);
  seal_record(where.segment, where.offset, where.life);
  return now.what;
}

void Image::write_state(uint64_t at, uint64_t value, uint64_t bytes) {
  constexpr uint64_t kRoom = form::link_room(kSegment);
  const Link& link = links_[at / kRoom];
  memcpy(memory.data() + place(link.segment) + sizeof(form::StateLink) + at % kRoom, &value, bytes);
  seal_link(link);
}

const char* Image::forge(unsigned number) {
  const auto super = read<form::Superblock>(0);
  uint64_t segment = 0, entry = super.segment_count * sizeof(form::SegmentEntry) +
                                sizeof(uint64_t) + sizeof(form::ShardHeader);
  form::SegmentEntry table;
  for (;; ++segment) {  // one of records, not to the last byte: behind its records would be the
                        // next one's
    memcpy(&table, state_.data() + segment * sizeof table, sizeof table);
    if (table.kind == form::SegmentKind::kRecords && table.used > kSegment / 2 &&
        table.used < kSegment)
      break;
  }
  uint64_t n = 0, word = 0;
  for (; memcpy(&n, state_.data() + entry, sizeof n), n == 0;)
    entry += sizeof n;  // the first bucket that is not empty
  entry += sizeof n;
  memcpy(&word, state_.data() + entry, sizeof word);
  const uint64_t tag = word >> kAddressBits << kAddressBits, row = segment * sizeof table;
  const uint64_t live = row + offsetof(form::SegmentEntry, live),
                 used = row + offsetof(form::SegmentEntry, used);
  switch (number) {
    case 0:
      return write_state(entry, tag, 8), "address 0";
    case 1:
      return write_state(entry, tag | super.segment_count * kSegment / kUnitBytes, 8),
             "an address behind the log";
    case 2:
      return write_state(entry, tag | (segment * kSegment + table.used) / kUnitBytes, 8),
             "an address in no record";
    case 3:
      return write_state(live, table.used / kUnitBytes + 1, 4), "more lives than there is";
    case 4:
      return write_state(live, 1, 4), "less lives than the index leads to";
    case 5:
      return write_state(used, kSegment + kUnitBytes, 4), "more used than a segment has";
    case 6:
      return write_state(used, table.used + 1, 4), "a part of a unit";
    case 7:
      return write_state(row + offsetof(form::SegmentEntry, kind), 3, 4),
             "a kind that there is not";
    default:
      return nullptr;
  }
}

const char* Image::forge_in_hand(unsigned number) {
  const form::InHand sound{1, 7, 3}, cases[] = {sound, {1, 7, kPiecesTooMany}, {1, 0, 3}};
  constexpr const char* kWhat[] = {"pieces in hand", "more pieces in hand than a log holds",
                                   "pieces in hand that have no id"};
  if (number == std::size(cases)) return nullptr;
  const uint64_t at = read<form::Superblock>(0).segment_count * sizeof(form::SegmentEntry), one = 1;
  std::string state = state_;
  memcpy(&state[at], &one, sizeof one);
  state.insert(at + sizeof one, reinterpret_cast<const char*>(&cases[number]), sizeof sound);
  const uint64_t begin = place(links_[0].segment), bytes = state.size();
  REQUIRE(links_.size() == 1 && bytes <= form::link_room(kSegment),
          "the state has no room for a hand");
  write(begin + offsetof(form::StateLink, bytes), bytes);
  memcpy(memory.data() + begin + sizeof(form::StateLink), state.data(), bytes);
  seal_link(links_[0]);
  const uint64_t root = form::kFrontRootsAt + newest_ * kSlot + sizeof(lunar::media::ImageHeader);
  write(root + offsetof(form::Root, bytes), bytes);
  seal_root();
  return kWhat[number];
}

void Image::mutate() {
  for (uint64_t n = 1 + random_.below(3); n; --n) {
    const uint64_t what = random_.below(16);
    if (what == 0)
      mutate_superblock();
    else if (what < 3)
      mutate_root();
    else if (what < 11)
      mutate_link();
    else
      mutate_record();
  }
}

bool known_error(int64_t status) {
  for (const int error : {EBADMSG, ENOENT, ENOSPC, ENOMEM, EIO, EINVAL, EPROTONOSUPPORT, EROFS}) {
    if (status == -error) return true;
  }
  return false;
}

void expect(int64_t status, const char* what) {
  if (status < 0 && !known_error(status)) FAIL(std::string(what) + ": " + std::to_string(status));
}

void read_all(Store* store) {
  char buffer[256];
  for (uint64_t key = 0; key < kKeys + 6; ++key) {
    const int64_t length = store->get({&key, sizeof key}, buffer, sizeof buffer, key % 7);
    expect(length, "get");
    REQUIRE(length <= static_cast<int64_t>(kPairBytesMax), "a length beyond all that can be");
  }
  expect(store->random(buffer, sizeof buffer), "random");
  Walk* walk = nullptr;
  REQUIRE(Walk::open(store, &walk) == 0);
  for (uint64_t steps = 0;; ++steps) {
    const int64_t length = walk->next(buffer, sizeof buffer);
    if (length == -ENOENT) break;
    expect(length, "walk");
    REQUIRE(steps <= 4 * kKeys, "a walk without an end");
  }
  walk->close();
}

// Replaces and deletes what there is, until segments are cleaned, saved and used again.
void change_all(Store* store) {
  std::string value;
  for (uint64_t key = 0; key < kKeys + 6; ++key) {
    kv_test::fill(&value, key, 2, key % 100 == 0 ? 8000 : 100);
    expect(key % 5 == 0 ? store->del({&key, sizeof key})
                        : store->set({&key, sizeof key}, kv_test::bytes_of(value)),
           "change");
  }
  expect(store->flush(), "flush");
  expect(store->compact(), "compact");
  ErrorText why;
  expect(store->validate(&why), "validate");
}

// Durable sets and deletes over what an image holds, then a crash: what one open took, the next one
// opens.
void crash_durably(std::vector<char>* memory) {
  lunar_test::MemoryDevice device(memory->data(), kBytes);
  StoreOptions options = options_for(&device, Contents::kKept);
  options.durability = Durability::kEach;
  ErrorText why;
  Store* store = nullptr;
  if (Store::open(options, &store, &why) < 0) return;
  std::string value;
  for (uint64_t key = kKeys + 6; key-- > kKeys - 40;) {
    kv_test::fill(&value, key, 3, key % 3 == 0 ? 8000 : 100);
    expect(key % 2 == 0 ? store->del({&key, sizeof key})
                        : store->set({&key, sizeof key}, kv_test::bytes_of(value)),
           "durable change");
  }
  std::vector<char> crashed = *memory;
  store->close();
  lunar_test::MemoryDevice left(crashed.data(), kBytes);
  options.device = &left;
  if (const int status = Store::open(options, &store, &why); status < 0)
    FAIL(std::string("after durable changes and a crash: ") + why.text);
  read_all(store);
  store->close();
}

// The same by salvage, which gives what it can of anything: what it opens comes to an end, too.
void use_salvaged(std::vector<char>* memory, Counts* counts) {
  lunar_test::MemoryDevice device(memory->data(), kBytes);
  StoreOptions options = options_for(&device, Contents::kKept);
  options.read_only = options.salvage = true;
  ErrorText why;
  Store* store = nullptr;
  if (const int status = Store::open(options, &store, &why); status < 0) {
    expect(status, "salvage");
    REQUIRE(why.text[0], "a refusal without a word");
    return;
  }
  kv::CheckReport report;
  Sweep sweep;
  sweep.on_damage = [](void*, const Damage&) {};
  sweep.on_pair = [](void*, Bytes, Bytes) { return true; };
  REQUIRE(store->sweep(sweep, &report) >= 0, "sweep of what was salvaged");
  read_all(store);
  store->close();
  ++counts->salvaged;
}

// A log behind the state that holds a large value, and behind that other batches, so that its
// records are not the end.
class ForgedLog {
 public:
  ForgedLog();
  // nullptr: there is no case `number`. Case 0 is the sound log.
  const char* forge(unsigned number);
  std::vector<char> memory = std::vector<char>(kBytes);

 private:
  struct Place {
    uint64_t segment = 0, offset = 0, life = 0;
  };
  void learn();
  void learn_batch(uint64_t segment, uint64_t from);
  Record* record_at(const Place& place) {
    return reinterpret_cast<Record*>(memory.data() + form::kHeadBytes + place.segment * kSegment +
                                     place.offset);
  }
  static Address address_of(const Place& place) {
    return Address{(place.segment * kSegment + place.offset) / kUnitBytes};
  }
  std::vector<char> sound_;
  std::vector<Place> pieces_;
  Place head_, piece_;  // of the last set of the large value
  uint64_t newest_ = 0;
};

ForgedLog::ForgedLog() {
  lunar_test::MemoryDevice device(memory.data(), kBytes);
  StoreOptions options = options_for(&device, Contents::kNew);
  options.durability = Durability::kEach;
  Store* store = kv_test::open_store(options);
  std::string value;
  for (uint64_t version = 0; version < 3; ++version) {
    kv_test::fill(&value, 1, version, 40'000);
    REQUIRE(store->set({"large", 5}, kv_test::bytes_of(value)) == 0, "durable set of a large pair");
  }
  for (const char* key : {"a", "b", "c"}) REQUIRE(store->set({key, 1}, {"1", 1}) == 0);
  sound_ = memory;
  store->close();
  memory = sound_;
  learn();
}

void ForgedLog::learn() {
  const uint64_t segments = reinterpret_cast<const form::Superblock*>(memory.data())->segment_count;
  for (uint64_t segment = 0; segment < segments; ++segment)
    for (uint64_t block = 0; block < kSegment; block += form::kBlockBytes)
      learn_batch(segment, segment == 0 && block == 0 ? kUnitBytes : block);
  REQUIRE(newest_ != 0, "the log holds no head");
  const uint64_t id = record_at(head_)->pieces().id;
  for (const Place& place : pieces_)
    if (reinterpret_cast<const PieceKey*>(record_at(place)->key())->id == id) piece_ = place;
  REQUIRE(piece_.life != 0 && (record_at(head_)->size_type & RecordNotes::kReplacesLarge),
          "the log lacks something");
}

void ForgedLog::learn_batch(uint64_t segment, uint64_t from) {
  const Record* mark = record_at({segment, from, 0});
  form::BatchHeader batch;
  memcpy(&batch, mark + 1, sizeof batch);
  const Place first{segment, from, batch.life};
  if (mark->type() != RecordType::kMark ||
      mark->units() * kUnitBytes != sizeof *mark + sizeof batch)
    return;
  if (mark->checksum != record_checksum(mark, address_of(first), batch.life)) return;
  for (Place place = first; place.offset < from + batch.bytes;
       place.offset += record_at(place)->span()) {
    const Record* record = record_at(place);
    if (record->type() == RecordType::kPair && record->is_piece()) pieces_.push_back(place);
    if (record->type() != RecordType::kLarge || batch.number < newest_) continue;
    head_ = place;
    newest_ = batch.number;
  }
}

const char* ForgedLog::forge(unsigned number) {
  memory = sound_;
  Record *head = record_at(head_), *piece = record_at(piece_);
  auto* key = reinterpret_cast<PieceKey*>(piece + 1);
  auto* pieces = const_cast<Pieces*>(&head->pieces());
  auto* replaced = reinterpret_cast<ReplacedLarge*>(reinterpret_cast<char*>(head->replaced()) -
                                                    offsetof(ReplacedLarge, record));
  const char* what = nullptr;
  if (number == 0) what = "a sound log";
  if (number == 1) what = "a piece beyond what a log holds", key->number = kPiecesTooMany;
  if (number == 2) what = "a piece with the last of all numbers", key->number = UINT64_MAX;
  if (number == 3) what = "a piece without an id", key->id = 0;
  if (number == 4) what = "more replaced pieces than a log holds", replaced->count = kPiecesTooMany;
  if (number == 5)
    what = "pieces that are shorter than a set makes them", pieces->piece_bytes = kUnitBytes;
  if (number == 6)
    what = "no room for what it replaces", piece->size_type |= RecordNotes::kReplacesLarge;
  for (const Place& place : {head_, piece_})
    record_at(place)->checksum = record_checksum(record_at(place), address_of(place), place.life);
  return what;
}

// Whether it could be opened.
bool use(std::vector<char>* memory, bool read_only, Counts* counts) {
  lunar_test::MemoryDevice device(memory->data(), kBytes);
  StoreOptions options = options_for(&device, Contents::kKept);
  options.read_only = read_only;
  ErrorText why;
  Store* store = nullptr;
  const int status = Store::open(options, &store, &why);
  if (status < 0) {
    expect(status, "open");
    REQUIRE(why.text[0], "a refusal without a word");
    return false;
  }
  if (read_only) {
    kv::CheckReport report;
    Sweep sweep;
    sweep.on_damage = [](void*, const Damage&) {};
    REQUIRE(store->sweep(sweep, &report) >= 0);
    counts->damages += report.damages;
    uint64_t pairs = 0;
    sweep.context = &pairs;
    sweep.on_pair = [](void* sum, Bytes, Bytes) { return ++*static_cast<uint64_t*>(sum) != 0; };
    REQUIRE(store->sweep(sweep, &report) >= 0 && pairs == report.records + report.large_pairs);
    StoreInfo info;
    store->info(&info);
  }
  read_all(store);
  if (!read_only) {
    change_all(store);
    read_all(store);
  }
  store->close();
  return true;
}

// 0 or what an open for writing says.
int opened_as(std::vector<char>* memory) {
  lunar_test::MemoryDevice device(memory->data(), kBytes);
  ErrorText why;
  Store* store = nullptr;
  const int status = Store::open(options_for(&device, Contents::kKept), &store, &why);
  if (status == 0) store->close();
  return status;
}

}  // namespace

TEST_CASE("kv-fuzz") {
  const uint64_t images = option("--images", 400);
  Counts counts;
  Image image(tier::run_seed());
  image.make();
  REQUIRE(use(&image.memory, true, &counts) && counts.damages == 0, "the sound image is not");
  for (unsigned number = 0;; ++number) {
    image.restore();
    const char* what = image.forge(number);
    if (!what) break;
    if (opened_as(&image.memory) != -EBADMSG) FAIL(what);
  }
  for (unsigned number = 0;; ++number) {
    image.restore();
    const char* what = image.forge_in_hand(number);
    if (!what) break;
    if (opened_as(&image.memory) != (number == 0 ? 0 : -EBADMSG)) FAIL(what);
  }
  ForgedLog log;
  for (unsigned number = 0; const char* what = log.forge(number); ++number)
    if (opened_as(&log.memory) != (number == 0 ? 0 : -EBADMSG)) FAIL(what);
  for (unsigned number = 0;; ++number) {
    image.restore();
    const char* what = image.forge_record(number);
    if (!what) break;
    const uint64_t damages = counts.damages;
    std::vector<char> copy = image.memory;
    crash_durably(&copy);
    if (!use(&image.memory, true, &counts)) FAIL(std::string(what) + " refuses the store");
    if ((counts.damages == damages) != (number == 0)) FAIL(std::string(what) + " is not named");
    if (!use(&image.memory, false, &counts)) FAIL(std::string(what) + " refuses the store");
  }
  for (; counts.images < images; ++counts.images) {
    image.restore();
    image.mutate();
    const std::vector<char> before = image.memory;
    const bool opened = use(&image.memory, true, &counts);
    use_salvaged(&image.memory, &counts);
    std::vector<char> copy = before;
    crash_durably(&copy);
    REQUIRE(image.memory == before, "a store that was opened for reading was written to");
    ++(use(&image.memory, false, &counts) ? counts.opened : counts.refused);
    // What it left may be damaged, but is no worse to open.
    if (opened) (void)use(&image.memory, false, &counts);
  }
  printf("%lu images: %lu refused, %lu opened, %lu salvaged, %lu damages named\n", images,
         counts.refused, counts.opened, counts.salvaged, counts.damages);
  if (images >= 100 &&
      (counts.refused < images / 10 || counts.opened < images / 10 || counts.damages == 0))
    FAIL("the changes are all of one kind");
}
