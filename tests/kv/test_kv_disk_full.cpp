// SPDX-License-Identifier: Apache-2.0
// A file with holes on a disk that becomes full, at each write of a history in turn: blocks that
// were written before can be written again, any other write is ENOSPC or short. Or a device refuses
// everything from one write or flush on. Acknowledged pairs are there while the disk is full, when
// it has room or writes again, and after the next open.
#include <errno.h>

#include <algorithm>
#include <string>
#include <vector>

#include "kv/store.h"
#include "tests/catch.h"
#include "tests/kv/kv_support.h"

using namespace lunar;
using namespace lunar::kv;
using kv_test::bytes_of;
using kv_test::Random;
using kv_test::value_of;

namespace {

constexpr uint64_t kBytes = 4 * kMiB, kBlock = 4096;
constexpr unsigned kKeys = 60, kOperations = 700;

enum class How : uint8_t { kFull, kComesShort, kFails };

// Values by key: the last one, and those that a failed commit may have kept.
struct Model {
  std::string now = "none", maybe;
  bool unsure = false;
};

struct History : kv_test::Bed {
  std::vector<bool> taken = std::vector<bool>(kBytes / kBlock);  // blocks that lie on the disk
  int64_t room = -1;                                             // blocks, or commands; -1: no end
  const How how;
  uint64_t refused = 0;
  std::vector<Model> keys = std::vector<Model>(kKeys);
  unsigned failures = 0;
  bool over = false;            // a commit failed, and with it all that would come
  bool over_by_commit = false;  // not by bytes of a large pair, which change nothing

  History(Durability durability, How how) : Bed(kBytes), how(how) {
    options.durability = durability;
    device.before = [this](const Command& command) {
      if (this->how == How::kFails) return command.op == Op::kRead ? 0 : take_command();
      return command.op == Op::kWrite ? take_blocks(command) : 0;
    };
  }
  ~History() { close(); }
  int64_t take_blocks(const Command& command);
  int64_t take_command();
  static std::string name(unsigned key) { return "key " + std::to_string(key); }
  void step(Store* store, Random& random);
  void check(Store* store);
};

// The part before the first block without room is written, as by pwrite().
int64_t History::take_blocks(const Command& command) {
  uint64_t length = 0;
  for (uint32_t i = 0; i < command.iov_count; ++i) length += command.iov[i].iov_len;
  const uint64_t at = command.offset.value;
  for (uint64_t block = at / kBlock; block * kBlock < at + length; ++block) {
    if (taken[block]) continue;
    if (room == 0) {
      ++refused;
      const uint64_t fits = std::max(block * kBlock, at) - at;
      if (how == How::kFull || fits == 0 || command.iov_count != 1) return -ENOSPC;
      memcpy(memory.data() + at, command.iov[0].iov_base, fits);
      return static_cast<int64_t>(fits);
    }
    taken[block] = true;
    if (room > 0) --room;
  }
  return 0;
}

int64_t History::take_command() {
  if (room == 0) return ++refused, -EIO;
  if (room > 0) --room;
  return 0;
}

void History::step(Store* store, Random& random) {
  const auto number = static_cast<unsigned>(random.below(kKeys));
  Model& model = keys[number];
  const std::string key = name(number);
  const uint64_t choice = random.below(20);
  std::string value = "none";
  int64_t status;
  if (choice == 0) {
    status = store->del(bytes_of(key));
    if (status >= 0 || status == -ENOENT) status = 0;
  } else {
    // some are large pairs
    const uint64_t length = choice == 1 ? 5000 + random.below(60'000) : random.below(4000);
    kv_test::fill(&value, number, random.next(), length);
    status = store->set(bytes_of(key), bytes_of(value));
  }
  if (status == 0) {
    model = {value, {}, false};
    return;
  }
  INFO("status " << status);
  REQUIRE((status == -ENOSPC || status == -EIO));
  ++failures;
  if (options.durability == Durability::kFlush || over) return;  // nothing has changed
  over = status == -EIO && store->set({"?", 1}, {"?", 1}) == -EIO;
  over_by_commit = over && choice > 1;
  if (over) model.maybe = value, model.unsure = true;
}

void History::check(Store* store) {
  for (unsigned number = 0; number < kKeys; ++number) {
    const Model& model = keys[number];
    const std::string found = value_of(store, name(number));
    INFO(name(number) << ": " << found.size() << " bytes, not " << model.now.size());
    CHECK((found == model.now || (model.unsure && found == model.maybe)));
  }
}

// How many writes were refused.
uint64_t run(Durability durability, int64_t room, How how) {
  History history(durability, how);
  Store* store = history.open(Contents::kNew);
  REQUIRE(store->flush() == 0);
  history.room = room;
  Random random(7);
  for (unsigned i = 0; i < kOperations; ++i) history.step(store, random);
  const int flushed = store->flush();
  CHECK((flushed == 0 || flushed == -ENOSPC || flushed == -EIO));
  const uint64_t refused = history.refused;
  history.check(store);
  history.room = -1;
  if (history.over_by_commit) {  // it is not trusted any more
    CHECK(store->set({"?", 1}, {"?", 1}) == -EIO);
    CHECK(store->flush() == -EIO);
    history.check(store);
  }
  if (history.over) {
    store = history.open(Contents::kExisting);
    for (Model& model : history.keys) {  // which of the two it is stays so
      if (!model.unsure) continue;
      const auto number = static_cast<unsigned>(&model - history.keys.data());
      const std::string found = value_of(store, History::name(number));
      CHECK((found == model.now || found == model.maybe));
      model = {found, {}, false};
    }
    history.over = false;
  }
  history.check(store);
  const unsigned failures = history.failures;
  for (unsigned i = 0; i < 100; ++i) history.step(store, random);
  CHECK(history.failures == failures);  // there is room again
  CHECK(store->flush() == 0);
  store = history.open(Contents::kExisting);
  kv_test::check_store(store);
  history.check(store);
  return refused;
}

}  // namespace

TEST_CASE(
    "kv-disk-full: at each write of a history, nothing acknowledged is lost, and all goes on when "
    "there is room") {
  for (const Durability durability : {Durability::kFlush, Durability::kGroup, Durability::kEach}) {
    for (const How how : {How::kFull, How::kComesShort, How::kFails}) {
      // kv-kept tests flushes that fail.
      if (how == How::kFails && durability == Durability::kFlush) continue;
      unsigned histories = 0;
      for (int64_t room = 0;; room += room < 100 ? 1 : room / 10, ++histories) {
        INFO("durability " << static_cast<int>(durability) << ", " << room << " of room, how "
                           << static_cast<int>(how));
        if (run(durability, room, how) == 0) break;
      }
      CHECK(histories >= 20);
    }
  }
}
