// SPDX-License-Identifier: Apache-2.0
// The engine against a model: random operations on few and on many keys, in a log so small that it
// is cleaned all the time. Every result and every byte is compared with a std::unordered_map. A set
// may be refused because the store is full; then nothing may have changed. With a device, at least
// three quarters of the log lie there.
// On a device that fails (torn writes, writes that land elsewhere, bits that flip, errors) a get
// gives the value that was set or an error. A failed operation has changed nothing. Keys whose
// records are sound stay readable. A device that failed only for a while has cost nothing.
//   kv_model kv-model [--operations N] [--device URI]
//   kv_model kv-faults [--operations N]; LUNAR_SEED= replays.
#include <errno.h>

#include <set>
#include <unordered_map>
#include <vector>

#include "superpipe/sim/sim_device.h"
#include "tests/kv/kv_support.h"
#include "tests/support/cases.h"
#include "tests/support/seed.h"

using namespace lunar;
using namespace lunar::kv;
using namespace kv_test;

namespace {

using lunar_test::option;
using lunar_test::text_option;

struct Kind {
  const char* name;
  uint64_t keys, log_bytes, value_max;
  unsigned shards;
  uint64_t segment_bytes = 0;
  const char* faults = nullptr;  // settings of a simulated device
  bool lasting = false;          // what it damaged stays so
};
// The last two are full: not all live pairs fit in.
constexpr Kind kKinds[] = {{"few keys", 64, 2 * kMiB, 300, 1},
                           {"many keys", 40'000, 4 * kMiB, 200, 8},
                           {"large values", 24, 8 * kMiB, 300'000, 4},
                           {"values on blocks", 200, 4 * kMiB, 40'000, 2, 256 * kKiB},
                           {"full of small ones", 60'000, 3 * kMiB, 200, 4},
                           {"full of large ones", 64, 4 * kMiB, 200'000, 2}};

constexpr Kind faulty(const char* name, const char* faults, bool lasting) {
  return {name, 3000, 4 * kMiB, 40'000, 4, 0, faults, lasting};
}
constexpr Kind kFaulty[] = {
    faulty("torn writes", "torn=9", true),
    faulty("misdirected writes", "misdirect=9", true),
    faulty("flipped bits", "corrupt=6", false),
    faulty("read errors", "read_error=6", false),
    faulty("write errors", "write_error=3", false),
    faulty("all of them", "torn=20,misdirect=20,corrupt=20,read_error=20,write_error=20", true)};
constexpr Kind kFailsForAWhile = faulty("none, then all, then none", "latency_us=0", false);

bool is_fault(int64_t status) { return status == -EIO || status == -EBADMSG; }

class Model {
 public:
  Model(const Kind& kind, uint64_t seed, const char* uri)
      : kind_(kind), random_(seed), buffer_(kind.value_max + 64, 0) {
    StoreOptions options;
    options.log_bytes = kind.log_bytes;
    const std::string faulty = "sim:" + std::to_string(kind.log_bytes) +
                               ",seed=" + std::to_string(seed % 100'000 + 1) + "," +
                               (kind.faults ? kind.faults : "");
    device_ = options.device = open_device(kind.faults ? faulty.c_str() : uri, kind.log_bytes);
    options.dram_bytes = kind.faults      ? 4 * kMiB
                         : options.device ? 5 * kMiB
                                          : kind.log_bytes + 8 * kMiB;
    options.shards = kind.shards;
    options.segment_bytes = kind.segment_bytes;
    options.expected_keys = 16;  // grows
    dram_bytes_ = options.dram_bytes;
    store_ = open_store(options);
  }
  ~Model() { store_->close(); }
  void run(uint64_t operations);
  void run_faulty(uint64_t operations);
  void fail_for_a_while(uint64_t operations);

 private:
  std::string key(uint64_t number);
  void one();
  void set(const std::string& key);
  bool get(const std::string& key);
  void del(const std::string& key);
  void any();
  void walk();
  // Whether any call may fail like this on this device.
  bool failed(int64_t status) {
    const bool is = kind_.faults && (is_fault(status) || status == -ENOSPC);
    failures_ += is ? 1 : 0;
    return is;
  }
  void wrong(const char* what, int64_t got, int64_t wanted) {
    FAIL(std::string(kind_.name) + ": " + what + " gave " + std::to_string(got) + ", wanted " +
         std::to_string(wanted));
  }

  const Kind& kind_;
  Random random_;
  Device* device_;
  Store* store_;
  std::unordered_map<std::string, std::string> model_;
  std::string buffer_, value_;
  uint64_t version_ = 0, bytes_ = 0, full_ = 0, failures_ = 0, dram_bytes_ = 0;
};

// Keys of all lengths, also 0; some share long beginnings.
std::string Model::key(uint64_t number) {
  if (number == 0) return "";
  std::string text = std::to_string(number);
  if (number % 7 == 0) text.insert(0, number % 91, 'k');
  if (kind_.value_max > 100'000 && number % 11 == 3)
    text.insert(0, 70'000, 'K');  // a key that is large itself
  return text;
}

void Model::set(const std::string& key) {
  uint64_t length = random_.below(3) ? random_.below(kind_.value_max) : random_.below(32);
  if (kind_.faults && random_.below(50)) length = random_.below(900);
  const auto found = model_.find(key);
  // in place, more or less
  if (found != model_.end() && random_.below(2))
    length = found->second.size() + random_.below(9) - 4;
  if (length > kind_.value_max) length = 0;
  if (kind_.value_max > 4096 * 3)
    length = or_whole_blocks(random_, kind_.segment_bytes ? 2 : 6, length);
  fill(&value_, mix(key.size()), ++version_, length);
  const int status = store_->set(bytes_of(key), bytes_of(value_));
  if (failed(status)) return;
  if (status == -ENOSPC) {
    ++full_;
    if (bytes_ < kind_.log_bytes / 4) wrong("set with three quarters free", status, 0);
    (void)get(key);  // as it was
    return;
  }
  if (status != 0) wrong("set", status, 0);
  bytes_ -= found != model_.end() ? found->second.size() + key.size() : 0;
  bytes_ += key.size() + value_.size();
  model_[key] = value_;
}

// Returns whether the key could be read.
bool Model::get(const std::string& key) {
  const auto found = model_.find(key);
  const uint64_t offset = random_.below(4) ? 0 : random_.below(kind_.value_max + 10);
  const uint64_t bytes = random_.below(4) ? buffer_.size() : random_.below(buffer_.size());
  memset(buffer_.data(), 0x5a, buffer_.size());
  const int64_t length = store_->get(bytes_of(key), buffer_.data(), bytes, offset);
  if (failed(length)) return false;
  if (found == model_.end()) {
    if (length != -ENOENT) wrong("get of no key", length, -ENOENT);
    return true;
  }
  const std::string& value = found->second;
  if (length != static_cast<int64_t>(value.size()))
    wrong("get", length, static_cast<int64_t>(value.size()));
  const uint64_t rest = offset < value.size() ? value.size() - offset : 0,
                 part = rest < bytes ? rest : bytes;
  if (part && memcmp(buffer_.data(), value.data() + offset, part) != 0) wrong("bytes of get", 0, 0);
  for (uint64_t i = part; i < buffer_.size() && i < part + 64; ++i) {
    if (buffer_[i] != 0x5a)
      wrong("get wrote behind what it had", static_cast<int64_t>(i), static_cast<int64_t>(part));
  }
  return true;
}

void Model::del(const std::string& key) {
  const auto found = model_.find(key);
  const int64_t wanted =
      found == model_.end() ? -ENOENT : static_cast<int64_t>(found->second.size());
  const uint64_t damaged = store_->damaged_replaced();
  const int64_t length = store_->del(bytes_of(key));
  if (failed(length)) return;
  // The length of a damaged value may be unknown.
  const bool any = length >= 0 && found != model_.end() && store_->damaged_replaced() > damaged;
  if (length != wanted && !any) wrong("del", length, wanted);
  if (found == model_.end()) return;
  bytes_ -= key.size() + found->second.size();
  model_.erase(found);
}

void Model::any() {
  std::string found(80'000, 0);
  const int64_t length = store_->random(found.data(), found.size());
  if (failed(length)) return;
  if (length < 0 ? !model_.empty() || length != -ENOENT
                 : model_.count(found.substr(0, static_cast<uint64_t>(length))) != 1)
    wrong("random", length, static_cast<int64_t>(model_.size()));
}

void Model::walk() {
  Walk* walk = nullptr;
  REQUIRE(Walk::open(store_, &walk) == 0);
  std::set<std::string> seen;
  std::string found(80'000, 0);
  const uint64_t failures = failures_;
  for (;;) {
    const int64_t length = walk->next(found.data(), found.size());
    if (length == -ENOENT) break;
    if (failed(length)) continue;
    if (length < 0) wrong("walk", length, 0);
    const std::string key = found.substr(0, static_cast<uint64_t>(length));
    if (model_.count(key) == 0 || !seen.insert(key).second)
      FAIL("walk gave a key twice, or one that is not there: " + key);
  }
  if (seen.size() != model_.size() && failures_ == failures)
    wrong("keys of a walk", static_cast<int64_t>(seen.size()), static_cast<int64_t>(model_.size()));
  walk->close();
}

void Model::one() {
  const std::string name = key(random_.below(kind_.keys));
  const uint64_t choice = random_.below(100);
  if (choice < 45) return set(name);
  if (choice < 85) return (void)get(name);
  if (choice < 97) return del(name);
  if (choice == 97) return any();
  const auto found = model_.find(name);
  const int64_t wanted =
      found == model_.end() ? -ENOENT : static_cast<int64_t>(found->second.size());
  const int64_t length = store_->exists(bytes_of(name));
  if (length != wanted && !failed(length)) wrong("exists", length, wanted);
}

void Model::run(uint64_t operations) {
  for (uint64_t i = 0; i < operations; ++i) {
    one();
    if (i % (operations / 4) == operations / 4 - 1) {
      walk();
      check_store(store_);
      if (store_->dram_used() > dram_bytes_)
        wrong("dram_used", static_cast<int64_t>(store_->dram_used()),
              static_cast<int64_t>(dram_bytes_));
    }
  }
  if (store_->count() != model_.size())
    wrong("count", static_cast<int64_t>(store_->count()), static_cast<int64_t>(model_.size()));
  if (store_->bytes_actual() != bytes_)
    wrong("bytes_actual", static_cast<int64_t>(store_->bytes_actual()),
          static_cast<int64_t>(bytes_));
  for (const auto& [name, value] : model_) (void)get(name);
  printf(
      "%-20s %8zu keys, %7lu KiB, full %lu times, cleaning moved %lu KiB, %lu device I/Os, index "
      "%.1f bytes an entry\n",
      kind_.name, model_.size(), bytes_ / 1024, full_, store_->cleaned_bytes() / 1024,
      store_->device_ios(),
      static_cast<double>(store_->index_bytes()) /
          static_cast<double>(model_.empty() ? 1 : model_.size()));
  // Deleted pairs are free space again.
  while (!model_.empty()) del(std::string(model_.begin()->first));
  REQUIRE(store_->count() == 0 && store_->bytes_actual() == 0,
          "not empty after everything was deleted");
  fill(&value_, 1, 1, kind_.value_max);
  for (uint64_t i = 0; i * kind_.value_max < kind_.log_bytes / 2; ++i) {
    const std::string name = "again" + std::to_string(i);
    if (const int status = store_->set(bytes_of(name), bytes_of(value_)); status != 0)
      wrong("set after everything was deleted", status, 0);
  }
  check_store(store_);
}

void Model::run_faulty(uint64_t operations) {
  for (uint64_t i = 0; i < operations; ++i) one();
  uint64_t readable = 0;
  for (const auto& [name, value] : model_) readable += get(name) ? 1 : 0;
  if (store_->count() != model_.size())
    wrong("count", static_cast<int64_t>(store_->count()), static_cast<int64_t>(model_.size()));
  walk();
  const SimCounters& counters = static_cast<SimDevice*>(device_)->counters();
  const uint64_t injected = counters.read_errors + counters.write_errors + counters.torn +
                            counters.misdirected + counters.corrupted;
  printf("%-20s %5zu keys, %5lu can be read; %lu faults, %lu failures told, %lu device I/Os\n",
         kind_.name, model_.size(), readable, injected, failures_, store_->device_ios());
  if (injected == 0) FAIL(std::string(kind_.name) + ": the device injected no fault");
  if (kind_.lasting && failures_ == 0)
    FAIL(std::string(kind_.name) + ": not one of them was noticed");
  if (readable < model_.size() / 4) FAIL(std::string(kind_.name) + ": hardly a key can be read");
}

// A device that fails for a while: calls return errors, and afterwards all is as before.
void Model::fail_for_a_while(uint64_t operations) {
  auto* device = static_cast<SimDevice*>(device_);
  for (uint64_t i = 0; i < operations; ++i) one();
  device->set_failing(true, true);
  const uint64_t before = failures_;
  for (uint64_t i = 0; i < 6000; ++i) one();
  REQUIRE(failures_ != before, "a device that refuses everything was not noticed");
  device->set_failing(false, false);
  for (const auto& [name, value] : model_)
    REQUIRE(get(name), "a key cannot be read after the device came back");
  for (uint64_t i = 0; i < 3000; ++i) one();
}

}  // namespace

TEST_CASE("kv-model") {
  const uint64_t operations = option("--operations", 1'000'000), seed = tier::run_seed();
  const char* uri = text_option("--device");
  for (uint64_t i = 0; i < std::size(kKinds); ++i) {
    // Operations on large values cost a hundred times as much.
    const uint64_t share = kKinds[i].value_max > 100'000 ? operations / 100
                           : kKinds[i].segment_bytes     ? operations / 20
                                                         : operations * 93 / 100 / 3;
    Model(kKinds[i], seed + i, uri).run(share);
  }
}

TEST_CASE("kv-faults") {
  const uint64_t operations = option("--operations", 25'000), seed = tier::run_seed();
  for (const Kind& kind : kFaulty) Model(kind, seed, nullptr).run_faulty(operations);
  Model(kFailsForAWhile, seed, nullptr).fail_for_a_while(operations / 2);
}
