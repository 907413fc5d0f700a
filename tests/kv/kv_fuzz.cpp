// SPDX-License-Identifier: Apache-2.0
// The loader against images that no store wrote: fields of a sound image are changed and the
// checksums made right again, so that nothing but the checks of the fields themselves stands
// between them and the engine.
//
//   kv_fuzz [--images N]
//
// For any image, either the open refuses it by one line, or every operation ends without a crash
// and gives a value or an error. A forged value with a right checksum is a value. No access may
// leave the log's bounds.
#include <errno.h>

#include <algorithm>
#include <vector>

#include "tests/kv/image_map.h"
#include "tests/kv/kv_support.h"
#include "tests/support/cases.h"
#include "tests/support/seed.h"

using namespace lunar;
using namespace lunar::kv;
using namespace kv_test;

namespace {

using lunar_test::option;

constexpr uint64_t kBytes = 4 * kMiB, kSegment = 64 * kKiB, kKeys = 3000;
constexpr uint64_t kPiecesTooMany = 1 << 20;  // for a log of kBytes

struct Counts {
  uint64_t images = 0, refused = 0, opened = 0, salvaged = 0, damages = 0;
};

class Image : public Bed {
 public:
  explicit Image(uint64_t seed);
  void restore() { memory = sound_; }
  void mutate();
  // Gives one field of a saved state a wrong value; returns a description, or nullptr if there is
  // no case `number`.
  const char* forge(unsigned number);
  // Makes a record that the index leads to wrong; case 0 is sound. nullptr: there is no case
  // `number`.
  const char* forge_record(unsigned number);
  // The same for unreferenced pieces. A sound image that was closed names none.
  const char* forge_unreferenced(unsigned number);

 private:
  void make();
  void seal_link(uint64_t number);
  void seal_root();
  void write_state(uint64_t at, uint64_t value, uint64_t bytes);
  void change_word(uint64_t at, uint64_t bytes);
  void seal_record(const ImageMap::Place& where);
  void mutate_superblock();
  void mutate_root();
  void mutate_link();
  void mutate_record();

