// SPDX-License-Identifier: Apache-2.0
// Sets that are durable when they return. Threads set and delete their own keys in a store that
// commits in groups, or each set by itself. The test records in order what they begin, what is
// acknowledged, and every write and flush. Then it puts the device together as a crash at one of
// its writes could have left it (torn, reordered, lost between flushes) and opens it. Every key
// must be as an operation left it that had begun, and no older than what was acknowledged. The
// store must be sound, go on working at any level of durability, and survive another crash, also in
// the middle of its recovery.
//   kv_crash_durable [--histories N] [--operations N] [--every N: crashes at each Nth write];
//   LUNAR_SEED= replays the choices, not the interleaving.
#include <errno.h>

#include <vector>

#include "tests/kv/crash_histories.h"
#include "tests/support/cases.h"
#include "tests/support/meanwhile.h"

using namespace lunar;
using namespace lunar::kv;
using namespace lunar_test;
using namespace kv_test;

namespace {

constexpr uint64_t kBytes = 3 * kMiB;
using Kind = DeviceEvent::Kind;
enum Mark : unsigned { kBegun, kAcknowledged, kOpened };

// For several threads. It yields before each write and flush, so that they meet.
struct SharedDevice : MemoryDevice {
  explicit SharedDevice(std::vector<char>* memory) : MemoryDevice(memory->data(), kBytes) {
    before = [](const Command& command) {
      if (command.op != Op::kRead) sys::yield_cpu();
      return 0;
    };
  }
};

struct State {
  uint64_t version = 0, length = 0;  // version 0: the key is not there
  bool operator==(const State&) const = default;
};
struct Key {
  std::vector<State> states{State{}};    // after each operation that began
  uint64_t begun = 0, acknowledged = 0;  // at the crash that is looked at
};

StoreOptions options_for(Device* device, Contents contents, Random& random) {
  StoreOptions options =
      small(device, contents, random.below(2) ? Durability::kGroup : Durability::kEach);
  options.shards = 2;
  options.replay_bytes_most = random.below(2) ? 512 * kKiB : 0;
  return options;
}

void note(const DeviceEvent& event, std::vector<Key>* keys) {
  if (event.kind != Kind::kMark) return;
  if (event.mark == kBegun) (*keys)[event.offset].begun = event.length;
  if (event.mark == kAcknowledged) (*keys)[event.offset].acknowledged = event.length;
}

class History : public CrashHistory {
 public:
  explicit History(uint64_t seed) : CrashHistory(seed, kBytes), seed_(seed) {
    keys_.resize(random_.below(2) ? 40 : 600);
  }
  void make(uint64_t operations);
  uint64_t crash_everywhere() {
    return crash_at_writes([this](size_t event) { crash_at(event); },
                           [this](size_t event) { note(events_[event], &keys_); });
  }

 private:
  void operate(Store* store, SharedDevice* device, std::vector<Key>* keys, uint64_t key,
               Random& random, bool waits);
  void read_all(Store* store, std::vector<Key>* keys);
  void crash_at(size_t event);
  void go_on(std::vector<Key>* keys, std::vector<DeviceEvent>* events);
  void crash_again(std::vector<Key> found, const std::vector<DeviceEvent>& events);

