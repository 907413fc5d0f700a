// SPDX-License-Identifier: Apache-2.0
// Salvage against what devices do: a store with a past is damaged in one of many ways, opened with
// StoreOptions::salvage, and what comes out is compared with what was written.
//
//   kv_hostile [--images N] [--history N]
//
// The ways: changed bits; blocks of zeros, of noise, exchanged, from an older time of the same
// store, of another store; lengths in records; a device that became shorter; roots, superblocks.
// The pasts: each durability, values of one or of many lengths, large pairs, deletes, cleaning, a
// process that was killed, a place that held another store before. What is asked for: a value that
// the key once had; one that is not the last, or a pair that was deleted, only by name as doubtful;
// a pair that is missing is named or counted; a report that says `clean` is right; no write.
#include <errno.h>

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "kv/inspect.h"
#include "lun/volume/image_format.h"
#include "tests/kv/kv_support.h"
#include "tests/support/cases.h"
#include "tests/support/lun_device.h"
#include "tests/support/seed.h"

using namespace lunar;
using namespace lunar::kv;
using kv_test::bytes_of;
using kv_test::text_of;
namespace form = lunar::kv::media;

namespace {

using lunar_test::option;

constexpr uint64_t kSegment = 64 * kKiB, kBlock = form::kBlockBytes, kSlot = form::kBlockBytes;
using Value = std::optional<std::string>;

struct Shape {
  const char* name;
  Durability durability = Durability::kFlush;
  unsigned opens = 2, sets = 400, keys = 250, large_in = 60;
  uint64_t bytes = 4 * kMiB;
  uint64_t one_length = 0;
  bool killed = false, over_another = false;
};
constexpr Shape kShapes[] = {
    {.name = "flush"},
    {.name = "flush, killed", .killed = true},
    {.name = "one open, one length",
     .opens = 1,
     .sets = 1500,
     .keys = 600,
     .large_in = 100'000,
     .one_length = 100},
    {.name = "few keys, one length",
     .opens = 2,
     .sets = 300,
     .keys = 40,
     .large_in = 100'000,
     .one_length = 100},
    {.name = "values on blocks", .sets = 250, .keys = 120, .large_in = 100, .one_length = 4096},
    {.name = "large pairs", .sets = 150, .keys = 30, .large_in = 2},
    {.name = "over another store", .over_another = true},
    {.name = "group", .durability = Durability::kGroup, .killed = true},
    {.name = "each, over another store",
     .durability = Durability::kEach,
     .killed = true,
     .over_another = true},
    {.name = "many keys",
     .opens = 2,
     .sets = 9000,
     .keys = 6000,
     .large_in = 3000,
     .bytes = 16 * kMiB},
};

StoreOptions options_for(Device* device, const Shape& shape, Contents contents) {
  StoreOptions options;
  options.device = device;
  options.contents = contents;
  options.durability = shape.durability;
  options.log_bytes = 0;
  options.segment_bytes = kSegment;
  options.dram_bytes = 8 * kMiB;
  options.shards = 4;
  options.expected_keys = 16;
  return options;
}

// A store, and what each of its keys was at any time.
class History {
 public:
  History(const Shape& shape, uint64_t seed) : shape(shape), random_(seed) {}
  void write(const std::string& prefix);
  // What the key may be without a word: as it was made durable last, or is since.
  bool may_be(const std::string& key, const Value& value) const;
  bool ever_was(const std::string& key, const std::string& value) const {
    const auto found = ever_.find(key);
    return found != ever_.end() && found->second.count(value) != 0;
  }
  const std::map<std::string, std::set<std::string>>& ever() const { return ever_; }

  Shape shape;
  std::vector<char> memory;
  std::vector<std::vector<char>> older;  // at some times before

