// SPDX-License-Identifier: Apache-2.0
// Sets that are durable when they return. Threads set and delete keys of their own in a store with
// group commit, or one that commits each; what they begin, what was acknowledged and every write
// and flush is recorded in order. Then the device is put together as a crash could have left it at
// each of its writes (torn, reordered, lost between flushes), and opened: every key must be as some
// operation left it that had begun, and none older than what was acknowledged. The store must be
// sound, go on working at any level, and stand another crash, in the middle of its recovery too.
//   kv_crash_durable [--histories N] [--operations N]; LUNAR_SEED= replays the choices, not the
//   interleaving.
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

constexpr uint64_t kBytes = 3 * kMiB, kLengthMin = 8, kLengthMax = 1'600'000;
using Kind = DeviceEvent::Kind;
enum Mark : unsigned { kBegun, kAcknowledged, kOpened };

// For several threads. They see each other: the holder of the device lets others come.
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

class History {
 public:
  explicit History(uint64_t seed) : random_(seed), seed_(seed), memory_(kBytes), copy_(kBytes) {
    keys_.resize(random_.below(2) ? 40 : 600);
  }
  void make(uint64_t operations);
  uint64_t crash_everywhere();

 private:
  std::string name(uint64_t key) const { return std::string(key % 40, 'k') + std::to_string(key); }
  [[noreturn]] void wrong(const std::string& what) { FAIL(where_ + what); }
  void operate(Store* store, SharedDevice* device, std::vector<Key>* keys, uint64_t key,
               Random& random, bool waits);
  Store* open(SharedDevice* device, const StoreOptions& options);
  void apply(const std::vector<DeviceEvent>& events, size_t from, size_t event,
             std::vector<DeviceEvent>* undo);
  void read_all(Store* store, std::vector<Key>* keys);
  void crash_at(size_t event);
  void go_on(std::vector<Key>* keys, std::vector<DeviceEvent>* events);
  void crash_again(std::vector<Key> found, const std::vector<DeviceEvent>& events);

  Random random_;
  const uint64_t seed_;
  std::vector<char> memory_, copy_;
  std::vector<DeviceEvent> events_;
  std::vector<Key> keys_;
  size_t flushed_ = 0;  // events before this are in copy_
  std::string where_;
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
    fill(&value, key, after.version, after.length);
    memcpy(value.data(), &after.version, sizeof after.version);
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

Store* History::open(SharedDevice* device, const StoreOptions& options) {
  StoreOptions mine = options;
  mine.device = device;
  ErrorText why;
  Store* store = nullptr;
  if (Store::open(mine, &store, &why) < 0) wrong(std::string("does not open: ") + why.text);
  return store;
}

void History::make(uint64_t operations) {
  where_ = "before a crash: ";
  for (char& byte : memory_) byte = static_cast<char>(random_.next());  // what former owners left
  SharedDevice device(&memory_);
  StoreOptions options = options_for(&device, Contents::kNew, random_);
  Store* store = open(&device, options);
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

// As a crash at `event` leaves what was written from `from` on.
void History::apply(const std::vector<DeviceEvent>& events, size_t from, size_t event,
                    std::vector<DeviceEvent>* undo) {
  const bool lost = random_.below(2);
  const auto below = [this](uint64_t n) { return random_.below(n); };
  for (size_t i = from; i <= event && i < events.size(); ++i) {
    if (events[i].fua && i < event)
      leave_of(events[i], Left::kAll, &copy_, below, undo);
    else if (!lost)
      leave_of(events[i], i < event ? Left::kAll : static_cast<Left>(1 + random_.below(2)), &copy_,
               below, undo);
    else if (random_.below(2))
      leave_of(events[i], static_cast<Left>(random_.below(3)), &copy_, below, undo);
  }
}

// Sets each key's model to the state that is found, and forgets its history.
void History::read_all(Store* store, std::vector<Key>* keys) {
  std::string buffer(kLengthMin + kLengthMax, 0), value;
  uint64_t there = 0, bytes = 0;
  for (uint64_t key = 0; key < keys->size(); ++key) {
    Key& one = (*keys)[key];
    const int64_t length = store->get(bytes_of(name(key)), buffer.data(), buffer.size(), 0);
    State found;
    if (length >= 0) {
      found.length = static_cast<uint64_t>(length);
      memcpy(&found.version, buffer.data(), sizeof found.version);
      fill(&value, key, found.version, found.length);
      memcpy(value.data(), &found.version, sizeof found.version);
      if (found.length < kLengthMin || memcmp(value.data(), buffer.data(), found.length) != 0)
        wrong("content of " + name(key));
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

void note(const DeviceEvent& event, std::vector<Key>* keys) {
  if (event.kind != Kind::kMark) return;
  if (event.mark == kBegun) (*keys)[event.offset].begun = event.length;
  if (event.mark == kAcknowledged) (*keys)[event.offset].acknowledged = event.length;
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
  Store* store = open(&device, options);
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
  const auto below = [this](uint64_t n) { return random_.below(n); };
  for (size_t i = 0; i < flushed; ++i) leave_of(events[i], Left::kAll, &copy_, below, &undo);
  apply(events, flushed, event, &undo);
  SharedDevice device(&copy_);
  device.undo = &undo_open;
  StoreOptions options = options_for(&device, Contents::kExisting, random_);
  where_ += "again at " + std::to_string(event) + " of " + std::to_string(events.size()) + ": ";
  Store* store = open(&device, options);
  check_store(store);
  read_all(store, &found);
  store->close();
  roll_back(&undo_open, &copy_);
  roll_back(&undo, &copy_);
}

void History::crash_at(size_t event) {
  where_ = "event " + std::to_string(event) + " of " + std::to_string(events_.size()) + ": ";
  std::vector<DeviceEvent> undo, events;
  apply(events_, flushed_, event, &undo);
  std::vector<Key> keys = keys_;
  go_on(&keys, &events);
  // In the middle of the recovery what was true before it still is; after it, what it found.
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

uint64_t History::crash_everywhere() {
  return crash_at_each_write(
      events_, &flushed_, [this](size_t event) { crash_at(event); },
      [this](size_t event) { note(events_[event], &keys_); },
      [this](size_t event) {
        leave_of(
            events_[event], Left::kAll, &copy_, [this](uint64_t n) { return random_.below(n); },
            nullptr);
      });
}

}  // namespace

TEST_CASE("kv-crash-durable") { run_histories<History>(4, 1000, "nothing acknowledged is lost"); }
