// SPDX-License-Identifier: Apache-2.0
// A store that is kept comes back whole after any crash. Random histories of sets, deletes and
// flushes are recorded write by write on a device. Then the device is put together as a crash could
// have left it (torn, reordered, lost between flushes: as in tests/property/lun_crash.cpp), and the
// store is opened. It must equal the store at some moment since the last acknowledged flush, key by
// key and byte by byte, be sound by validate(), go on working, and come back once more.
//   kv_crash_kept [--histories N] [--operations N] [--every N: crashes at each Nth write];
//   LUNAR_SEED= replays.
#include <errno.h>

#include <map>
#include <unordered_map>
#include <vector>

#include "tests/kv/crash_histories.h"
#include "tests/support/cases.h"

using namespace lunar;
using namespace lunar::kv;
using namespace lunar_test;
using namespace kv_test;

namespace {

// A store of the larger size has several tails: records of different age in segments of their own.
constexpr uint64_t kBytes = 3 * kMiB, kBytesOfTails = 9 * kMiB;

struct Value {
  uint64_t version, length;
  bool operator==(const Value&) const = default;
};
using Model = std::map<uint64_t, Value>;

uint64_t sum_of(uint64_t key, const Value& value) {
  return mix(mix(key) ^ value.version * 0x9e3779b97f4a7c15 ^ value.length << 40);
}

class History : public CrashHistory {
 public:
  explicit History(uint64_t seed)
      : CrashHistory(seed, seed % 5 ? kBytes : kBytesOfTails), times_(memory_.size() / kBytes) {
    keys_ = random_.below(2) ? 60 : 1500;
  }
  void make(uint64_t operations);
  uint64_t crash_everywhere() {
    return crash_at_writes([this](size_t event) { crash_at(event, random_.below(2)); },
                           [](size_t) {});
  }

 private:
  Store* open(MemoryDevice* device, Contents contents);
  void operate(Store* store, Model* model, uint64_t* sum);
  uint64_t read_all(Store* store, Model* out);
  void crash_at(size_t event, bool lost);

  uint64_t times_;              // as large as kBytes, with values as much longer
  std::vector<uint64_t> sums_;  // of the model, after each operation
  // flushes_[i]: how many operations the flush of mark i had seen
  std::vector<size_t> flushes_;
  uint64_t keys_, version_ = 0;
};

Store* History::open(MemoryDevice* device, Contents contents) {
  StoreOptions options = small(device, contents);
  options.shards = 2;
  return CrashHistory::open(options);
}

void History::operate(Store* store, Model* model, uint64_t* sum) {
  const uint64_t key = random_.below(keys_);
  const auto found = model->find(key);
  const std::string text = name(key);
  if (random_.below(5) == 0) {
    const int64_t length = store->del(bytes_of(text));
    if (length != (found == model->end() ? -ENOENT : static_cast<int64_t>(found->second.length)))
      wrong("del");
    if (found == model->end()) return;
    *sum -= sum_of(key, found->second);
    model->erase(found);
    return;
  }
  const uint64_t length = kLengthMin + random_.below(random_.below(60)   ? 900 * times_
                                                     : random_.below(12) ? 90'000
                                                                         : kLengthMax);
  const Value value{++version_, or_whole_blocks(random_, 8, length)};
  make_value(&value_, key, value.version, value.length);
  const int status = store->set(bytes_of(text), bytes_of(value_));
  if (status == -ENOSPC) return;
  if (status < 0) wrong("set: " + std::to_string(status));
  if (found != model->end()) *sum -= sum_of(key, found->second);
  *sum += sum_of(key, value);
  (*model)[key] = value;
}

void History::make(uint64_t operations) {
  where_ = "before a crash: ";
  MemoryDevice device(memory_.data(), memory_.size());
  Store* store = open(&device, Contents::kNew);
  copy_ = memory_;
  device.record = &events_;
  Model model;
  uint64_t sum = 0;
  sums_.push_back(0);
  flushes_.push_back(0);
  for (uint64_t i = 0; i < operations; ++i) {
    operate(store, &model, &sum);
    sums_.push_back(sum);
    if (random_.below(120)) continue;
    if (const int status = store->flush(); status < 0) wrong("flush: " + std::to_string(status));
    device.mark(static_cast<unsigned>(flushes_.size()));
    flushes_.push_back(sums_.size() - 1);
  }
  check_store(store);
  store->close();
}

// All that a walk finds, byte by byte. Returns its sum.
uint64_t History::read_all(Store* store, Model* out) {
  std::unordered_map<std::string, uint64_t> numbers;
  for (uint64_t key = 0; key < keys_; ++key) numbers[name(key)] = key;
  Walk* walk = nullptr;
  if (Walk::open(store, &walk) < 0) wrong("walk");
  char text[256];
  int64_t length = 0;
  uint64_t sum = 0;
  while ((length = walk->next(text, sizeof text)) >= 0) {
    const auto known = numbers.find(std::string(text, static_cast<size_t>(length)));
    if (known == numbers.end()) wrong("a key that was never set");
    const int64_t bytes =
        store->get({text, static_cast<uint64_t>(length)}, buffer_.data(), buffer_.size(), 0);
    if (bytes < 0) wrong("get of " + known->first + ": " + std::to_string(bytes));
    const auto value_bytes = static_cast<uint64_t>(bytes);
    const Value value{version_of(known->second, value_bytes), value_bytes};
    (*out)[known->second] = value;
    sum += sum_of(known->second, value);
  }
  if (length != -ENOENT) wrong("walk: " + std::to_string(length));
  walk->close();
  if (out->size() != store->count()) wrong("a walk and the count differ");
  return sum;
}

void History::crash_at(size_t event, bool lost) {
  std::vector<DeviceEvent> undo;
  size_t acknowledged = 0;
  for (size_t i = 0; i < event; ++i)
    if (events_[i].kind == DeviceEvent::Kind::kMark) acknowledged = events_[i].mark;
  where_ = "event " + std::to_string(event) + " of " + std::to_string(events_.size()) +
           (lost ? ", lost" : ", torn") + ", after flush " + std::to_string(acknowledged) + ": ";
  crash(events_, flushed_, event, lost, &undo);
  // Opens the store, goes on in it, and opens it once more.
  MemoryDevice first(copy_.data(), copy_.size()), second(copy_.data(), copy_.size());
  first.undo = second.undo = &undo;
  Store* store = open(&first, Contents::kExisting);
  check_store(store);
  Model model;
  uint64_t sum = read_all(store, &model);
  bool known = false;
  for (size_t i = flushes_[acknowledged]; i < sums_.size() && !known; ++i) known = sums_[i] == sum;
  if (!known) wrong("the store is of no moment since the last flush");
  const uint64_t version = version_;
  for (unsigned i = 0; i < 200; ++i) operate(store, &model, &sum);
  const int status = store->flush();
  if (status < 0) wrong("flush after a crash: " + std::to_string(status));
  check_store(store);
  store->close();
  store = open(&second, Contents::kExisting);
  check_store(store);
  Model again;
  if (read_all(store, &again) != sum || again != model)
    wrong("what was flushed after a crash has not come back");
  store->close();
  version_ = version;
  roll_back(&undo, &copy_);
}

}  // namespace

TEST_CASE("kv-crash-kept") { run_histories<History>(5, 4000, "whole"); }