 private:
  void change(Store* store, const std::string& prefix, unsigned number);
  void keep() {
    if (older.size() < 10 || random_.below(4) == 0) older.push_back(memory);
    if (older.size() > 12) older.erase(older.begin());
  }
  kv_test::Random random_;
  void note_durable(const std::string& key, const Value& before) {
    last_.emplace_back(key, before);
    if (last_.size() > kLast) last_.erase(last_.begin());
  }
  // Damage to the last commits cannot be told from a torn write.
  static constexpr unsigned kLast = 64;
  std::map<std::string, std::string> now_, durable_;
  std::map<std::string, std::set<Value>> since_;     // then
  std::vector<std::pair<std::string, Value>> last_;  // what these keys were before
  std::map<std::string, std::set<std::string>> ever_;
};

void History::change(Store* store, const std::string& prefix, unsigned number) {
  const std::string key = prefix + std::to_string(random_.below(shape.keys));
  const bool durable = shape.durability != Durability::kFlush;
  if (random_.below(5) == 0 && now_.count(key) != 0) {
    REQUIRE(store->del(bytes_of(key)) >= 0);
    if (durable) note_durable(key, now_[key]), durable_.erase(key);
    if (!durable) since_[key].insert(std::nullopt);
    now_.erase(key);
    return;
  }
  std::string value;
  const uint64_t length = random_.below(shape.large_in) == 0 ? 66'000 + random_.below(120'000)
                          : shape.one_length
                              ? shape.one_length
                              : kv_test::or_whole_blocks(random_, 12, random_.below(1200));
  kv_test::fill(&value, number, random_.next(), length);
  const int status = store->set(bytes_of(key), bytes_of(value));
  if (status == -ENOSPC) return;  // large pairs may fill it
  REQUIRE(status == 0);
  ever_[key].insert(value);
  if (durable)
    note_durable(key, now_.count(key) != 0 ? Value(now_[key]) : std::nullopt),
        durable_[key] = value;
  if (!durable) since_[key].insert(value);
  now_[key] = value;
}

void History::write(const std::string& prefix) {
  memory.resize(shape.bytes);
  for (unsigned open = 0; open < shape.opens; ++open) {
    lunar_test::MemoryDevice device(memory.data(), memory.size());
    Store* store = kv_test::open_store(
        options_for(&device, shape, open == 0 ? Contents::kNew : Contents::kKept));
    for (unsigned i = 0; i < shape.sets; ++i) {
      change(store, prefix, i);
      if (random_.below(shape.sets / 4) == 0) {
        if (random_.below(3) == 0 ? store->compact() != 0 : store->flush() != 0) FAIL("flush");
        durable_ = now_;
        since_.clear();
        keep();
      }
    }
    const bool killed = shape.killed && open + 1 == shape.opens;
    REQUIRE(killed || store->flush() == 0);
    if (!killed) durable_ = now_, since_.clear();
    std::vector<char> left = memory;
    store->close();
    memory = left;
    keep();
  }
}

bool History::may_be(const std::string& key, const Value& value) const {
  const auto then = durable_.find(key);
  if (then == durable_.end() ? !value : value == then->second) return true;
  for (const auto& [changed, before] : last_)
    if (changed == key && before == value) return true;
  const auto since = since_.find(key);
  return since != since_.end() && since->second.count(value) != 0;
}

// Where things lie in an image.
struct Map {
  uint64_t back = 0;
  std::vector<uint64_t> state, records;  // blocks of the state; places of records
};

template <class T>
T read_at(const std::vector<char>& memory, uint64_t at) {
  T out;
  memcpy(&out, memory.data() + at, sizeof out);
  return out;
}

uint64_t place(uint64_t segment) { return form::kHeadBytes + segment * kSegment; }

