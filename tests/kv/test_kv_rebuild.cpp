// SPDX-License-Identifier: Apache-2.0
// StoreOptions::salvage on a store whose saved state is damaged finds every pair whose own record
// is sound. It never gives a value that the key never had, and reports an older value or a deleted
// pair.
#include <errno.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "tests/catch.h"
#include "tests/kv/image_map.h"
#include "tests/kv/kv_support.h"

using namespace lunar;
using namespace lunar::kv;
using kv_test::bytes_of;
using kv_test::Swept;

namespace {

constexpr uint64_t kBlock = 4096;

// A store with a past: several opens, overwritten values, deleted pairs, large pairs, cleaned
// segments. With durable sets, some pairs lie in the log behind the state.
struct Past : kv_test::Bed {
  std::map<std::string, std::string> now;
  std::map<std::string, std::set<std::string>> ever;
  unsigned opens = 3, sets = 300, keys = 200, large_in = 40;
  uint64_t longest = 2000;

  Past(uint64_t bytes, Durability durability) : Bed(bytes) {
    options.durability = durability;
    options.dram_bytes = 8 * kMiB;
    options.expected_keys = 80'000;  // the more, the larger is a state
  }
  void write(uint64_t seed) {
    kv_test::Random random(seed);
    for (unsigned i = 0; i < opens; ++i) {
      open(i == 0 ? Contents::kNew : Contents::kExisting);
      for (unsigned j = 0; j < sets; ++j) {
        const std::string key = "key " + std::to_string(random.below(keys));
        if (random.below(6) == 0 && now.count(key) != 0) {
          REQUIRE(store->del(bytes_of(key)) >= 0);
          now.erase(key);
          continue;
        }
        std::string value;
        kv_test::fill(
            &value, i, j,
            random.below(large_in) == 0 ? 70'000 + random.below(90'000) : random.below(longest));
        REQUIRE(store->set(bytes_of(key), bytes_of(value)) == 0);
        ever[key].insert(value);
        now[key] = value;
        if (j + 20 == sets) REQUIRE(store->flush() == 0);
      }
      if (options.durability == Durability::kFlush) REQUIRE(store->flush() == 0);
      close();
    }
  }
};

struct Found : Swept {
  std::set<std::string> doubtful;
  uint64_t parts = 0;           // of the state, that are damaged
  bool log_ends_early = false;  // and what it held behind that is named
};

// Opens the damaged store. false: the state is sound and only the log is damaged, which kv-salvage
// tests.
bool salvage(Past& past, Found* found, bool* opens) {
  const std::vector<char> damaged = past.memory;
  const int plain = past.try_open(Contents::kExisting, true);
  *opens = plain == 0;
  const std::string text = past.why.text;
  if (plain != 0) CHECK(text.find("--salvage") != std::string::npos);
  if (plain != 0 && text.find("saved state") == std::string::npos) return false;
  static_cast<Swept&>(*found) = kv_test::sweep_of(past.open(Contents::kExisting, true, true));
  found->doubtful = found->keys("entry");
  found->parts = found->count("saved state");
  found->log_ends_early = found->count("log of durable sets") != 0;
  past.close();
  const bool unchanged = past.memory == damaged;  // nothing is repaired
  CHECK(unchanged);
  if (plain != 0) CHECK(found->parts != 0);
  CHECK(found->report.doubtful == found->doubtful.size());
  return true;
}

// Checks that no value is wrong, that old values and deleted pairs are reported, and that each
// missing pair is reported. Returns how many pairs are missing.
uint64_t missing_of(const Past& past, const Found& found) {
  for (const auto& [key, value] : found.pairs) {
    const auto ever = past.ever.find(key);
    if (ever == past.ever.end() || ever->second.count(value) == 0)
      FAIL("a value that never was: " << key);
    const auto now = past.now.find(key);
    if (found.log_ends_early) continue;
    if ((now == past.now.end() || now->second != value) && found.doubtful.count(key) == 0)
      FAIL("not told of as doubtful: " << key);
  }
  uint64_t missing = 0;
  for (const auto& [key, value] : past.now) missing += found.pairs.count(key) == 0 ? 1 : 0;
  if (!found.log_ends_early)
    CHECK(missing <=
          found.report.pairs_lost + found.doubtful.size());  // some of these may have been deleted
  return missing;
}

