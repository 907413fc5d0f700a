// SPDX-License-Identifier: Apache-2.0
// Damaged records whose keys are set or deleted. Their space comes back, also the segments of large
// pairs, and counts stay right. A record that the device only refused to read is not taken for
// damaged.
#include <errno.h>

#include <algorithm>
#include <string>
#include <vector>

#include "kv/inspect.h"
#include "kv/store.h"
#include "tests/catch.h"
#include "tests/kv/kv_support.h"

using namespace lunar;
using namespace lunar::kv;
using kv_test::bytes_of;
using kv_test::value_of;

namespace {

constexpr uint64_t kBytes = 4 * kMiB, kLargeBytes = 300'000;

struct Kept : kv_test::Bed {
  // Reads of [refused, refused + kBlock) end with -EIO, so many times, after so many that did not.
  static constexpr uint64_t kBlock = 4096;
  uint64_t refused = 0, times = 0, after = 0;
  uint64_t longest = UINT64_MAX;  // longer reads are not refused
  explicit Kept(uint64_t bytes = kBytes) : Bed(bytes) {
    device.before = [this](const Command& command) {
      const uint64_t begin = command.offset.value,
                     length = command.op == Op::kRead ? command.iov[0].iov_len : 0;
      const bool touches = refused < begin + length && begin < refused + kBlock;
      if (times == 0 || length == 0 || length > longest || !touches) return 0;
      if (after != 0) return --after, 0;
      --times;
      return -EIO;
    };
  }
  ~Kept() { close(); }
  // Flushed, and read from the device from now on.
  void reopen() {
    REQUIRE(store->flush() == 0);
    open(Contents::kExisting);
  }
  void set(const std::string& key, const std::string& value) const {
    REQUIRE(store->set(bytes_of(key), bytes_of(value)) == 0);
  }
  // The next record behind `from` on the device whose content begins so; nullptr: none.
  char* record_of(const std::string& content, const char* from = nullptr) {
    const auto begin =
        memory.begin() + (from ? from - memory.data() + 1 + int64_t{sizeof(Record)} : 0);
    const auto at = std::search(begin, memory.end(), content.begin(), content.end());
    return at == memory.end() ? nullptr : &*at - sizeof(Record);
  }
  void refuse(const char* record, uint64_t reads, uint64_t later = 0) {
    refused = round_down(static_cast<uint64_t>(record - memory.data()), kBlock);
    times = reads;
    after = later;
  }
  uint64_t segments(SegmentState state) const {
    StoreInfo info;
    store->info(&info);
    return info.segments[static_cast<unsigned>(state)];
  }
  uint64_t pairs_lost = 0;  // by the last of these
  // How many damages a sweep names, and how many of them are pieces that no record leads to.
  std::pair<uint64_t, uint64_t> damages() {
    if (options.durability == Durability::kFlush) REQUIRE(store->flush() == 0);
    open(Contents::kExisting, true);
    const kv_test::Swept swept = kv_test::sweep_of(store);
    uint64_t without_record = 0;
    for (const auto& one : swept.damages)
      without_record += one.fault == "no sound record leads to them" ? 1 : 0;
    pairs_lost = swept.report.pairs_lost;
    open(Contents::kExisting);
    return {swept.damages.size(), without_record};
  }
};

}  // namespace