Map map_of(const std::vector<char>& memory) {
  Map map;
  map.back = read_at<form::Superblock>(memory, 0).back_offset;
  uint64_t newest = form::kFrontRootsAt;
  if (read_at<lunar::media::ImageHeader>(memory, newest).sequence <
      read_at<lunar::media::ImageHeader>(memory, newest + kSlot).sequence)
    newest += kSlot;
  const auto root = read_at<form::Root>(memory, newest + sizeof(lunar::media::ImageHeader));
  std::string state;
  for (uint64_t next = root.first; next;) {
    const auto link = read_at<form::StateLink>(memory, place(next - 1));
    for (uint64_t at = 0; at < sizeof link + link.bytes; at += kBlock)
      map.state.push_back(place(next - 1) + at);
    state.append(memory.data() + place(next - 1) + sizeof link, link.bytes);
    next = link.next;
  }
  for (uint64_t i = 0; place(i) < map.back; ++i) {
    form::SegmentEntry entry;
    memcpy(&entry, state.data() + i * sizeof entry, sizeof entry);
    if (entry.kind != form::SegmentKind::kRecords) continue;
    for (uint64_t at = i == 0 ? kUnitBytes : 0; at < entry.used;) {
      map.records.push_back(place(i) + at);
      at += reinterpret_cast<const Record*>(memory.data() + place(i) + at)->span();
    }
  }
  REQUIRE(!map.state.empty() && !map.records.empty(), "the image is not understood");
  return map;
}

// What is done to an image, and in words.
class Damager {
 public:
  Damager(const History& history, const History& other, uint64_t seed)
      : history_(history), other_(other), map_(map_of(history.memory)), random_(seed) {}
  void damage(std::vector<char>* memory);
  bool hits_the_head() const {  // or what roots and superblocks need: it may be hopeless
    return head_;
  }
  const std::string& said() const { return said_; }

 private:
  uint64_t some_block() {
    const uint64_t all = (map_.back - form::kHeadBytes) / kBlock;
    switch (random_.below(4)) {
      case 0:
        return form::kHeadBytes + random_.below(all) * kBlock;
      case 1:
        return map_.records[random_.below(map_.records.size())] / kBlock * kBlock;
      default:
        return map_.state[random_.below(map_.state.size())];
    }
  }
  void say(const char* what, uint64_t at) {
    said_ += std::string(what) + " at " + std::to_string(at) + "; ";
  }
  void copy(std::vector<char>* to, const std::vector<char>& from, uint64_t at, uint64_t bytes) {
    if (at + bytes <= from.size()) memcpy(to->data() + at, from.data() + at, bytes);
  }
  void damage_once(std::vector<char>* memory, uint64_t how);
  void damage_head(std::vector<char>* memory);
  void lengthen(std::vector<char>* memory);
  const History& history_;
  const History& other_;
  const Map map_;
  kv_test::Random random_;
  std::string said_;
  bool head_ = false;
};

void Damager::lengthen(std::vector<char>* memory) {
  const uint64_t at = map_.records[random_.below(map_.records.size())];
  const uint64_t field = at + 12 + 4 * random_.below(3);  // size_type, key_bytes, value_bytes
  uint32_t value = read_at<uint32_t>(*memory, field);
  const uint32_t values[] = {
      0, UINT32_MAX, UINT32_MAX - 7, value + 8, value ^ 1u << random_.below(32), 1u << 31};
  value = values[random_.below(6)];
  memcpy(memory->data() + field, &value, sizeof value);
  say("a length", field);
}

void Damager::damage_head(std::vector<char>* memory) {
  head_ = true;
  const uint64_t how = random_.below(5);
  if (how == 0) {
    memory->resize(memory->size() - (1 + random_.below(20)) * kBlock * (random_.below(2) ? 1 : 16));
    return say("shorter", memory->size());
  }
  if (how == 1) {
    memset(memory->data(), static_cast<int>(random_.below(2) * 255),
           (1 + random_.below(3)) * form::kHeadBytes);
    return say("the head is gone", 0);
  }
  if (how == 2) {
    memset(memory->data(), 0, 200), memset(memory->data() + form::kSecondSuperAt, 255, 200);
    return say("both superblocks", 0);
  }
  // Both copies of an older root are what an older store has: nothing tells them from one.
  const uint64_t only = how == 4 ? random_.below(2) : 2;
  for (unsigned i = 0; i < 4; ++i) {
    if (i / 2 == only) continue;
    const uint64_t at = (i < 2 ? form::kFrontRootsAt : map_.back) + i % 2 * kSlot;
    if (random_.below(2) == 0) continue;
    say("a root", at);
    if (how == 3)
      memset(memory->data() + at, 0, 300);
    else
      copy(memory, history_.older[random_.below(history_.older.size())], at, kSlot);
  }
}

