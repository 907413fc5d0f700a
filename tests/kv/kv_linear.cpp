// SPDX-License-Identifier: Apache-2.0
// Linearizability. Threads set, get and delete a few keys at the same time. Each operation notes
// when it began and ended and what it saw. A checker looks for one order of all operations on a key
// that explains every result and respects which operation ended before another began (the search of
// Wing and Gong, which remembers the states that it has seen, as Lowe does). Values are replaced in
// place, by longer and shorter records and by large pairs. Another thread fills the log, so that
// records are cleaned and, on a device, cold.
//   kv_linear [--histories N] [--device URI] [--kept PREFIX --durability N]; LUNAR_SEED= replays
//   the choices, not the interleaving.
// Threading: as above; the checker runs between histories.
#include <errno.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <set>
#include <thread>
#include <vector>

#include "tests/kv/kv_support.h"
#include "tests/support/cases.h"
#include "tests/support/seed.h"

using namespace lunar;
using namespace lunar::kv;
using namespace kv_test;

namespace {

using lunar_test::option;
using lunar_test::text_option;

// of a thread in a history: 56 in all, a bit of a word for each
constexpr unsigned kThreads = 4, kKeys = 3, kOperations = 14;
constexpr uint64_t kLengthMax = 9000, kFillers = 4000;

enum class Kind : uint8_t { kSet, kGet, kDel };

// version 0: the key is not there. kSet: the version that is set; kGet: the one that was seen;
// kDel: `length` says what was deleted.
struct Operation {
  Kind kind;
  unsigned key;
  uint64_t begin, end, version;
  int64_t length;
};

uint64_t length_of(uint64_t version) {
  const uint64_t word = mix(version);
  return word % 16 == 0 ? 5000 + word / 16 % 4000 : 8 + word / 16 % (word % 3 ? 40 : 900);
}

// The version of the key after this operation; UINT64_MAX: the operation cannot be the next one.
uint64_t after(const Operation& operation, uint64_t version) {
  constexpr uint64_t kNever = UINT64_MAX;
  if (operation.kind == Kind::kSet) return operation.version;
  if (operation.kind == Kind::kGet) return operation.version == version ? version : kNever;
  const int64_t expected = version ? static_cast<int64_t>(length_of(version)) : -ENOENT;
  return operation.length == expected ? 0 : kNever;
}

// Checks the operations on one key, which is absent before.
class Checker {
 public:
  explicit Checker(std::vector<Operation> operations) : operations_(std::move(operations)) {}
  bool linearizable() { return search(0, 0); }

 private:
  bool search(uint64_t done, uint64_t version) {
    if (done == (operations_.size() == 64 ? ~uint64_t{0} : (uint64_t{1} << operations_.size()) - 1))
      return true;
    if (!seen_.insert({done, version}).second) return false;
    uint64_t first_end = UINT64_MAX;
    for (size_t i = 0; i < operations_.size(); ++i)
      if (!(done >> i & 1)) first_end = std::min(first_end, operations_[i].end);
    for (size_t i = 0; i < operations_.size(); ++i) {
      if (done >> i & 1 || operations_[i].begin > first_end) continue;
      const uint64_t next = after(operations_[i], version);
      if (next != UINT64_MAX && search(done | uint64_t{1} << i, next)) return true;
    }
    return false;
  }