std::vector<uint64_t> blocks_of_state(const Past& past, uint64_t step = kBlock) {
  return kv_test::ImageMap(past.memory).blocks(step);
}

void flip_in_each_block(Durability durability) {
  Past past(4 * kMiB, durability);
  past.write(7);
  const std::vector<uint64_t> state = blocks_of_state(past);
  CHECK(state.size() > 4);
  const std::vector<char> sound = past.memory;
  kv_test::Random random(3);
  unsigned repaired = 0;
  for (const uint64_t block : state) {
    for (unsigned i = 0; i < 12; ++i) {
      past.memory = sound;
      // The first bytes of a block, which may be a link's, and any others. The rest behind the
      // state does not count.
      const uint64_t at = block + (i == 0 ? random.below(32) : random.below(kBlock));
      past.memory[at] = static_cast<char>(past.memory[at] ^ 1 << random.below(8));
      INFO("byte " << at);
      Found found;
      bool opens = false;
      if (!salvage(past, &found, &opens)) continue;
      CHECK(opens);
      if (found.parts == 0) continue;  // no byte that counts
      ++repaired;
      CHECK(missing_of(past, found) == 0);
      CHECK(found.doubtful.empty());
      CHECK(found.report.pairs_lost == 0);
    }
  }
  CHECK(repaired > 6 * state.size());
  for (uint64_t block = kv::media::kHeadBytes; block < sound.size() - kv::media::kTailBytes;
       block += 5 * kBlock) {
    if (durability != Durability::kFlush) break;  // kv-salvage is for that
    past.memory = sound;
    past.memory[block + 77] = static_cast<char>(past.memory[block + 77] ^ 8);
    Found found;
    bool opens = false;
    if (salvage(past, &found, &opens) && opens) CHECK(missing_of(past, found) <= 1);
  }
}

// Blocks of the state, and sometimes a block of records, become noise or zeros or get a bit
// flipped. Returns how many pairs were doubtful.
uint64_t damage_some(Past& past, unsigned rounds, uint64_t seed, bool many_parts) {
  const std::vector<char> sound = past.memory;
  std::vector<uint64_t> state = blocks_of_state(past, many_parts ? 64 * kKiB : kBlock);
  const uint64_t first = state.front(), count = state.size();
  for (uint64_t i = 0; many_parts && i < count; ++i)
    for (uint64_t at = kBlock; at < 32 * kKiB; at += kBlock) state.push_back(state[i] + at);
  const uint64_t blocks = (sound.size() - kv::media::kHeadBytes - kv::media::kTailBytes) / kBlock;
  kv_test::Random random(seed);
  uint64_t doubtful = 0;
  for (unsigned round = 0; round < rounds; ++round) {
    past.memory = sound;
    INFO("round " << round);
    bool records = false;  // or what tells the lives of segments of former opens
    for (uint64_t i = 1 + random.below(4); i; --i) {
      const bool any = random.below(4) == 0;
      const uint64_t block = any ? kv::media::kHeadBytes + random.below(blocks) * kBlock
                                 : state[random.below(state.size())];
      const uint64_t how = random.below(3);
      records = records || any || many_parts || (block == first && how != 2);
      for (uint64_t at = block; at < block + kBlock; ++at)
        if (how != 2) past.memory[at] = how == 0 ? 0 : static_cast<char>(random.next());
      if (how == 2) past.memory[block + random.below(kBlock)] ^= 64;
    }
    Found found;
    bool opens = false;
    if (!salvage(past, &found, &opens) || (opens && past.options.durability != Durability::kFlush))
      continue;
    const uint64_t missing = missing_of(past, found);
    if (!records && past.options.durability == Durability::kFlush) CHECK(missing == 0);
    doubtful += found.doubtful.size();
  }
  past.memory = sound;
  return doubtful;
}

}  // namespace

TEST_CASE("kv-rebuild: one bit in any block of the saved state costs no pair; kFlush") {
  flip_in_each_block(Durability::kFlush);
}