// The index cannot distinguish two records: the key's own cannot be read now, and the other is
// damaged.
TEST_CASE(
    "kv-damage: what the device refuses to read is not taken for the damaged record of another "
    "key") {
  const auto [key, other] = kv_test::look_alikes(1)[0];
  for (const bool refused_first : {true, false}) {
    Kept kept;
    kept.open(Contents::kNew);
    const std::string& first = refused_first ? key : other;
    const std::string& second = refused_first ? other : key;
    kept.set(first, std::string(3000, first.back()));
    for (unsigned i = 0; i < 10; ++i)
      kept.set("between " + std::to_string(i), std::string(3000, 'b'));
    kept.set(second, std::string(3000, second.back()));
    kept.reopen();
    char* damaged = kept.record_of(other);
    damaged[200] = static_cast<char>(damaged[200] ^ 1);
    kept.refuse(kept.record_of(key), UINT64_MAX);
    CHECK(kept.store->set(bytes_of(key), {"new", 3}) == -EIO);
    CHECK(kept.store->del(bytes_of(key)) == -EIO);
    kept.times = 0;
    CHECK(value_of(kept.store, key) == std::string(3000, key.back()));
    CHECK(kept.store->exists(bytes_of(other)) == -EBADMSG);
    CHECK(kept.store->count() == 12);
    kept.set(key, "new");
    CHECK(value_of(kept.store, key) == "new");
    CHECK(kept.store->del(bytes_of(key)) == 3);
    CHECK(kept.store->exists(bytes_of(key)) == -EBADMSG);  // the other's, which may be its
    kept.refuse(damaged, 1);                               // and then it is read, damaged
    CHECK(kept.store->set(bytes_of(other), {"new", 3}) == -EIO);
    CHECK(kept.store->exists(bytes_of(other)) == -EBADMSG);
    kept.set(other, "new");
    CHECK(kept.store->count() == 11);
  }
}

// The index cannot distinguish two keys: one is absent, and the other's record is damaged, perhaps
// also its key.
TEST_CASE("kv-damage: a delete of an absent key takes no damaged record of another key") {
  const auto [key, other] = kv_test::look_alikes(1)[0];
  for (const Durability durability : {Durability::kFlush, Durability::kGroup}) {
    for (const uint64_t length : {uint64_t{3000}, kLargeBytes}) {
      for (const bool key_damaged : {false, true}) {
        INFO("length " << length << ", key damaged " << key_damaged);
        Kept kept;
        kept.open(Contents::kNew);
        kept.set(other, std::string(length, 'o'));
        kept.set("one more", "1");
        kept.options.durability = durability;
        kept.reopen();
        const uint64_t pieces = kept.store->pieces();
        char* record = kept.record_of(other);
        if (key_damaged)
          memset(record + sizeof(Record), 0x55, 40);
        else
          record[0] = static_cast<char>(record[0] ^ 1);
        CHECK(kept.store->del(bytes_of(key)) == -EBADMSG);
        CHECK(kept.store->count() == 2);
        CHECK(kept.store->damaged_replaced() == 0);
        CHECK(kept.store->pieces() == pieces);
        (void)kept.damages();
        CHECK(kept.pairs_lost == 1);
        // A set replaces a record whose key is unknown. It never costs a pair whose key is known.
        kept.set(key, "new");
        CHECK(kept.store->count() == (key_damaged ? 2 : 3));
        CHECK(kept.store->exists(bytes_of(other)) == (key_damaged ? -ENOENT : -EBADMSG));
        (void)kept.damages();
        CHECK(kept.pairs_lost == (key_damaged ? 0 : 1));
        CHECK(kept.store->del(bytes_of(key)) == 3);
        CHECK(kept.store->exists(bytes_of(other)) == (key_damaged ? -ENOENT : -EBADMSG));
        if (!key_damaged) CHECK(kept.store->del(bytes_of(other)) >= 0);
        const bool has_left = key_damaged && pieces != 0;  // what no record leads to any more
        CHECK(kept.store->pieces() == (has_left ? pieces : 0));
        CHECK(kept.store->count() == 1);
        CHECK(kept.store->del({"one more", 8}) == 1);
        REQUIRE(kept.store->compact() == 0);
        const auto [damages, without_record] = kept.damages();
        CHECK(without_record == (has_left ? 1 : 0));
        CHECK((damages == 0) == !has_left);
        if (!has_left) kv_test::check_store(kept.store);
      }
    }
  }
}

