// SPDX-License-Identifier: Apache-2.0
// A file with holes on a disk that becomes full: what was written once can be written again,
// anything else is ENOSPC or comes short, at each write of a history in turn. What was acknowledged
// is there, before the disk has room again, when it has, and in the next open.
#include <errno.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "kv/store.h"
#include "tests/catch.h"
#include "tests/kv/kv_support.h"
#include "tests/support/lun_device.h"

using namespace lunar;
using namespace lunar::kv;
using kv_test::bytes_of;
using kv_test::Random;
using kv_test::value_of;

namespace {

constexpr uint64_t kBytes = 4 * kMiB, kBlock = 4096;
constexpr unsigned kKeys = 60, kOperations = 700;

// Blocks that lie on the disk; outlives the device.
struct Disk {
  std::vector<char> memory = std::vector<char>(kBytes);
  std::vector<bool> taken = std::vector<bool>(kBytes / kBlock);
  int64_t room = -1;  // blocks; -1: no end
  bool comes_short = false;
  uint64_t refused = 0;
};

class FillingDevice : public lunar_test::MemoryDevice {
 public:
  explicit FillingDevice(Disk* disk) : MemoryDevice(disk->memory.data(), kBytes), disk_(disk) {}
  int64_t transfer(const Command& command) override {
    if (command.op != Op::kWrite) return MemoryDevice::transfer(command);
    uint64_t length = 0;
    for (uint32_t i = 0; i < command.iov_count; ++i) length += command.iov[i].iov_len;
    const uint64_t begin = command.offset.value / kBlock,
                   end = (command.offset.value + length + kBlock - 1) / kBlock;
    for (uint64_t block = begin; block < end; ++block) {
      if (disk_->taken[block]) continue;
      if (disk_->room == 0) return refuse(command, block);
      disk_->taken[block] = true;
      if (disk_->room > 0) --disk_->room;
    }
    return MemoryDevice::transfer(command);
  }

 private:
  // What lies before the first block that has no room is written, as pwrite() does.
  int64_t refuse(const Command& command, uint64_t block) {
    ++disk_->refused;
    const uint64_t fits = std::max(block * kBlock, command.offset.value) - command.offset.value;
    if (!disk_->comes_short || fits == 0 || command.iov_count != 1) return -ENOSPC;
    iovec piece = {command.iov[0].iov_base, fits};
    Command part = command;
    part.iov = &piece;
    return MemoryDevice::transfer(part);
  }
  Disk* disk_;
};

// Values by key: what was set last, and what a failed commit may have kept.
struct Model {
  std::string now = "none", maybe;
  bool unsure = false;
};

struct History {
  Disk disk;
  std::vector<std::unique_ptr<FillingDevice>> devices;
  Durability durability;
  std::vector<Model> keys = std::vector<Model>(kKeys);
  unsigned failures = 0;
  bool over = false;  // a commit failed, and with it all that would come

  explicit History(Durability level) : durability(level) {}
  Store* open(Contents contents) {
    devices.push_back(std::make_unique<FillingDevice>(&disk));
    StoreOptions options;
    options.device = devices.back().get();
    options.contents = contents;
    options.durability = durability;
    options.log_bytes = 0;
    options.dram_bytes = 4 * kMiB;
    options.shards = 4;
    options.expected_keys = 16;
    return kv_test::open_store(options);
  }
  static std::string name(unsigned key) { return "key " + std::to_string(key); }
  void step(Store* store, Random& random);
  void check(Store* store);
};

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
  if (durability == Durability::kFlush || over) return;  // nothing has changed
  over = status == -EIO && store->set({"?", 1}, {"?", 1}) == -EIO;
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
uint64_t run(Durability durability, int64_t room, bool comes_short) {
  History history(durability);
  Store* store = history.open(Contents::kNew);
  REQUIRE(store->flush() == 0);
  history.disk.room = room;
  history.disk.comes_short = comes_short;
  Random random(7);
  for (unsigned i = 0; i < kOperations; ++i) history.step(store, random);
  const int flushed = store->flush();
  CHECK((flushed == 0 || flushed == -ENOSPC || flushed == -EIO));
  const uint64_t refused = history.disk.refused;
  history.check(store);
  history.disk.room = -1;
  if (history.over) {
    store->close();
    store = history.open(Contents::kKept);
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
  store->close();
  store = history.open(Contents::kKept);
  kv_test::check_store(store);
  history.check(store);
  store->close();
  return refused;
}

}  // namespace

TEST_CASE(
    "kv-disk-full: at each write of a history, nothing acknowledged is lost, and all goes on when "
    "there is room") {
  for (const Durability durability : {Durability::kFlush, Durability::kGroup, Durability::kEach}) {
    for (const bool comes_short : {false, true}) {
      unsigned histories = 0;
      for (int64_t room = 0;; room += room < 100 ? 1 : room / 10, ++histories) {
        INFO("durability " << static_cast<int>(durability) << ", " << room
                           << " blocks of room, short " << comes_short);
        if (run(durability, room, comes_short) == 0) break;
      }
      CHECK(histories >= 20);
    }
  }
}
