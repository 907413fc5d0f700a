// SPDX-License-Identifier: Apache-2.0
// Salvage of stores that a device has damaged. A store with a past is damaged in one of many ways
// and opened with StoreOptions::salvage, and the result is compared with what was written.
//
//   kv_hostile [--images N] [--history N]
//
// The damages: changed bits; blocks that are zeros, noise, exchanged, from an older time of the
// same store, or of another store; lengths in records; a device that became shorter; roots,
// superblocks.
// The pasts: each level of durability, values of one or of many lengths, large pairs, deletes,
// cleaning, a process that was killed, a place that held another store before.
// The rules: each value that comes out is one that the key once had. If it is not the last one, or
// the pair was deleted, the key is named as doubtful. A pair that is missing is named or counted. A
// report that says `clean` is right. Nothing is written.
#include <errno.h>

#include <map>
#include <optional>
#include <set>
#include <string>
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

constexpr uint64_t kSegment = 64 * kKiB, kBlock = form::kBlockBytes, kDram = 8 * kMiB;
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

// A store, and what each of its keys was at any time.
class History : public Bed {
 public:
  History(const Shape& like, uint64_t seed) : Bed(like.bytes), shape(like), random_(seed) {
    options.durability = shape.durability;
    options.dram_bytes = kDram;
  }
  void write(const std::string& prefix);
  // A key may have this value without a report: its last durable value, or a later one.
  bool may_be(const std::string& key, const Value& value) const;
  bool ever_was(const std::string& key, const std::string& value) const {
    const auto found = ever_.find(key);
    return found != ever_.end() && found->second.count(value) != 0;
  }
  const std::map<std::string, std::set<std::string>>& ever() const { return ever_; }

  const Shape shape;
  std::vector<std::vector<char>> older;  // at some times before