TEST_CASE(
    "kv-damage: a segment with many damages is given back when all of its keys were set or "
    "deleted") {
  for (const Durability durability : {Durability::kFlush, Durability::kGroup}) {
    for (const bool between : {false, true}) {
      Kept kept;
      kept.open(Contents::kNew);
      const auto name = [](unsigned i) { return "the key " + std::to_string(100 + i); };
      for (unsigned i = 0; i < 40; ++i) kept.set(name(i), std::string(1000, 'v'));
      kept.options.durability = durability;
      kept.reopen();
      memset(kept.record_of(name(10)), 0x5a, 5000);  // heads, keys and values of five
      memset(kept.record_of(name(20)) + 12, 0xff, 8);
      memset(kept.record_of(name(39)), 0, 100);
      for (unsigned i = 0; i < 40; ++i) {
        if (between && i == 25) kept.reopen();
        if (i % 2)
          kept.set(name(i), std::string(900, 'w'));
        else if (kept.store->del(bytes_of(name(i))) == -EBADMSG)  // nothing of its key is left
          CHECK((kept.store->set(bytes_of(name(i)), {}) == 0 &&
                 kept.store->del(bytes_of(name(i))) == 0));
      }
      CHECK(kept.store->count() == 20);
      CHECK(kept.store->compact() == 0);
      CHECK(kept.segments(SegmentState::kDamaged) == 0);
      CHECK(kept.segments(SegmentState::kSealed) <= 2);
      kv_test::check_store(kept.store);
      kept.reopen();
      kv_test::check_store(kept.store);
      for (unsigned i = 1; i < 40; i += 2)
        CHECK(value_of(kept.store, name(i)) == std::string(900, 'w'));
      CHECK(kept.damages().first == 0);
    }
  }
}