  Random random_;
  const std::vector<char> sound_;
  const ImageMap map_;
  std::vector<ImageMap::Place> records_, large_;
};

Image::Image(uint64_t seed) : Bed(kBytes), random_(seed), sound_((make(), memory)), map_(sound_) {
  for (const ImageMap::Place& place : map_.records(sound_))
    (place.type == RecordType::kLarge ? large_ : records_).push_back(place);
  REQUIRE(records_.size() >= kKeys && large_.size() >= 6, "the image lacks something");
}

void Image::make() {
  open(Contents::kNew);
  std::string value;
  for (uint64_t key = 0; key < kKeys; ++key) {
    fill(&value, key, 1, key % 20 == 1 ? 4096 : random_.below(key % 50 == 0 ? 3000 : 200));
    REQUIRE(store->set({&key, sizeof key}, bytes_of(value)) == 0);
  }
  for (uint64_t key = kKeys; key < kKeys + 6; ++key) {
    fill(&value, key, 1, 5000 + random_.below(120'000));
    REQUIRE(store->set({&key, sizeof key}, bytes_of(value)) == 0, "set of a large pair");
  }
  for (uint64_t key = 0; key < kKeys; key += 3) (void)store->del({&key, sizeof key});
  REQUIRE(store->flush() == 0);
  close();
}

// Changes one aligned word of [at, at + bytes) to a value that is likely to break something.
void Image::change_word(uint64_t at, uint64_t bytes) {
  const bool wide = random_.below(2) != 0 && bytes >= 8;
  const uint64_t size = wide ? 8 : 4, where = at + random_.below(bytes / size) * size;
  uint64_t value = 0;
  memcpy(&value, memory.data() + where, size);
  const uint64_t values[] = {0,
                             UINT64_MAX,
                             value + 1,
                             value - 1,
                             value ^ uint64_t{1} << random_.below(64),
                             random_.below(kBytes / 8 * 2),
                             uint64_t{1} << random_.below(64),
                             random_.next()};
  memcpy(memory.data() + where, &values[random_.below(std::size(values))], size);
}

void Image::mutate_superblock() {
  const uint64_t at = offsetof(form::Superblock, device_bytes);
  change_word(at, offsetof(form::Superblock, reserved) - at);
  seal_superblock(&memory, read_at<form::Superblock>(memory, 0));
}

void Image::mutate_root() {
  random_.below(8) == 0
      ? change_word(map_.root_at + offsetof(ImageHeader, body_bytes), sizeof(uint64_t))
      : change_word(map_.root_at + sizeof(ImageHeader), sizeof(form::Root));
  seal_root();
}

void Image::seal_root() {
  auto header = read_at<ImageHeader>(memory, map_.root_at);
  char* root = memory.data() + map_.root_at;
  header.body_checksum = XXH3_64bits(root + sizeof header, sizeof(form::Root));
  header.checksum = XXH3_64bits(&header, offsetof(ImageHeader, checksum));
  write_at(&memory, map_.root_at, header);
  memcpy(memory.data() + map_.super.back_offset + map_.root_at - form::kFrontRootsAt, root,
         form::kBlockBytes);
}

void Image::mutate_link() {
  const uint64_t number = random_.below(map_.links.size()), begin = map_.links[number].at,
                 bytes = read_at<form::StateLink>(memory, begin).bytes;
  const uint64_t most = kSegment - sizeof(form::StateLink),
                 used = bytes < 8 || bytes > most ? most : bytes;
  const uint64_t table = kBytes / kSegment * sizeof(form::SegmentEntry);
  switch (random_.below(4)) {
    case 0:
      change_word(begin + sizeof(uint64_t), 16);  // next, bytes
      break;
    case 1:
      change_word(begin + sizeof(form::StateLink), std::min(table, used));
      break;
    default:
      change_word(begin + sizeof(form::StateLink), used);
  }
  seal_link(number);
}

void Image::seal_link(uint64_t number) {
  const uint64_t begin = map_.links[number].at,
                 after = read_at<form::StateLink>(memory, begin).bytes;
  const uint64_t covered =
      after > kSegment - sizeof(form::StateLink) ? kSegment : sizeof(form::StateLink) + after;
  write_at(&memory, begin,
           part_checksum(memory.data() + begin + 8, covered - 8, number, map_.root.life));
}

void Image::mutate_record() {
  const auto& list = random_.below(2) ? large_ : records_;
  const ImageMap::Place where = list[random_.below(list.size())];
  const uint64_t at = map_.place(where);
  const auto* record = reinterpret_cast<const Record*>(memory.data() + at);
  const uint64_t value = where.type == RecordType::kLarge ? sizeof(Pieces) : sizeof(Body);
  change_word(
      at + offsetof(Record, size_type),
      where.type == RecordType::kLarge || record->has_body() ? 12 + sizeof(uint64_t) + value : 12);
  seal_record(where);
}

void Image::seal_record(const ImageMap::Place& where) {
  auto* record = reinterpret_cast<Record*>(memory.data() + map_.place(where));
  if (record->units() * kUnitBytes < sizeof(Record) ||
      record->units() * kUnitBytes > kSegment - where.offset)
    return;
  record->checksum = record_checksum(record, map_.address(where), where.life);
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
  const ImageMap::Place& where = now.large ? large_[0] : records_[1];  // of what was not deleted
  auto* record = reinterpret_cast<Record*>(memory.data() + map_.place(where));
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
  seal_record(where);
  return now.what;
}

void Image::write_state(uint64_t at, uint64_t value, uint64_t bytes) {
  constexpr uint64_t kRoom = form::link_room(kSegment);
  memcpy(memory.data() + map_.links[at / kRoom].at + sizeof(form::StateLink) + at % kRoom, &value,
         bytes);
  seal_link(at / kRoom);
}

const char* Image::forge(unsigned number) {
  uint64_t segment =
      0;  // one of records, not to the last byte: behind them the next one's would be
  form::SegmentEntry table = map_.entry(0);
  while (table.kind != form::SegmentKind::kRecords || table.used <= kSegment / 2 ||
         table.used >= kSegment)
    table = map_.entry(++segment);
  const auto word_at = [&](uint64_t at) {
    uint64_t word;
    memcpy(&word, map_.state.data() + at, sizeof word);
    return word;
  };
  uint64_t entry = map_.super.segment_count * sizeof(form::SegmentEntry) + sizeof(uint64_t) +
                   sizeof(form::ShardHeader);
  while (word_at(entry) == 0) entry += sizeof(uint64_t);  // the first bucket that is not empty
  entry += sizeof(uint64_t);
  const uint64_t tag = word_at(entry) >> kAddressBits << kAddressBits, row = segment * sizeof table,
                 live = row + offsetof(form::SegmentEntry, live),
                 used = row + offsetof(form::SegmentEntry, used);
  const struct {
    const char* what;
    uint64_t at, value, bytes;
  } cases[] = {
      {"address 0", entry, tag, 8},
      {"an address behind the log", entry, tag | map_.super.segment_count * kSegment / kUnitBytes,
       8},
      {"an address in no record", entry, tag | (segment * kSegment + table.used) / kUnitBytes, 8},
      {"more lives than there is", live, table.used / kUnitBytes + 1, 4},
      {"less lives than the index leads to", live, 1, 4},
      {"more used than a segment has", used, kSegment + kUnitBytes, 4},
      {"a part of a unit", used, table.used + 1, 4},
      {"a kind that there is not", row + offsetof(form::SegmentEntry, kind), 3, 4}};
  if (number == std::size(cases)) return nullptr;
  write_state(cases[number].at, cases[number].value, cases[number].bytes);
  return cases[number].what;
}

const char* Image::forge_unreferenced(unsigned number) {
  const struct {
    const char* what;
    form::UnreferencedPieces unreferenced;
  } cases[] = {{"unreferenced pieces", {1, 7, 3}},
               {"more unreferenced pieces than a log holds", {1, 7, kPiecesTooMany}},
               {"unreferenced pieces that have no id", {1, 0, 3}}};
  if (number == std::size(cases)) return nullptr;
  const uint64_t at = map_.super.segment_count * sizeof(form::SegmentEntry), one = 1;
  std::string state = map_.state;
  memcpy(&state[at], &one, sizeof one);
  state.insert(at + sizeof one, reinterpret_cast<const char*>(&cases[number].unreferenced),
               sizeof(form::UnreferencedPieces));
  const uint64_t begin = map_.links[0].at, bytes = state.size();
  REQUIRE(map_.links.size() == 1 && bytes <= form::link_room(kSegment),
          "the state has no room for unreferenced pieces");
  write_at(&memory, begin + offsetof(form::StateLink, bytes), bytes);
  memcpy(memory.data() + begin + sizeof(form::StateLink), state.data(), bytes);
  seal_link(0);
  write_at(&memory, map_.root_at + sizeof(ImageHeader) + offsetof(form::Root, bytes), bytes);
  seal_root();
  return cases[number].what;
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
    fill(&value, key, 2, key % 100 == 0 ? 8000 : 100);
    expect(key % 5 == 0 ? store->del({&key, sizeof key})
                        : store->set({&key, sizeof key}, bytes_of(value)),
           "change");
  }
  expect(store->flush(), "flush");
  expect(store->compact(), "compact");
  ErrorText why;
  expect(store->validate(&why), "validate");
}

// Durable sets and deletes in an image that opened, then a crash. The next open must succeed.
void crash_durably(const std::vector<char>& image) {
  Bed bed(0);
  bed.memory = image;
  bed.options.durability = Durability::kEach;
  if (bed.try_open(Contents::kExisting) < 0) return;
  std::string value;
  for (uint64_t key = kKeys + 6; key-- > kKeys - 40;) {
    fill(&value, key, 3, key % 3 == 0 ? 8000 : 100);
    expect(key % 2 == 0 ? bed.store->del({&key, sizeof key})
                        : bed.store->set({&key, sizeof key}, bytes_of(value)),
           "durable change");
  }
  const std::vector<char> crashed = bed.memory;
  bed.close();
  bed.memory = crashed;
  read_all(bed.open(Contents::kExisting));
}

// Whether it is open; otherwise it was refused by one line.
bool opens(Bed* bed, bool read_only, bool salvage) {
  const int status = bed->try_open(Contents::kExisting, read_only, salvage);
  expect(status, "open");
  REQUIRE(status == 0 || bed->why.text[0], "a refusal without a word");
  return status == 0;
}

// The same by salvage, which gives as much as it can of any image. Its operations also end.
void use_salvaged(Bed* bed, Counts* counts) {
  if (!opens(bed, true, true)) return;
  (void)sweep_of(bed->store);
  read_all(bed->store);
  bed->close();
  ++counts->salvaged;
}

// A log behind the state that holds a large value, and behind that other batches, so that its
// records are not the end.
class ForgedLog : public Bed {
 public:
  ForgedLog();
  // nullptr: there is no case `number`. Case 0 is the sound log.
  const char* forge(unsigned number);

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

ForgedLog::ForgedLog() : Bed(kBytes) {
  open(Contents::kNew, Durability::kEach);
  std::string value;
  for (uint64_t version = 0; version < 3; ++version) {
    fill(&value, 1, version, 40'000);
    REQUIRE(store->set({"large", 5}, bytes_of(value)) == 0, "durable set of a large pair");
  }
  for (const char* key : {"a", "b", "c"}) REQUIRE(store->set({key, 1}, {"1", 1}) == 0);
  sound_ = memory;
  close();
  memory = sound_;
  options.durability = Durability::kFlush;
  learn();
}

void ForgedLog::learn() {
  const uint64_t segments = read_at<form::Superblock>(memory, 0).segment_count;
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
bool use(Bed* bed, bool read_only, Counts* counts) {
  if (!opens(bed, read_only, false)) return false;
  if (read_only) {
    const Swept swept = sweep_of(bed->store);
    counts->damages += swept.report.damages;
    REQUIRE(swept.given == swept.report.records + swept.report.large_pairs);
    StoreInfo info;
    bed->store->info(&info);
  }
  read_all(bed->store);
  if (!read_only) {
    change_all(bed->store);
    read_all(bed->store);
  }
  bed->close();
  return true;
}

}  // namespace

TEST_CASE("kv-fuzz") {
  const uint64_t images = option("--images", 150);
  Counts counts;
  Image image(tier::run_seed());
  REQUIRE(use(&image, true, &counts) && counts.damages == 0, "the sound image is not");
  // Sound or not by its number; the store is refused if not.
  const auto try_all = [](Bed* bed, auto restore, auto forge, bool first_is_sound) {
    for (unsigned number = 0;; ++number) {
      restore();
      const char* what = forge(number);
      if (!what) break;
      const int wanted = first_is_sound && number == 0 ? 0 : -EBADMSG;
      if (bed->try_open(Contents::kExisting) != wanted) FAIL(what);
      bed->close();
    }
  };
  const auto restore = [&] { image.restore(); };
  try_all(&image, restore, [&](unsigned number) { return image.forge(number); }, false);
  try_all(&image, restore, [&](unsigned number) { return image.forge_unreferenced(number); }, true);
  ForgedLog log;
  try_all(&log, [] {}, [&](unsigned number) { return log.forge(number); }, true);
  for (unsigned number = 0;; ++number) {
    image.restore();
    const char* what = image.forge_record(number);
    if (!what) break;
    const uint64_t damages = counts.damages;
    crash_durably(image.memory);
    if (!use(&image, true, &counts)) FAIL(std::string(what) + " refuses the store");
    if ((counts.damages == damages) != (number == 0)) FAIL(std::string(what) + " is not named");
    if (!use(&image, false, &counts)) FAIL(std::string(what) + " refuses the store");
  }
  for (; counts.images < images; ++counts.images) {
    image.restore();
    image.mutate();
    const std::vector<char> before = image.memory;
    const bool opened = use(&image, true, &counts);
    use_salvaged(&image, &counts);
    REQUIRE(image.memory == before, "a store that was opened for reading was written to");
    crash_durably(before);
    ++(use(&image, false, &counts) ? counts.opened : counts.refused);
    // The image that it left may be damaged, but can be opened as safely.
    if (opened) (void)use(&image, false, &counts);
  }
  printf("%lu images: %lu refused, %lu opened, %lu salvaged, %lu damages named\n", images,
         counts.refused, counts.opened, counts.salvaged, counts.damages);
  if (images >= 100 &&
      (counts.refused < images / 10 || counts.opened < images / 10 || counts.damages == 0))
    FAIL("the changes are all of one kind");
}