 private:
  void change(const std::string& prefix, unsigned number);
  void keep() {
    if (older.size() < 10 || random_.below(4) == 0) older.push_back(memory);
    if (older.size() > 12) older.erase(older.begin());
  }
  Random random_;
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

void History::change(const std::string& prefix, unsigned number) {
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
                          : shape.one_length                 ? shape.one_length
                                             : or_whole_blocks(random_, 12, random_.below(1200));
  fill(&value, number, random_.next(), length);
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
  for (unsigned number = 0; number < shape.opens; ++number) {
    open(number == 0 ? Contents::kNew : Contents::kExisting);
    for (unsigned i = 0; i < shape.sets; ++i) {
      change(prefix, i);
      if (random_.below(shape.sets / 4) == 0) {
        if (random_.below(3) == 0 ? store->compact() != 0 : store->flush() != 0) FAIL("flush");
        durable_ = now_;
        since_.clear();
        keep();
      }
    }
    const bool killed = shape.killed && number + 1 == shape.opens;
    REQUIRE(killed || store->flush() == 0);
    if (!killed) durable_ = now_, since_.clear();
    const std::vector<char> left = memory;
    close();
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

// Damages an image, and describes the damage.
class Damager {
 public:
  Damager(const History& history, const History& other, uint64_t seed)
      : history_(history), other_(other), map_(history.memory), random_(seed) {}
  void damage(std::vector<char>* memory);
  bool hits_the_head() const {  // or what roots and superblocks need: it may be hopeless
    return head_;
  }
  const std::string& said() const { return said_; }

 private:
  uint64_t some_block() {
    const uint64_t all = (map_.super.back_offset - form::kHeadBytes) / kBlock;
    switch (random_.below(4)) {
      case 0:
        return form::kHeadBytes + random_.below(all) * kBlock;
      case 1:
        return some_record() / kBlock * kBlock;
      default:
        return state_[random_.below(state_.size())];
    }
  }
  uint64_t some_record() { return map_.place(records_[random_.below(records_.size())]); }
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
  const ImageMap map_;
  const std::vector<uint64_t> state_ = map_.blocks();
  const std::vector<ImageMap::Place> records_ = map_.records(history_.memory);
  Random random_;
  std::string said_;
  bool head_ = false;
};

void Damager::lengthen(std::vector<char>* memory) {
  const uint64_t field =
      some_record() + 12 + 4 * random_.below(3);  // size_type, key_bytes, value_bytes
  auto value = read_at<uint32_t>(*memory, field);
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
  // Both copies of an older root look like an older store.
  const uint64_t only = how == 4 ? random_.below(2) : 2;
  for (unsigned i = 0; i < 4; ++i) {
    if (i / 2 == only) continue;
    const uint64_t at = (i < 2 ? form::kFrontRootsAt : map_.super.back_offset) + i % 2 * kBlock;
    if (random_.below(2) == 0) continue;
    say("a root", at);
    if (how == 3)
      memset(memory->data() + at, 0, 300);
    else
      copy(memory, history_.older[random_.below(history_.older.size())], at, kBlock);
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
      copy(memory, older, map_.place(segment), kSegment);
      return say("an older segment", map_.place(segment));
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

struct Tally {
  uint64_t refused = 0, opened = 0, rebuilt = 0, doubtful = 0, old_but_told = 0, missing = 0,
           foreign = 0;
};

// "", or what is wrong.
std::string wrong_of(const History& history, const Swept& found, Tally* tally) {
  const std::set<std::string> doubtful = found.keys("entry");
  const bool log_ends_early = found.count("log of durable sets") != 0;
  bool root_is_old = false;
  for (const Swept::Named& one : found.damages)
    root_is_old |= one.what == "root of the saved state" && one.bytes == 0;
  if (found.given != found.pairs.size()) return "a key comes twice";
  for (const auto& [key, value] : found.pairs) {
    // A pair of another store, which was here before or came by damage, looks like one of a former
    // open.
    const bool foreign = key.find("other ") == 0 && doubtful.count(key) != 0;
    if (!history.ever_was(key, value) && !foreign) return "a value that never was: " + key;
    tally->foreign += foreign ? 1 : 0;
    if (history.may_be(key, value)) continue;
    ++tally->old_but_told;
    if (doubtful.count(key) == 0 && !root_is_old && !log_ends_early)
      return "old, without a word: " + key;
  }
  uint64_t missing = 0;
  std::string keys;
  for (const auto& [key, values] : history.ever()) {
    if (found.pairs.count(key) != 0 || history.may_be(key, std::nullopt)) continue;
    if (++missing < 10) keys += " " + key;
  }
  tally->missing += missing;
  const bool by_name = !log_ends_early && !root_is_old;
  if (missing > found.report.pairs_lost + found.report.doubtful && by_name)
    return "missing:" + keys + ", and " + std::to_string(found.report.pairs_lost) + " counted";
  if (log_ends_early && found.report.pairs_lost == 0)
    return "a log ends early, and nothing is lost";
  return "";
}

void try_image(const History& history, const Damager& damager, Bed* image, Tally* tally) {
  const std::vector<char> before = image->memory;
  for (const bool salvage : {false, true}) {
    const int status = image->try_open(Contents::kExisting, true, salvage);
    Store* store = image->store;
    const ErrorText& why = image->why;
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
    const Swept found = sweep_of(store);
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
    image->close();
  }
  REQUIRE(image->memory == before);
}

}  // namespace

TEST_CASE("kv-hostile") {
  const uint64_t images = option("--images", 30);
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
    Bed image(0);
    image.options.dram_bytes = kDram;
    for (uint64_t n = 0; n < images; ++n) {
      image.memory = history.memory;
      damager.damage(&image.memory);
      try_image(history, damager, &image, &tally);
    }
    const auto number = [](uint64_t value) { return static_cast<unsigned long>(value); };
    printf(
        "%s: %lu refused, %lu opened, %lu salvaged, %lu with doubtful pairs; %lu old pairs, %lu of "
        "another store and %lu missing, all told\n",
        kShapes[i].name, number(tally.refused), number(tally.opened), number(tally.rebuilt),
        number(tally.doubtful), number(tally.old_but_told), number(tally.foreign),
        number(tally.missing));
    REQUIRE(tally.rebuilt != 0, "nothing was salvaged");
  }
}
