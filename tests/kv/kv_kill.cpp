// SPDX-License-Identifier: Apache-2.0
// A process that writes to stores on files is killed by SIGKILL at random moments, many times:
// while it opens, replays, writes, walks, compacts, saves. After each kill the stores are opened
// and every key is read. It must have a version that was acknowledged as durable or one that was
// begun after it, with the bytes of that version. The process sets, overwrites and deletes pairs of
// all lengths, at another level of durability after each kill. A walk at the same time must give
// each key that stays once. Sometimes, and at the end, `lunar kv check` must find the stores clean.
//   kv_kill LUNAR [--kills N] [--minutes N] [--stores N] [--path DIRECTORY]; LUNAR_SEED= replays
//   the choices, not the moments. --minutes: a soak, which lets the process live longer between the
//   kills; for so long, whatever --kills is.
// Threading: each key is written by one thread; what was begun and acknowledged lies in memory that
// the process and its children share.
#include <errno.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "kv/store_path.h"
#include "tests/kv/kv_support.h"
#include "tests/support/cases.h"
#include "tests/support/seed.h"

using namespace lunar;
using namespace lunar::kv;
using namespace kv_test;

namespace {

using lunar_test::option;
using lunar_test::text_option;

constexpr uint64_t kThreads = 4, kKeysAThread = 400, kKeys = kThreads * kKeysAThread,
                   kStaying = 500;
constexpr uint64_t kPlaceBytes = 24 * kMiB;

struct Key {
  std::atomic<uint64_t> begun, done, durable;  // versions, each number used once
};

struct Shared {
  Key keys[kKeys];
  std::atomic<uint64_t> operations, flushes, walks, compactions, cleaned;
  std::atomic<bool> open;
};

bool is_delete(uint64_t version) { return mix(version) % 6 == 0; }

uint64_t length_of(uint64_t key, uint64_t version) {
  const uint64_t word = mix(key * 0x9e3779b97f4a7c15 + version);
  return word % 64 == 0 ? 60'000 + word / 64 % 200'000
                        : 8 + word / 64 % (word % 4 == 0 ? 6000 : 300);
}

void make_value(std::string* out, uint64_t key, uint64_t version) {
  fill(out, key, version, length_of(key, version));
  memcpy(out->data(), &version, sizeof version);
}

// One store, and what is known of each of its keys.
class Place {
 public:
  explicit Place(std::string path) : path_(std::move(path)) {
    void* memory =
        mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    REQUIRE(memory != MAP_FAILED);
    shared_ = new (memory) Shared{};
    base_.resize(kKeys);
    from_.resize(kKeys, 1);
    make();
  }
  ~Place() { (void)unlink(path_.c_str()); }
  Place(const Place&) = delete;
  Place& operator=(const Place&) = delete;

  // In the child: opens the store, and adds the threads that use it.
  void write_in(std::vector<std::jthread>* threads, Durability durability, uint64_t seed);
  void verify(Durability durability);
  void check(const char* lunar) const;
  Shared& shared() { return *shared_; }
  uint64_t present() const { return present_; }

 private:
  Store* open(Contents contents, Durability durability);
  void make();
  void write_keys(Store* store, uint64_t thread, uint64_t seed, bool durable);
  void flush_again_and_again(Store* store);
  void walk_again_and_again(Store* store);
  void compact_again_and_again(Store* store);
  uint64_t found_version(Store* store, uint64_t key, std::string* buffer, std::string* wanted);