TEST_CASE("kv-rebuild: the same, kGroup") { flip_in_each_block(Durability::kGroup); }
TEST_CASE("kv-rebuild: the same, kEach") { flip_in_each_block(Durability::kEach); }

TEST_CASE(
    "kv-rebuild: blocks of the state that are gone cost certainty, and pairs only where records "
    "are damaged") {
  for (const Durability durability : {Durability::kFlush, Durability::kEach}) {
    Past past(4 * kMiB, durability);
    past.write(9);
    CHECK(damage_some(past, 100, 1, false) > 0);
  }
}

TEST_CASE("kv-rebuild: of the records of one open the newest is taken") {
  Past past(4 * kMiB, Durability::kFlush);
  past.opens = 1;
  past.sets = 900;
  past.write(13);
  const std::vector<char> sound = past.memory;
  const std::vector<uint64_t> state = blocks_of_state(past);
  uint64_t doubtful = 0;
  for (uint64_t i = 0; i < state.size(); ++i) {
    past.memory = sound;
    // Two blocks of a part: a single one would be computed from the others.
    for (const uint64_t block : {state[i], state[i == 0 ? 1 : i - 1]})
      memset(past.memory.data() + block, 0, kBlock);
    Found found;
    bool opens = true;
    REQUIRE(salvage(past, &found, &opens));
    CHECK(missing_of(past, found) == 0);
    uint64_t older = 0;
    for (const auto& [key, value] : past.now) older += found.pairs[key] != value ? 1 : 0;
    CHECK(older == 0);
    doubtful += found.doubtful.size();
  }
  CHECK(doubtful > 50);
}

TEST_CASE("kv-rebuild: a state of which a block cannot be read") {
  Past past(4 * kMiB, Durability::kFlush);
  past.write(11);
  const std::vector<uint64_t> state = blocks_of_state(past);
  for (const uint64_t block : state) {
    past.device.unreadable = block;
    Found found;
    bool opens = true;
    REQUIRE(salvage(past, &found, &opens));
    CHECK(opens);
    CHECK(found.parts == 1);
    CHECK(missing_of(past, found) == 0);
    CHECK(found.doubtful.empty());
  }
}

// The list of segments is gone, and each block in turn is from the state before, which only its own
// content can tell.
TEST_CASE("kv-rebuild: a block that an older state left is not believed") {
  constexpr unsigned kKeys = 1500, kChanges = 150;
  Past past(4 * kMiB, Durability::kFlush);
  past.options.expected_keys = 16;
  Store* store = past.open(Contents::kNew);
  std::string value(100, 'v');
  const auto change = [&](const std::string& key, bool there) {
    REQUIRE((there ? store->set(bytes_of(key), bytes_of(value)) : store->del(bytes_of(key))) >= 0);
    if (there)
      past.ever[key].insert(value), past.now[key] = value;
    else
      past.now.erase(key);
  };
  for (unsigned i = 0; i < kKeys; ++i) change("key " + std::to_string(i), true);
  REQUIRE(store->flush() == 0);
  const std::vector<char> older = past.memory;
  for (unsigned i = 0; i < kChanges; ++i) {
    change("key " + std::to_string(i), false);
    change("new " + std::to_string(i), true);
  }
  REQUIRE(store->flush() == 0);
  past.close();
  const std::vector<char> sound = past.memory;
  const std::vector<uint64_t> now = blocks_of_state(past);
  past.memory = older;
  const std::vector<uint64_t> then = blocks_of_state(past);
  REQUIRE(now.size() > 3);
  REQUIRE(then.size() > 3);
  for (unsigned whole = 0; whole < 2; ++whole) {
    for (uint64_t block = 1; block < std::min(now.size(), then.size()); ++block) {
      past.memory = sound;
      memset(past.memory.data() + now[0] + (whole ? 24 : 0), 0, kBlock - 24);
      memcpy(past.memory.data() + now[block], older.data() + then[block], kBlock);
      INFO("block " << block);
      Found found;
      bool opens = true;
      REQUIRE(salvage(past, &found, &opens));
      (void)missing_of(past, found);
    }
  }
}