  std::vector<Operation> operations_;
  std::set<std::pair<uint64_t, uint64_t>> seen_;
};

// Checks the checker: a get that began after a set's end must not see the value before it; a get at
// the same time may.
void check_checker() {
  const auto set = [](uint64_t begin, uint64_t end, uint64_t version) {
    return Operation{Kind::kSet, 0, begin, end, version, 0};
  };
  const auto get = [](uint64_t begin, uint64_t end, uint64_t version) {
    return Operation{Kind::kGet, 0, begin, end, version, 0};
  };
  const auto del = [](uint64_t begin, uint64_t end, uint64_t version) {
    return Operation{Kind::kDel, 0, begin,
                     end,        0, version ? static_cast<int64_t>(length_of(version)) : -ENOENT};
  };
  const struct {
    std::vector<Operation> operations;
    bool right;
  } histories[] = {
      {{set(1, 2, 7), get(3, 4, 7)}, true},
      {{set(1, 4, 7), get(2, 3, 0)}, true},
      {{set(1, 2, 7), get(3, 4, 0)}, false},                              // stale
      {{set(1, 8, 7), get(2, 3, 7), get(4, 5, 0)}, false},                // and back again
      {{set(1, 2, 7), set(3, 4, 8), get(5, 6, 7)}, false},                // lost
      {{set(1, 2, 7), del(3, 6, 7), get(4, 5, 0), get(7, 8, 7)}, false},  // deleted, and back again
      {{set(1, 2, 7), del(3, 6, 7), del(4, 5, 7)}, false},                // deleted twice
      {{set(1, 2, 7), del(3, 6, 0), del(4, 5, 7)}, true},
  };
  for (const auto& history : histories)
    REQUIRE(Checker(history.operations).linearizable() == history.right, "the checker is wrong");
}

struct Step {
  Operation operation{};
  std::string key, value;  // of kSet what is set, of kGet what was read
};

void make_value(std::string* out, uint64_t version) {
  fill(out, 0, version, length_of(version));
  memcpy(out->data(), &version, sizeof version);
}

uint64_t version_of(const Step& get, std::string* wanted) {
  const int64_t length = get.operation.length;
  if (length == -ENOENT) return 0;
  if (length < 8 || static_cast<uint64_t>(length) > kLengthMax)
    FAIL("get of " + get.key + " gave " + std::to_string(length));
  uint64_t version;
  memcpy(&version, get.value.data(), sizeof version);
  make_value(wanted, version);
  if (wanted->size() != static_cast<uint64_t>(length) ||
      memcmp(wanted->data(), get.value.data(), wanted->size()) != 0)
    FAIL(get.key + " has bytes that were never set together");
  return version;
}

class Histories {
 public:
  Histories(Store* store, uint64_t seed) : store_(store), random_(seed) {}
  void run(uint64_t histories);

 private:
  void work(unsigned thread, uint64_t seed, std::vector<Operation>* out);
  void prepare(Step* step, Random& random);
  void carry_out(Step* step);
  void fill_log();
  void check(const std::vector<Operation>& all, uint64_t history);
  std::string name(unsigned key) const { return "key " + std::to_string(key); }