  std::string path_;
  Shared* shared_;
  std::vector<uint64_t> base_;  // the version that the last open found; 0: none
  std::vector<uint64_t> from_;  // the first that was begun after that
  uint64_t present_ = 0;
};

Store* Place::open(Contents contents, Durability durability) {
  StorePath place;
  place.path = path_.c_str();
  place.mode = contents == Contents::kNew ? OpenMode::kMake : OpenMode::kLoad;
  place.bytes_if_empty = kPlaceBytes;
  place.caller = "kv_kill";
  StoreOptions options;
  options.durability = durability;
  options.log_bytes = 0;
  options.segment_bytes = contents == Contents::kNew ? 64 * kKiB : 0;
  options.dram_bytes = 6 * kMiB;
  options.expected_keys = kKeys;
  options.replay_bytes_most = 16 * kMiB;
  ErrorText why;
  Store* store = nullptr;
  // As kv_test::open_device: a killed process may still hold it.
  int status;
  do status = persistent_store_open(place, &options, &store, &why);
  while (status == -EBUSY);
  if (status < 0) FAIL(why.text);
  return store;
}

// With the keys that stay: numbers behind those of the others.
void Place::make() {
  Store* store = open(Contents::kNew, Durability::kFlush);
  for (uint64_t key = kKeys; key < kKeys + kStaying; ++key)
    REQUIRE(store->set({&key, sizeof key}, {&key, sizeof key}) == 0, "set of a key that stays");
  REQUIRE(store->flush() == 0);
  store->close();
}

void Place::write_keys(Store* store, uint64_t thread, uint64_t seed, bool durable) {
  Random random(seed * kThreads + thread);
  std::string value;
  for (;;) {
    const uint64_t key = thread * kKeysAThread + random.below(kKeysAThread);
    Key& state = shared_->keys[key];
    const uint64_t version = state.begun.load() + 1;
    state.begun.store(version);
    int64_t status;
    if (is_delete(version)) {
      status = store->del({&key, sizeof key});
      if (status == -ENOENT) status = 0;
    } else {
      make_value(&value, key, version);
      status = store->set({&key, sizeof key}, bytes_of(value));
    }
    if (status < 0) FAIL("child: set or del: " + std::to_string(status));
    state.done.store(version);
    if (durable) state.durable.store(version);
    shared_->operations.fetch_add(1);
  }
}

void Place::flush_again_and_again(Store* store) {
  std::vector<uint64_t> done(kKeys);
  for (;;) {
    for (uint64_t key = 0; key < kKeys; ++key) done[key] = shared_->keys[key].done.load();
    if (const int status = store->flush(); status < 0)
      FAIL("child: flush: " + std::to_string(status));
    for (uint64_t key = 0; key < kKeys; ++key) shared_->keys[key].durable.store(done[key]);
    shared_->flushes.fetch_add(1);
  }
}

void Place::walk_again_and_again(Store* store) {
  for (;;) {
    Walk* walk = nullptr;
    REQUIRE(Walk::open(store, &walk) == 0);
    std::vector<unsigned> seen(kStaying);
    uint64_t key;
    for (int64_t length; (length = walk->next(&key, sizeof key)) != -ENOENT;) {
      if (length != sizeof key || key >= kKeys + kStaying)
        FAIL("child: a walk gave " + std::to_string(length));
      if (key >= kKeys) ++seen[key - kKeys];
    }
    walk->close();
    for (const unsigned times : seen)
      if (times != 1)
        FAIL("child: a walk gave a key that stays " + std::to_string(times) + " times");
    shared_->walks.fetch_add(1);
  }
}

void Place::compact_again_and_again(Store* store) {
  for (uint64_t cleaned = 0;;) {
    if (const int status = store->compact(); status < 0)
      FAIL("child: compact: " + std::to_string(status));
    const uint64_t now = store->cleaned_bytes();
    shared_->cleaned.fetch_add(now - cleaned);
    cleaned = now;
    shared_->compactions.fetch_add(1);
    sys::sleep_ns(20'000'000);
  }
}

void Place::write_in(std::vector<std::jthread>* threads, Durability durability, uint64_t seed) {
  Store* store = open(Contents::kExisting, durability);
  shared_->open.store(true);
  for (uint64_t i = 0; i < kThreads; ++i)
    threads->emplace_back(
        [=, this] { write_keys(store, i, seed, durability != Durability::kFlush); });
  if (seed % 2 == 0) {  // else writers and flushes have the store to themselves
    threads->emplace_back([=, this] { walk_again_and_again(store); });
    threads->emplace_back([=, this] { compact_again_and_again(store); });
  }
  if (durability == Durability::kFlush)
    threads->emplace_back([=, this] { flush_again_and_again(store); });
}

// 0: the key is not there.
uint64_t Place::found_version(Store* store, uint64_t key, std::string* buffer,
                              std::string* wanted) {
  const int64_t length = store->get({&key, sizeof key}, buffer->data(), buffer->size(), 0);
  if (length == -ENOENT) return 0;
  if (length < 8) FAIL("get: " + std::to_string(length));
  uint64_t version;
  memcpy(&version, buffer->data(), sizeof version);
  make_value(wanted, key, version);
  if (wanted->size() != static_cast<uint64_t>(length) ||
      memcmp(wanted->data(), buffer->data(), wanted->size()) != 0)
    FAIL("key " + std::to_string(key) + " has bytes that were never set");
  return version;
}

void Place::verify(Durability durability) {
  Store* store = open(Contents::kExisting, durability);
  check_store(store);
  std::string buffer(300'000, 0), wanted;
  present_ = 0;
  for (uint64_t key = 0; key < kKeys; ++key) {
    Key& state = shared_->keys[key];
    const uint64_t begun = state.begun, durable = state.durable,
                   version = found_version(store, key, &buffer, &wanted);
    // The versions that are certainly durable, and those begun after them. A version below from_ is
    // of an earlier open: only base_ is.
    const bool any_durable = durable >= from_[key];
    const uint64_t least = any_durable ? durable : from_[key];
    bool right = !any_durable && version == base_[key];
    for (uint64_t other = least; other <= begun && !right; ++other)
      right = is_delete(other) ? version == 0 : version == other;
    if (!right)
      FAIL("key " + std::to_string(key) + " has version " + std::to_string(version) + "; before " +
           std::to_string(base_[key]) + ", durable " + std::to_string(durable) + ", begun " +
           std::to_string(begun));
    present_ += version ? 1 : 0;
    base_[key] = version;
    from_[key] = begun + 1;
  }
  for (uint64_t key = kKeys; key < kKeys + kStaying; ++key) {
    uint64_t value = 0;
    REQUIRE(store->get({&key, sizeof key}, &value, sizeof value, 0) == sizeof value && value == key,
            "a key that stays is gone");
  }
  if (store->count() != present_ + kStaying)
    FAIL("keys that were never set, or twice: " + std::to_string(store->count()));
  store->close();
}

void Place::check(const char* lunar) const {
  const std::string command = std::string("'") + lunar + "' kv check '" + path_ + "' >&2";
  if (const int status = system(command.c_str()); status != 0)
    FAIL("lunar kv check: " + std::to_string(status));
}

class Kills {
 public:
  Kills(const char* lunar, const std::string& path, uint64_t stores, bool soak)
      : lunar_(lunar), soak_(soak), random_(tier::run_seed()) {
    for (uint64_t i = 0; i < stores; ++i)
      places_.push_back(std::make_unique<Place>(path + "-" + std::to_string(i)));
  }
  void round();
  void check() {
    for (const auto& place : places_) place->check(lunar_);
  }
  void report();
  uint64_t kills() const { return kills_; }

 private:
  [[noreturn]] void write_until_killed(Durability durability, uint64_t seed);
  void wait_for_moment(pid_t child, Durability durability);
  uint64_t sum(std::atomic<uint64_t> Shared::* counter) {
    uint64_t out = 0;
    for (const auto& place : places_) out += place->shared().*counter;
    return out;
  }

  const char* lunar_;
  bool soak_;
  Random random_;
  std::vector<std::unique_ptr<Place>> places_;
  uint64_t kills_ = 0, early_ = 0, levels_[3] = {};
};

void Kills::write_until_killed(Durability durability, uint64_t seed) {
  std::vector<std::jthread> threads;
  for (size_t i = 0; i < places_.size(); ++i)
    places_[i]->write_in(&threads, durability, seed + 2 * i);
  threads.clear();
  _exit(1);
}

// Every fifth kill comes after a time, perhaps before a store is open. The others come after a
// number of operations and, where only a flush makes something durable, of flushes.
void Kills::wait_for_moment(pid_t child, Durability durability) {
  const bool by_clock = random_.below(5) == 0;
  const uint64_t end = sys::now_ns() + random_.below(random_.below(2) ? 2'000'000 : 30'000'000);
  const uint64_t many = soak_ ? 20'000 : 6000,
                 most = random_.below(soak_ ? 2 : 8) == 0 ? many : 600;
  const uint64_t operations = sum(&Shared::operations) + 1 + random_.below(most);
  const bool flushed = durability == Durability::kFlush;
  const uint64_t flushes = sum(&Shared::flushes) + (flushed ? random_.below(12) : 0);
  while (by_clock ? sys::now_ns() < end
                  : sum(&Shared::operations) < operations || sum(&Shared::flushes) < flushes) {
    sys::sleep_ns(20'000);
    REQUIRE(waitpid(child, nullptr, WNOHANG) != child, "the writing process ended by itself");
  }
  if (flushed && !by_clock) sys::sleep_ns(random_.below(20'000'000));  // into the next one
}

void Kills::round() {
  const auto durability = static_cast<Durability>(random_.below(3));
  const uint64_t seed = random_.next();
  for (const auto& place : places_) place->shared().open.store(false);
  fflush(stdout);
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) write_until_killed(durability, seed);
  wait_for_moment(child, durability);
  int ended = 0;
  REQUIRE(kill(child, SIGKILL) == 0 && waitpid(child, &ended, 0) == child && WIFSIGNALED(ended));
  REQUIRE(WTERMSIG(ended) == SIGKILL, "the writing process ended by a signal of its own");
  early_ += places_.back()->shared().open.load() ? 0 : 1;
  ++levels_[static_cast<unsigned>(durability)];
  ++kills_;
  for (const auto& place : places_) place->verify(static_cast<Durability>(random_.below(3)));
}

void Kills::report() {
  uint64_t present = 0;
  for (const auto& place : places_) present += place->present();
  const uint64_t walks = sum(&Shared::walks), compactions = sum(&Shared::compactions),
                 cleaned = sum(&Shared::cleaned);
  printf(
      "%zu stores, %lu kills (%lu before all were open; none, group, each: %lu, %lu, %lu), %lu "
      "sets and deletes, %lu flushes, %lu walks, %lu compactions that moved %lu MiB: all that was "
      "acknowledged is there; %lu keys at the end\n",
      places_.size(), kills_, early_, levels_[0], levels_[1], levels_[2], sum(&Shared::operations),
      sum(&Shared::flushes), walks, compactions, cleaned / kMiB, present);
  if (soak_ && (walks == 0 || compactions == 0 || cleaned == 0))
    FAIL("no walk came to its end, or no compaction");
}

}  // namespace

TEST_CASE("kv-kill") {
  REQUIRE(lunar_test::g_argc >= 2,
          "kv_kill LUNAR [--kills N] [--minutes N] [--stores N] [--path DIRECTORY]");
  const char* directory = text_option("--path");
  const uint64_t kills = option("--kills", 12), minutes = option("--minutes", 0);
  const uint64_t end = sys::now_ns() + minutes * 60'000'000'000;
  Kills test(lunar_test::g_argv[1],
             std::string(directory ? directory : "/var/tmp") + "/lunar-kv-kill-" +
                 std::to_string(getpid()),
             option("--stores", 1), minutes != 0);
  while (minutes ? sys::now_ns() < end : test.kills() < kills) {
    test.round();
    if (test.kills() % (minutes ? 100 : 10) == 0) test.check();
  }
  test.check();
  test.report();
}