// The state is gone, and the pieces of both large values of a key. The records of deletes of the
// older value's pieces have the keys of these pieces, but are no pieces. So the value before it is
// the one that can be read.
TEST_CASE("kv-rebuild: the record of a piece's delete is not taken for the piece") {
  Past past(4 * kMiB, Durability::kEach);
  Store* store = past.open(Contents::kNew);
  std::string values[3];
  for (unsigned i = 0; i < 3; ++i) {
    kv_test::fill(&values[i], 1, i, i == 0 ? 100 : 20'000);
    REQUIRE(store->set(bytes_of("key"), bytes_of(values[i])) == 0);
    past.ever["key"].insert(values[i]);
  }
  past.now["key"] = values[2];
  REQUIRE(store->flush() == 0);
  past.close();
  for (const uint64_t block : blocks_of_state(past)) memset(past.memory.data() + block, 0, kBlock);
  const auto find = [&](const void* what, uint64_t size) {
    return static_cast<char*>(memmem(past.memory.data(), past.memory.size(), what, size));
  };
  for (const std::string& value : {values[1], values[2]}) {
    char* first = find(value.data(), 64);
    REQUIRE(first);
    PieceKey key;
    memcpy(&key, first - sizeof key, sizeof key);
    unsigned pieces = 0;
    for (; char* piece = find(&key, offsetof(PieceKey, number)); ++pieces)
      memset(piece, 0, sizeof key);
    CHECK(pieces > 1);
  }
  Found found;
  bool opens = true;
  REQUIRE(salvage(past, &found, &opens));
  CHECK_FALSE(opens);
  CHECK(found.pairs["key"] == values[0]);
  CHECK(found.doubtful.count("key") == 1);
}

TEST_CASE("kv-rebuild: pieces of values that were replaced or deleted are no damage") {
  for (const Durability durability : {Durability::kFlush, Durability::kEach}) {
    Past past(4 * kMiB, durability);
    past.keys = 40, past.large_in = 10;
    past.write(19);
    for (const uint64_t block : blocks_of_state(past))
      memset(past.memory.data() + block, 0, kBlock);
    Found found;
    bool opens = true;
    REQUIRE(salvage(past, &found, &opens));
    CHECK_FALSE(opens);
    CHECK(found.report.large_pairs != 0);
    CHECK(found.count("pieces of a large pair") == 0);
  }
}

TEST_CASE("kv-rebuild: one block that is gone from each part of the saved state costs no pair") {
  Past past(16 * kMiB, Durability::kFlush);
  past.sets = 20'000, past.keys = 20'000, past.longest = 100, past.large_in = 5000,
  past.options.expected_keys = 16;
  past.write(17);
  const std::vector<uint64_t> state = blocks_of_state(past),
                              parts = blocks_of_state(past, 64 * kKiB);
  REQUIRE(parts.size() > 1);
  REQUIRE(state.size() > 4 * parts.size());
  const std::vector<char> sound = past.memory;
  kv_test::Random random(5);
  for (unsigned round = 0; round < 60; ++round) {
    past.memory = sound;
    std::set<uint64_t> hurt;
    for (unsigned i = 0; i < 30; ++i) {
      const uint64_t block = state[random.below(state.size())];
      if (!hurt.insert(block / (64 * kKiB)).second) continue;
      const bool zeros = random.below(2) != 0;
      for (uint64_t at = block; at < block + kBlock; ++at)
        past.memory[at] = zeros ? 0 : static_cast<char>(random.next());
    }
    INFO("round " << round);
    Found found;
    bool opens = false;
    REQUIRE(salvage(past, &found, &opens));
    CHECK(opens);
    CHECK(found.parts == hurt.size());
    CHECK(missing_of(past, found) == 0);
    CHECK(found.doubtful.empty());
    CHECK(found.report.pairs_lost == 0);
  }
}

TEST_CASE("kv-rebuild: a state of many parts", "[.full]") {
  for (const Durability durability : {Durability::kFlush, Durability::kGroup, Durability::kEach}) {
    Past past(48 * kMiB, durability);
    past.sets = durability == Durability::kEach ? 10'000 : 30'000;
    past.keys = 20'000;
    past.large_in = 2000;
    past.longest = 1000;
    past.options.dram_bytes = 64 * kMiB;
    past.write(4);
    CHECK(damage_some(past, 60, 2, true) > 0);
  }
}