  Store* store_;
  Random random_;
  std::atomic<uint64_t> clock_{0}, versions_{0};
  std::atomic<unsigned> ready_{0};
  std::atomic<bool> over_{false};
  uint64_t beside_ = 0, operations_ = 0, full_ = 0;
};

// Values are made before the operations and checked after them, so that operations overlap.
void Histories::prepare(Step* step, Random& random) {
  const uint64_t choice = random.below(8);
  Operation& operation = step->operation;
  operation.kind = choice < 3 ? Kind::kSet : choice < 6 ? Kind::kGet : Kind::kDel;
  operation.key = static_cast<unsigned>(random.below(kKeys));
  step->key = name(operation.key);
  if (operation.kind == Kind::kGet) step->value.resize(kLengthMax);
  if (operation.kind != Kind::kSet) return;
  operation.version = versions_.fetch_add(1) + 1;
  make_value(&step->value, operation.version);
}

void Histories::carry_out(Step* step) {
  Operation& operation = step->operation;
  const Bytes key = bytes_of(step->key);
  operation.begin = clock_.fetch_add(1);
  if (operation.kind == Kind::kSet)
    operation.length = store_->set(key, bytes_of(step->value));
  else if (operation.kind == Kind::kGet)
    operation.length = store_->get(key, step->value.data(), step->value.size(), 0);
  else
    operation.length = store_->del(key);
  operation.end = clock_.fetch_add(1);
}

void Histories::work(unsigned thread, uint64_t seed, std::vector<Operation>* out) {
  Random random(seed + thread);
  std::vector<Step> steps(kOperations);
  for (Step& step : steps) prepare(&step, random);
  ready_.fetch_add(1);
  while (ready_.load() < kThreads) sched_yield();
  for (Step& step : steps) carry_out(&step);
  std::string wanted;
  for (Step& step : steps) {
    Operation& operation = step.operation;
    // The store may be full for a moment, while dead values wait for their readers. Then nothing
    // has changed.
    if (operation.kind == Kind::kSet && operation.length == -ENOSPC) continue;
    if (operation.kind == Kind::kSet && operation.length != 0)
      FAIL("set gave " + std::to_string(operation.length));
    if (operation.kind == Kind::kGet) operation.version = version_of(step, &wanted);
    out->push_back(operation);
  }
}

// Writes other records, so that the log is used again from its beginning.
void Histories::fill_log() {
  Random random(1);
  std::string value;
  while (!over_.load(std::memory_order_relaxed)) {
    const std::string key = "filler " + std::to_string(random.below(kFillers));
    value.assign(8 + random.below(1200), 'f');
    const int status = store_->set(bytes_of(key), bytes_of(value));
    if (status == -ENOSPC) ++full_;
    if (status != 0 && status != -ENOSPC) FAIL("set of a filler gave " + std::to_string(status));
    sched_yield();
  }
}

void Histories::check(const std::vector<Operation>& all, uint64_t history) {
  for (unsigned key = 0; key < kKeys; ++key) {
    std::vector<Operation> of_key;
    for (const Operation& operation : all)
      if (operation.key == key) of_key.push_back(operation);
    for (const Operation& a : of_key)
      for (const Operation& b : of_key) beside_ += a.begin < b.begin && b.begin < a.end ? 1 : 0;
    operations_ += of_key.size();
    if (Checker(of_key).linearizable()) continue;
    for (const Operation& one : of_key)
      printf("%4lu to %4lu  %s  version %lu, gave %lld\n", one.begin, one.end,
             one.kind == Kind::kSet   ? "set"
             : one.kind == Kind::kGet ? "get"
                                      : "del",
             one.version, static_cast<long long>(one.length));
    FAIL("no order explains history " + std::to_string(history) + " of " + name(key));
  }
}

void Histories::run(uint64_t histories) {
  std::thread filler([this] { fill_log(); });
  // Until there were so many histories and enough operations ran at the same time, also on a slow
  // machine.
  uint64_t history = 0;
  for (; history < histories || beside_ < histories || store_->cleaned_bytes() == 0; ++history) {
    ready_.store(0);
    std::vector<Operation> logs[kThreads], all;
    const uint64_t seed = random_.next();
    lunar_test::in_parallel(kThreads, [&](unsigned i) { work(i, seed, &logs[i]); });
    for (const auto& log : logs) all.insert(all.end(), log.begin(), log.end());
    check(all, history);
    for (unsigned key = 0; key < kKeys; ++key)
      if (const int64_t status = store_->del(bytes_of(name(key))); status < 0 && status != -ENOENT)
        FAIL("del");
  }
  over_.store(true);
  filler.join();
  printf(
      "%lu histories of %lu operations, %lu pairs of them on one key at the same time; cleaning "
      "moved %lu KiB, %lu device I/Os\n",
      history, operations_, beside_, store_->cleaned_bytes() / kKiB, store_->device_ios());
}

}  // namespace

TEST_CASE("kv-linear") {
  check_checker();
  const char* path = text_option("--kept");
  const std::string file = path ? path + ("-" + std::to_string(getpid())) : "";
  const char* kept = path ? file.c_str() : nullptr;
  const char* uri = kept ? kept : text_option("--device");
  StoreOptions options;
  options.log_bytes = 6 * kMiB;
  options.segment_bytes = 64 * kKiB;
  options.dram_bytes = uri ? 5 * kMiB : 12 * kMiB;
  options.shards = 2;
  options.expected_keys = 16;
  if (kept) options.contents = Contents::kNew;
  if (kept) make_file(kept, options.log_bytes + kMiB);
  options.durability = static_cast<Durability>(option("--durability", 0));
  options.device = open_device(uri, options.log_bytes);
  Store* store = open_store(options);
  Histories(store, tier::run_seed()).run(option("--histories", 5000));
  check_store(store);
  store->close();
  if (kept) (void)unlink(kept);
}