  const uint64_t seed_;
  std::vector<Key> keys_;
};

void History::operate(Store* store, SharedDevice* device, std::vector<Key>* keys, uint64_t key,
                      Random& random, bool waits) {
  Key& one = (*keys)[key];
  const std::string text = name(key);
  const uint64_t operation = one.states.size();
  const State before = one.states.back();
  State after;
  if (random.below(5)) {
    const uint64_t length = kLengthMin + random.below(random.below(60)   ? 900
                                                      : random.below(12) ? 70'000
                                                                         : kLengthMax);
    after = {operation, or_whole_blocks(random, 6, length)};
    if (random.below(4) == 0 && before.version) after.length = before.length;
  }
  one.states.push_back(after);
  device->mark(kBegun, key, operation);
  int64_t status;
  if (after.version) {
    std::string value;
    make_value(&value, key, after.version, after.length);
    status = store->set(bytes_of(text), bytes_of(value));
    if (status == -ENOSPC) one.states.back() = before, status = 0;
  } else {
    status = store->del(bytes_of(text));
    if (status != (before.version ? static_cast<int64_t>(before.length) : -ENOENT))
      wrong("del gave " + std::to_string(status));
    status = 0;
  }
  if (status != 0) wrong("set gave " + std::to_string(status));
  if (waits) device->mark(kAcknowledged, key, operation);
}

void History::make(uint64_t operations) {
  where_ = "before a crash: ";
  SharedDevice device(&memory_);
  StoreOptions options = options_for(&device, Contents::kNew, random_);
  Store* store = open(options);
  copy_ = memory_;
  device.record = &events_;
  const uint64_t threads = 1 + random_.below(4);
  in_parallel(threads, [&](uint64_t i) {
    Random random(seed_ * 31 + i);
    for (uint64_t n = 0; n < operations / threads; ++n) {
      operate(store, &device, &keys_, random.below(keys_.size() / threads) * threads + i, random,
              true);
      if (random.below(300) == 0 && store->flush() < 0) wrong("flush");
    }
  });
  check_store(store);
  store->close();
}

// Sets each key's model to the state that is found, and forgets its history.
void History::read_all(Store* store, std::vector<Key>* keys) {
  uint64_t there = 0, bytes = 0;
  for (uint64_t key = 0; key < keys->size(); ++key) {
    Key& one = (*keys)[key];
    const int64_t length = store->get(bytes_of(name(key)), buffer_.data(), buffer_.size(), 0);
    State found;
    if (length >= 0) {
      found.length = static_cast<uint64_t>(length);
      found.version = version_of(key, found.length);
      ++there;
      bytes += name(key).size() + found.length;
    } else if (length != -ENOENT) {
      wrong("get gave " + std::to_string(length));
    }
    bool known = false;
    for (uint64_t i = one.acknowledged; i <= one.begun && !known; ++i)
      known = one.states[i] == found;
    if (!known)
      wrong("key " + name(key) + " is of version " + std::to_string(found.version) +
            "; acknowledged was operation " + std::to_string(one.acknowledged) + " (version " +
            std::to_string(one.states[one.acknowledged].version) + "), begun " +
            std::to_string(one.begun));
    one.states = {found};
    one.begun = one.acknowledged = 0;
  }
  if (store->count() != there)
    wrong("the count is " + std::to_string(store->count()) + " of " + std::to_string(there));
  if (store->bytes_actual() != bytes) wrong("bytes_actual is not what is there");
}

// Opens what the crash left, at some level, and works in it. keys: as they were found.
void History::go_on(std::vector<Key>* keys, std::vector<DeviceEvent>* events) {
  SharedDevice device(&copy_);
  std::vector<DeviceEvent> undo;
  device.undo = &undo;
  device.record = events;
  StoreOptions options = options_for(&device, Contents::kExisting, random_);
  const bool waits = random_.below(4) != 0;
  if (!waits) options.durability = Durability::kFlush;
  Store* store = open(options);
  device.mark(kOpened, 0, 0);
  check_store(store);
  read_all(store, keys);
  for (unsigned i = 0; i < 30; ++i)
    operate(store, &device, keys, random_.below(keys->size()), random_, waits);
  if (!waits && store->flush() < 0) wrong("flush after a crash");
  for (uint64_t key = 0; !waits && key < keys->size(); ++key)
    device.mark(kAcknowledged, key, (*keys)[key].states.size() - 1);
  check_store(store);
  store->close();
  roll_back(&undo, &copy_);
}

void History::crash_again(std::vector<Key> found, const std::vector<DeviceEvent>& events) {
  std::vector<DeviceEvent> undo, undo_open;
  const size_t event = random_.below(events.size());
  size_t flushed = 0;
  for (size_t i = 0; i < event; ++i) {
    note(events[i], &found);
    if (events[i].kind == Kind::kFlush) flushed = i;
  }
  for (size_t i = 0; i < flushed; ++i) leave(events[i], Left::kAll, &undo);
  crash(events, flushed, event, random_.below(2), &undo);
  SharedDevice device(&copy_);
  device.undo = &undo_open;
  StoreOptions options = options_for(&device, Contents::kExisting, random_);
  where_ += "again at " + std::to_string(event) + " of " + std::to_string(events.size()) + ": ";
  Store* store = open(options);
  check_store(store);
  read_all(store, &found);
  store->close();
  roll_back(&undo_open, &copy_);
  roll_back(&undo, &copy_);
}

void History::crash_at(size_t event) {
  where_ = "event " + std::to_string(event) + " of " + std::to_string(events_.size()) + ": ";
  std::vector<DeviceEvent> undo, events;
  crash(events_, flushed_, event, random_.below(2), &undo);
  std::vector<Key> keys = keys_;
  go_on(&keys, &events);
  // A crash in the middle of the recovery may leave what the first crash could leave; a later one,
  // what the recovery found.
  size_t opened = 0;
  while (events[opened].mark != kOpened || events[opened].kind != Kind::kMark) ++opened;
  const std::vector<DeviceEvent> recovery(events.begin(),
                                          events.begin() + static_cast<long>(opened));
  if (!recovery.empty() && random_.below(3) == 0)
    crash_again(keys_, recovery);
  else
    crash_again(keys, events);
  roll_back(&undo, &copy_);
}

}  // namespace

TEST_CASE("kv-crash-durable") { run_histories<History>(4, 1000, "nothing acknowledged is lost"); }