TEST_CASE(
    "kv-damage: the pieces of a large pair whose head is damaged are named; they go with its key "
    "if it shows them") {
  const std::string key = "a large pair's key";
  struct Spot {
    uint64_t at, bytes;
    bool shows;  // what remains names the pieces, and is proven by the first of them
  };
  // Checksum; type and size; key; hash, value_bytes, id of the Pieces; all of it.
  const Spot spots[] = {{0, 1, true},  {12, 4, false}, {24, 1, true}, {48, 1, false},
                        {64, 1, true}, {72, 1, false}, {0, 88, false}};
  for (const Durability durability : {Durability::kFlush, Durability::kEach}) {
    for (const bool moved : {false, true}) {
      for (const Spot& spot : spots) {
        for (const uint64_t next :
             {UINT64_MAX, uint64_t{10}, uint64_t{200'000}}) {  // of the new value; UINT64_MAX: none
          INFO("byte " << spot.at << ", " << spot.bytes << " bytes, moved " << moved << ", then "
                       << next);
          Kept kept;
          kept.open(Contents::kNew);
          kept.set("before", std::string(1000, 'b'));
          kept.set("another large one", std::string(100'000, 'y'));
          const uint64_t others = kept.store->pieces();
          kept.set(key, std::string(kLargeBytes, 'x'));
          const uint64_t all = kept.store->pieces();
          kept.set("behind", std::string(1000, 'b'));
          kept.options.durability = durability;
          kept.reopen();
          if (moved) {  // by cleaning: what was in its segment is gone
            kept.set("before", std::string(1100, 'c'));
            kept.set("behind", std::string(1100, 'c'));
            REQUIRE(kept.store->compact() == 0);
            kept.reopen();
          }
          for (char* record = kept.record_of(key); record;
               record = kept.record_of(key, record))  // moved: two
            for (uint64_t i = 0; i < spot.bytes; ++i)
              record[spot.at + i] = static_cast<char>(record[spot.at + i] ^ 0x15);
          kept.open(Contents::kExisting);
          REQUIRE(kept.store->pieces() == all);
          CHECK(kept.store->exists(bytes_of(key)) == -EBADMSG);
          CHECK(kept.damages().second != 0);
          const bool has_key = spot.at != 24 && spot.bytes < 4;
          const bool goes = next != UINT64_MAX || kept.store->del(bytes_of(key)) >= 0;
          CHECK((next != UINT64_MAX || goes == has_key));
          if (next != UINT64_MAX) kept.set(key, std::string(next, 'z'));
          const bool left = !spot.shows || !goes;
          const uint64_t fresh = next == 200'000 ? 50 : 0;
          CHECK(kept.store->pieces() == (left ? all : others) + fresh);
          CHECK((kept.damages().second != 0) == left);
          if (goes)
            CHECK(value_of(kept.store, key) ==
                  (next == UINT64_MAX ? "none" : std::string(next, 'z')));
          CHECK(value_of(kept.store, "another large one") == std::string(100'000, 'y'));
        }
      }
    }
  }
}

// The nth read of a block of its head, or of its first piece, ends with -EIO.
TEST_CASE(
    "kv-damage: a set or delete of a damaged large pair takes all pieces, or the device refuses "
    "it") {
  const std::string key = "a large pair's key";
  for (const Durability durability : {Durability::kFlush, Durability::kEach}) {
    for (const bool deletes : {false, true}) {
      for (const bool of_head : {false, true}) {
        bool over = false;
        unsigned refused = 0;
        for (uint64_t n = 0; !over; ++n) {
          INFO("deletes " << deletes << ", of the head " << of_head << ", read " << n);
          Kept kept;
          kept.open(Contents::kNew);
          kept.set("before", std::string(1000, 'b'));
          kept.set(key, "the large value" + std::string(kLargeBytes, 'x'));
          kept.options.durability = durability;
          kept.reopen();
          const uint64_t pieces = kept.store->pieces();
          char *head = kept.record_of(key),
               *piece = kept.record_of("the large value") - sizeof(PieceKey);
          head[0] = static_cast<char>(head[0] ^ 1);
          kept.refuse(of_head ? head : piece, 1, n);
          const int64_t status =
              deletes ? kept.store->del(bytes_of(key)) : kept.store->set(bytes_of(key), {"new", 3});
          over = kept.times != 0;
          kept.times = 0;
          refused += status < 0 ? 1 : 0;
          CHECK((status >= 0 || status == -EIO));
          CHECK(kept.store->pieces() == (status < 0 ? pieces : 0));
          if (status < 0) CHECK(kept.store->exists(bytes_of(key)) == -EBADMSG);
          if (status >= 0) CHECK(value_of(kept.store, key) == (deletes ? "none" : "new"));
        }
        CHECK((refused != 0) == of_head);
      }
    }
  }
}

TEST_CASE("kv-damage: pieces whose head the device refuses to read are named by its error") {
  Kept kept;
  kept.open(Contents::kNew);
  kept.set("a large pair's key", std::string(kLargeBytes, 'x'));
  kept.reopen();
  kept.refuse(kept.record_of("a large pair's key"), UINT64_MAX);
  CHECK(kept.damages().second == 0);
  CHECK(kept.pairs_lost == 1);
}

TEST_CASE(
    "kv-damage: all pieces of a large pair go, also if its damaged head says that it is shorter") {
  const std::string key = "a large pair's key";
  for (const Durability durability : {Durability::kFlush, Durability::kEach}) {
    for (const uint64_t length : {uint64_t{0}, uint64_t{1000}, uint64_t{40'000}, kLargeBytes - 1}) {
      for (const bool deletes : {false, true}) {
        INFO("durability " << static_cast<int>(durability) << ", length " << length << ", deletes "
                           << deletes);
        Kept kept;
        kept.open(Contents::kNew);
        kept.set(key, std::string(kLargeBytes, 'x'));
        kept.set("behind", "1");  // so that the head's end is certain
        kept.options.durability = durability;
        kept.reopen();
        char* head = kept.record_of(key);
        memcpy(head + sizeof(Record) + round_up(key.size(), 8) + offsetof(Pieces, value_bytes),
               &length, sizeof length);
        if (deletes)
          CHECK(kept.store->del(bytes_of(key)) == static_cast<int64_t>(length));
        else
          kept.set(key, "new");
        CHECK(kept.store->pieces() == 0);
        kv_test::check_store(kept.store);
        CHECK(kept.damages().second == 0);
      }
    }
  }
}

TEST_CASE(
    "kv-damage: pieces that a crash left are deleted, or the store does not open before they can "
    "be read") {
  Kept kept;
  kept.open(Contents::kNew);
  kept.options.durability = Durability::kEach;
  kept.reopen();
  kept.set("small", "1");
  std::string value;
  kv_test::fill(&value, 1, 1, kMiB);
  kept.device.fail_after = 3;
  REQUIRE(kept.store->set({"large", 5}, bytes_of(value)) == -EIO);
  kept.device.fail_after = -1;
  const char* piece = kept.record_of(value.substr(0, 64));
  REQUIRE(piece);
  kept.longest = 32 * kKiB;  // a replay reads segments
  kept.refuse(piece, UINT64_MAX);
  kept.open(Contents::kExisting, true);
  CHECK(kept.store->pieces() != 0);
  for (unsigned i = 0; i < 2; ++i) {
    REQUIRE(kept.try_open(Contents::kExisting) == -EIO);
    CHECK(std::string(kept.why.text).find("lunar kv dump") != std::string::npos);
  }
  kept.times = 2;
  kept.open(Contents::kExisting);
  CHECK(kept.times == 0);
  CHECK(kept.store->pieces() == 0);
  CHECK(value_of(kept.store, "small") == "1");
  kv_test::check_store(kept.store);
}

TEST_CASE(
    "kv-damage: a set or delete ends the damage of its key's record, which gets report until "
    "then") {
  struct Case {
    Durability durability;
    uint64_t spot;    // in checksum, key, value
    uint64_t length;  // of one of the two; a shorter one is in the place of the longer
  };
  std::vector<Case> cases;
  for (const Durability durability : {Durability::kFlush, Durability::kGroup})
    for (const uint64_t spot : {0, 24, 400})
      for (const uint64_t length : {997, 700}) cases.push_back({durability, spot, length});
  for (const auto& [durability, spot, length] : cases) {
    INFO("durability " << static_cast<int>(durability) << ", byte " << spot << ", " << length);
    Kept kept;
    kept.open(Contents::kNew);
    for (char i = 'a'; i <= 'z'; ++i) kept.set("key " + std::string(1, i), std::string(997, i));
    kept.set("key m", std::string(length, 'm'));
    kept.options.durability = durability;
    kept.reopen();
    for (const char* key : {"key c", "key m"}) {
      char* record = kept.record_of(key);
      record[spot] = static_cast<char>(record[spot] ^ 1);
    }
    REQUIRE(kept.store->bytes_actual() == 25 * (5 + 997) + 5 + length);
    for (unsigned i = 0; i < 2; ++i) CHECK(kept.store->exists({"key c", 5}) == -EBADMSG);
    kept.set("key c", "c");
    CHECK(kept.store->damaged_replaced() == 1);
    if (spot == 24) {  // another key's, as far as can be read
      CHECK(kept.store->del({"key m", 5}) == -EBADMSG);
      kept.set("key m", std::string(length, 'n'));
    }
    CHECK(kept.store->del({"key m", 5}) == static_cast<int64_t>(length));
    CHECK(kept.store->del({"key m", 5}) == -ENOENT);
    CHECK(kept.store->damaged_replaced() == 2);
    CHECK(kept.store->bytes_actual() == 24 * (5 + 997) + 6);
    if (length == 997) kv_test::check_store(kept.store);  // of a shorter one not all is given back
    kept.reopen();
    CHECK(kept.store->count() == 25);
    CHECK(value_of(kept.store, "key c") == "c");
    CHECK(value_of(kept.store, "key m") == "none");
    CHECK(value_of(kept.store, "key d") == std::string(997, 'd'));
  }
}

TEST_CASE(
    "kv-damage: a store that holds no key any more holds no bytes, whatever its damaged records "
    "were") {
  Kept kept;
  kept.open(Contents::kNew);
  for (char i = 'a'; i <= 'z'; ++i) kept.set("key " + std::string(1, i), std::string(1000, i));
  kept.reopen();
  memset(kept.record_of("key c"), 0x33, 500);
  CHECK(kept.store->del({"key c", 5}) == -EBADMSG);
  kept.set("key c", "c");
  for (char i = 'a'; i <= 'z'; ++i)
    CHECK(kept.store->del(bytes_of("key " + std::string(1, i))) >= 0);
  CHECK(kept.store->count() == 0);
  CHECK(kept.store->bytes_actual() == 0);
  kept.reopen();
  CHECK(kept.store->bytes_actual() == 0);
}

// The segments with the least live data are damaged. Cleaning ahead tries them first, and gains
// nothing from them before space ends.
TEST_CASE(
    "kv-damage: cleaning ahead goes on behind damaged segments, so that no writer waits for room") {
  constexpr uint64_t kKeys = 9000, kNew = 7500, kDamaged = 12;
  Kept kept(16 * kMiB);
  kept.open(Contents::kScratch);
  const auto name = [](uint64_t i) { return "key " + std::to_string(100'000 + i); };
  const std::string value(1000, 'v');
  for (uint64_t i = 0; i < kKeys; ++i) kept.set(name(i), value);
  for (uint64_t i = 0; i < kKeys;
       ++i)  // of the first segments hardly anything is left, of the others two thirds
    if (i < kDamaged * 60 ? i % 30 != 0 : i % 3 == 0)
      REQUIRE(kept.store->del(bytes_of(name(i))) >= 0);
  for (uint64_t segment = 0; segment < kDamaged; ++segment) {
    char* begin = kept.memory.data() + segment * 64 * kKiB;
    for (uint64_t at = 32; at < 64 * kKiB; at += 500) begin[at] = static_cast<char>(begin[at] ^ 1);
  }
  for (uint64_t i = 0; i < kNew; ++i) kept.set("new " + std::to_string(i), value);
  CHECK(kept.segments(SegmentState::kDamaged) == kDamaged);
  CHECK(kept.store->cleaned_bytes() > kMiB);
  CHECK(kept.store->waits_for_room() == 0);
}

TEST_CASE(
    "kv-damage: a full store with damaged segments refuses sets without reading these each time") {
  Kept kv;
  kv.open(Contents::kNew);
  const std::string value(900, 'v');
  uint64_t keys = 0;
  for (; keys * 1000 < kBytes * 6 / 10; ++keys) kv.set("key " + std::to_string(keys), value);
  kv.reopen();
  uint64_t damaged = 0;
  const char* last = nullptr;
  for (char* at = nullptr; (at = kv.record_of("key ", at));) {
    if (last && (at - kv.memory.data()) / (64 * kKiB) == (last - kv.memory.data()) / (64 * kKiB))
      continue;
    last = at;
    at[sizeof(Record) + 100] ^= 1;
    ++damaged;
  }
  REQUIRE(damaged > 20);
  for (uint64_t i = 1; i < keys; i += 2) (void)kv.store->del(bytes_of("key " + std::to_string(i)));
  uint64_t more = 0;
  while (kv.store->set(bytes_of("more " + std::to_string(more)), bytes_of(value)) == 0) ++more;
  const uint64_t before = kv.store->device_ios();
  for (uint64_t i = 0; i < 200; ++i)
    REQUIRE(kv.store->set(bytes_of("another " + std::to_string(i)), bytes_of(value)) == -ENOSPC);
  CHECK(kv.store->device_ios() - before < 10 * damaged);
}