void Damager::damage_once(std::vector<char>* memory, uint64_t how) {
  const uint64_t at = some_block();
  const std::vector<char>& older = history_.older[random_.below(history_.older.size())];
  switch (how) {
    case 0: {
      const uint64_t byte = at + random_.below(kBlock);
      (*memory)[byte] = static_cast<char>((*memory)[byte] ^ 1 << random_.below(8));
      return say("a bit", byte);
    }
    case 1:
      memset(memory->data() + at, 0, kBlock);
      return say("zeros", at);
    case 2:
      for (uint64_t i = 0; i < kBlock; ++i) (*memory)[at + i] = static_cast<char>(random_.next());
      return say("noise", at);
    case 3: {
      const uint64_t with = some_block();
      for (uint64_t i = 0; i < kBlock; ++i) std::swap((*memory)[at + i], (*memory)[with + i]);
      say("exchanged", at);
      return say("with that", with);
    }
    case 4:
      copy(memory, older, at, kBlock);
      return say("older", at);
    case 5: {
      const uint64_t segment = (at - form::kHeadBytes) / kSegment;
      copy(memory, older, place(segment), kSegment);
      return say("an older segment", place(segment));
    }
    case 6:
      copy(memory, other_.memory, at, kBlock);
      return say("of another store", at);
    default:
      lengthen(memory);
  }
}

void Damager::damage(std::vector<char>* memory) {
  said_.clear();
  head_ = false;
  const uint64_t how = random_.below(10);
  if (how == 9) return damage_head(memory);
  for (uint64_t times = 1 + random_.below(3); times; --times)
    damage_once(memory, how == 8 ? random_.below(8) : how);
}

struct Found {
  std::map<std::string, std::string> pairs;
  std::set<std::string> doubtful;
  bool root_is_old = false, log_ends_early = false, twice = false;
  kv::CheckReport report;
};

void look(Store* store, Found* found) {
  Sweep sweep;
  sweep.context = found;
  sweep.on_damage = [](void* context, const Damage& damage) {
    auto& to = *static_cast<Found*>(context);
    const std::string what = damage.what;
    to.log_ends_early |= what == "log of durable sets";
    to.root_is_old |= what == "root of the saved state" && damage.bytes == 0;
    if (what == "entry") to.doubtful.insert(damage.key_readable ? text_of(damage.key) : "");
  };
  sweep.on_pair = [](void* context, Bytes key, Bytes value) {
    auto& to = *static_cast<Found*>(context);
    to.twice |= !to.pairs.emplace(text_of(key), text_of(value)).second;
    return true;
  };
  REQUIRE(store->sweep(sweep, &found->report) == 0);
}

struct Tally {
  uint64_t refused = 0, opened = 0, rebuilt = 0, doubtful = 0, old_but_told = 0, missing = 0,
           foreign = 0;
};

