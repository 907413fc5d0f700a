// SPDX-License-Identifier: Apache-2.0
// StoreOptions::salvage on a store whose log of durable sets is damaged finds the store as it was
// before the damage, byte by byte, and names each key that was set behind it.
#include <errno.h>
#include <limits.h>

#include <map>
#include <set>
#include <string>
#include <vector>

#include "tests/catch.h"
#include "tests/kv/kv_support.h"

using namespace lunar;
using namespace lunar::kv;
using kv_test::bytes_of;
using kv_test::Swept;

namespace {

constexpr uint64_t kBytes = 6 * kMiB;
using Model = std::map<std::string, std::string>;

struct History : kv_test::Bed {
  std::vector<Model> after;        // each operation
  std::vector<std::string> names;  // of the key of each; "": a delete

  explicit History(Durability durability = Durability::kEach) : Bed(kBytes) {
    options.durability = durability;
    options.dram_bytes = 6 * kMiB;
  }
  // A state is saved after flush_after operations.
  void write(unsigned operations, unsigned flush_after = UINT_MAX, uint64_t seed = 5) {
    kv_test::Random random(seed);
    open(Contents::kNew);
    Model model;
    after.push_back(model);
    for (unsigned i = 0; i < operations; ++i) {
      const std::string key = "key " + std::to_string(random.below(60));
      if (random.below(5) == 0 && model.count(key) != 0) {
        REQUIRE(store->del(bytes_of(key)) >= 0);
        model.erase(key);
        names.emplace_back();
      } else {
        kv_test::fill(&model[key], i, 1, random.below(12) == 0 ? 70'000 : random.below(3500));
        REQUIRE(store->set(bytes_of(key), bytes_of(model[key])) == 0);
        names.push_back(key);
      }
      after.push_back(model);
      if (i + 1 == flush_after) REQUIRE(store->flush() == 0);
    }
    close();
  }
};

struct Found : Swept {
  std::set<std::string> lost;  // and named
  uint64_t batches = 0, deletes = 0, unnamed = 0;
};

Found look(Store* store) {
  Found found{kv_test::sweep_of(store), {}};
  for (const Swept::Named& damage : found.damages) {
    if (!damage.key.empty())
      found.lost.insert(damage.key);
    else if (damage.what.find("delete") == 0)
      ++found.deletes;
    else if (damage.what.find("log") == 0)
      ++found.batches;
    else
      found.unnamed += damage.pair_lost ? 1 : 0;
  }
  return found;
}

// Whether it is the store after `count` operations, except for pairs that were reported as lost.
bool is_after(const History& history, uint64_t count, const Found& found) {
  const Model& model = history.after[count];
  for (const auto& [key, value] : found.pairs) {
    const auto wanted = model.find(key);
    if (wanted == model.end() || wanted->second != value) return false;
  }
  uint64_t missing = 0;
  for (const auto& [key, value] : model)
    missing += found.pairs.count(key) == 0 && found.lost.count(key) == 0 ? 1 : 0;
  return missing <= found.unnamed;
}

// The number of operations after which the store equals it; 0: none.
uint64_t prefix_of(const History& history, const Found& found) {
  uint64_t count = history.names.size();
  while (count > 0 && !is_after(history, count, found)) --count;
  return count;
}

// How many of the operations from `count` on are not reported.
uint64_t untold(const History& history, uint64_t count, const Found& found) {
  uint64_t keys = 0, deletes = 0;
  for (uint64_t i = count; i < history.names.size(); ++i) {
    if (history.names[i].empty())
      ++deletes;
    else
      keys += found.lost.count(history.names[i]) == 0 ? 1 : 0;
  }
  return keys + (deletes > found.deletes ? deletes - found.deletes : 0);
}

// Flips a bit at each `step`th byte.
void check_damaged_bytes(uint64_t step) {
  History history;
  history.write(220);
  const std::vector<char> sound = history.memory;
  unsigned salvaged = 0, opened = 0, hopeless = 0;
  for (uint64_t at = 0; at < kBytes; at += step) {
    history.memory = sound;
    history.memory[at] = static_cast<char>(history.memory[at] ^ 4);
    const std::vector<char> damaged = history.memory;
    const int plain = history.try_open(Contents::kExisting);
    const std::string why = history.why.text;
    history.close();
    history.memory = damaged;
    const int status = history.try_open(Contents::kExisting, true, true);
    INFO("byte " << at << ": " << why << "; " << history.why.text);
    if (status < 0) {
      CHECK(status == -EBADMSG);
      CHECK(plain == -EBADMSG);
      ++hopeless;
      continue;
    }
    const Found found = look(history.store);
    history.close();
    CHECK(history.memory == damaged);  // nothing is repaired
    const uint64_t prefix = prefix_of(history, found);
    CHECK(is_after(history, prefix, found));
    if (plain == 0) {
      CHECK(prefix + 1 >= history.names.size());  // the last commit cannot be told from a torn one
      ++opened;
      continue;
    }
    CHECK(plain == -EBADMSG);
    CHECK(why.find("--salvage") != std::string::npos);
    CHECK(why.find("saved state") == std::string::npos);  // one block of that costs nothing
    CHECK(found.batches == 1);
    CHECK(untold(history, prefix, found) <= 1);  // what was in the batch that is damaged
    ++salvaged;
  }
  const uint64_t tried = kBytes / step;
  CHECK(salvaged > tried / 20);
  CHECK(opened > tried / 20);
  CHECK(hopeless <= 1);
}

}  // namespace

TEST_CASE(
    "kv-salvage: wherever the log is damaged, what was before it comes out, and what was behind it "
    "is named") {
  check_damaged_bytes(15 * kKiB + 8);
}
TEST_CASE("kv-salvage: damage at many more places of the log", "[.full]") {
  check_damaged_bytes(kKiB + 8);
}

TEST_CASE("kv-salvage: several damages, and a store that a writer may not open so") {
  History history;
  history.write(220);
  const std::vector<char> sound = history.memory;
  kv_test::Random random(11);
  unsigned several = 0;
  for (unsigned round = 0; round < 40; ++round) {
    history.memory = sound;
    for (unsigned i = 0; i < 20; ++i) {
      const uint64_t at = kv::media::kHeadBytes +
                          random.below(kBytes - kv::media::kHeadBytes - kv::media::kTailBytes);
      history.memory[at] = static_cast<char>(history.memory[at] ^ 1);
    }
    const int status = history.try_open(Contents::kExisting, true, true);
    INFO("round " << round << ": " << history.why.text);
    if (status < 0) continue;  // its saved state
    const Found found = look(history.store);
    history.close();
    const uint64_t prefix = prefix_of(history, found);
    CHECK(is_after(history, prefix, found));
    if (found.batches != 0) CHECK(untold(history, prefix, found) <= 20);
    several += found.batches > 1 ? 1 : 0;
  }
  CHECK(several > 8);
}

namespace {

// Each block at a multiple of `step` cannot be read, one at a time.
void check_unreadable_blocks(uint64_t step) {
  History history;
  history.write(220);
  const std::vector<char> sound = history.memory;
  unsigned opened = 0, salvaged = 0;
  for (uint64_t block = kv::media::kBlockBytes; block < kBytes; block += step) {
    history.memory = sound;
    history.device.unreadable = block;
    const int plain = history.try_open(Contents::kExisting);
    const std::string why = history.why.text;
    history.close();
    INFO("block at " << block << ": " << why);
    if (plain < 0) {
      CHECK(history.memory == sound);
      CHECK((plain == -EIO || plain == -EBADMSG));
      CHECK(why.find("--salvage") != std::string::npos);
    }
    history.memory = sound;
    const Found found = look(history.open(Contents::kExisting, true, true));
    history.close();
    CHECK(history.memory == sound);
    CHECK(why.find("saved state") == std::string::npos);  // one block of that costs nothing
    const uint64_t prefix = prefix_of(history, found);
    CHECK(is_after(history, prefix, found));
    if (plain == 0) {
      CHECK(prefix == history.names.size());
      ++opened;
      continue;
    }
    CHECK(found.batches >= 1);
    CHECK(untold(history, prefix, found) <= 1);
    ++salvaged;
  }
  CHECK(opened > kBytes / step / 8);
  CHECK(salvaged > kBytes / step / 8);
  history.memory = sound;
  history.device.unreadable = 0;  // the device reads again
  CHECK(look(history.open(Contents::kExisting, true, true)).pairs == history.after.back());
}

}  // namespace

TEST_CASE(
    "kv-salvage: wherever a block cannot be read, the rest comes out, and nothing is written") {
  check_unreadable_blocks(7 * kv::media::kBlockBytes);
}
TEST_CASE("kv-salvage: each block that cannot be read", "[.full]") {
  check_unreadable_blocks(kv::media::kBlockBytes);
}

namespace {

// Segments in a row are gone, at each place. This is noticed unless they may have been the end of
// the log.
void check_rows_of_segments(History& history, uint64_t in_a_row) {
  constexpr uint64_t kSegment = 64 * kKiB, kCommits = kSegment / kv::media::kBlockBytes;
  const std::vector<char> sound = history.memory;
  const uint64_t count = history.names.size(),
                 end = kBytes - kv::media::kTailBytes - in_a_row * kSegment;
  unsigned refused = 0;
  for (uint64_t at = kv::media::kHeadBytes; at <= end; at += kSegment) {
    history.memory = sound;
    memset(history.memory.data() + at, 0, in_a_row * kSegment);
    const std::vector<char> damaged = history.memory;
    const Found found = look(history.open(Contents::kExisting, true, true));
    history.close();
    CHECK(history.memory == damaged);
    const int plain = history.try_open(Contents::kExisting);
    const std::string why = history.why.text;
    history.close();
    INFO(in_a_row << " segments at byte " << at << ": " << why);
    if (plain < 0 && why.find("saved state") != std::string::npos) continue;  // kv-rebuild
    const uint64_t prefix = prefix_of(history, found);
    CHECK(is_after(history, prefix, found));
    if (plain == 0) {
      CHECK(prefix + in_a_row * kCommits >= count);
      continue;
    }
    CHECK(plain == -EBADMSG);
    CHECK(found.batches >= 1);
    CHECK(untold(history, prefix, found) <= in_a_row * kCommits);
    ++refused;
  }
  CHECK(refused >= 3);
  history.memory = sound;
}

}  // namespace

TEST_CASE("kv-salvage: segments in a row that are gone do not hide the log behind them") {
  for (const Durability durability : {Durability::kEach, Durability::kGroup}) {
    History history(durability);
    history.write(220);
    for (const uint64_t in_a_row : {2, 5}) check_rows_of_segments(history, in_a_row);
  }
}

TEST_CASE(
    "kv-salvage: segments in a row that are gone hide no log behind a later state, over another "
    "store") {
  History other, history;
  other.write(220, 100, 6);
  history.memory = other.memory;
  history.write(260, 90);
  for (const uint64_t in_a_row : {1, 2, 3}) check_rows_of_segments(history, in_a_row);
}