// "", or what is wrong.
std::string wrong_of(const History& history, const Found& found, Tally* tally) {
  if (found.twice) return "a key comes twice";
  for (const auto& [key, value] : found.pairs) {
    // Another store's, from before in this place or by damage, cannot be told from a former open's.
    const bool foreign = key.find("other ") == 0 && found.doubtful.count(key) != 0;
    if (!history.ever_was(key, value) && !foreign) return "a value that never was: " + key;
    tally->foreign += foreign ? 1 : 0;
    if (history.may_be(key, value)) continue;
    ++tally->old_but_told;
    if (found.doubtful.count(key) == 0 && !found.root_is_old && !found.log_ends_early)
      return "old, without a word: " + key;
  }
  uint64_t missing = 0;
  std::string keys;
  for (const auto& [key, values] : history.ever()) {
    if (found.pairs.count(key) != 0 || history.may_be(key, std::nullopt)) continue;
    if (++missing < 10) keys += " " + key;
  }
  tally->missing += missing;
  const bool by_name = !found.log_ends_early && !found.root_is_old;
  if (missing > found.report.pairs_lost + found.report.doubtful && by_name)
    return "missing:" + keys + ", and " + std::to_string(found.report.pairs_lost) + " counted";
  if (found.log_ends_early && found.report.pairs_lost == 0)
    return "a log ends early, and nothing is lost";
  return "";
}

void try_image(const History& history, const Damager& damager, std::vector<char>* memory,
               Tally* tally) {
  const std::vector<char> before = *memory;
  for (const bool salvage : {false, true}) {
    lunar_test::MemoryDevice device(memory->data(), memory->size());
    StoreOptions options = options_for(&device, history.shape, Contents::kKept);
    options.durability = Durability::kFlush;
    options.read_only = true;
    options.salvage = salvage;
    ErrorText why;
    Store* store = nullptr;
    const int status = Store::open(options, &store, &why);
    const std::string where =
        std::string(history.shape.name) + ": " + damager.said() + why.text + ": ";
    if (status < 0) {
      if (!why.text[0]) FAIL(where + "a refusal without a word");
      if (status != -EBADMSG && status != -ENOENT)
        FAIL(where + "refused with " + std::to_string(status));
      if (salvage && !damager.hits_the_head()) FAIL(where + "nothing is salvaged");
      tally->refused += salvage ? 1 : 0;
      continue;
    }
    Found found;
    look(store, &found);
    if (const std::string wrong = wrong_of(history, found, tally); !wrong.empty())
      FAIL(std::string(where).append(salvage ? "salvaged: " : "opened: ").append(wrong));
    std::string value(200'000, 0);
    for (const auto& [key, values] : history.ever()) {
      const int64_t length = store->get(bytes_of(key), value.data(), value.size(), 0);
      if (length >= 0 && values.count(value.substr(0, static_cast<uint64_t>(length))) == 0)
        FAIL(where + "a get of what never was");
    }
    ++(salvage ? tally->rebuilt : tally->opened);
    tally->doubtful += found.report.doubtful != 0 ? 1 : 0;
    store->close();
  }
  REQUIRE(*memory == before);
}

}  // namespace

TEST_CASE("kv-hostile") {
  const uint64_t images = option("--images", 120);
  const uint64_t only = option("--history", UINT64_MAX);
  const uint64_t seed = tier::run_seed();
  for (uint64_t i = 0; i < std::size(kShapes); ++i) {
    if (only != UINT64_MAX && only != i) continue;
    History other(kShapes[i], seed + 100 + i), history(kShapes[i], seed + i);
    other.write("other ");
    if (kShapes[i].over_another) history.memory = other.memory;
    history.write("key ");
    Damager damager(history, other, seed + 200 + i);
    Tally tally;
    for (uint64_t image = 0; image < images; ++image) {
      std::vector<char> memory = history.memory;
      damager.damage(&memory);
      try_image(history, damager, &memory, &tally);
    }
    const auto number = [](uint64_t value) { return static_cast<unsigned long>(value); };
    printf(
        "%s: %lu refused, %lu opened, %lu salvaged, %lu with doubtful pairs; %lu old pairs, %lu of "
        "another "
        "store and %lu missing, all told\n",
        kShapes[i].name, number(tally.refused), number(tally.opened), number(tally.rebuilt),
        number(tally.doubtful), number(tally.old_but_told), number(tally.foreign),
        number(tally.missing));
    REQUIRE(tally.rebuilt != 0, "nothing was salvaged");
  }
}
