// SPDX-License-Identifier: Apache-2.0
// A device that lies and fails: torn writes, writes that land elsewhere, bits that flip, errors.
// Whatever it does, a get gives the value that was set or an error, never anything else; what
// failed has changed nothing; keys whose records are sound stay readable; and a device that only
// failed for a while has cost nothing.
//   kv_faults [--operations N]; LUNAR_SEED= replays.
#include <errno.h>

#include <unordered_map>

#include "superpipe/sim/sim_device.h"
#include "tests/kv/kv_support.h"
#include "tests/support/cases.h"
#include "tests/support/seed.h"

using namespace lunar;
using namespace lunar::kv;
using namespace kv_test;

namespace {

using lunar_test::option;

constexpr uint64_t kKeys = 3000, kLogBytes = 4 * kMiB, kDramBytes = 4 * kMiB;

struct Fault {
  const char* name;
  const char* settings;
  bool lasting;  // what it damaged stays so
};
constexpr Fault kFaults[] = {
    {"torn writes", "torn=9", true},
    {"misdirected writes", "misdirect=9", true},
    {"flipped bits", "corrupt=6", false},
    {"read errors", "read_error=6", false},
    {"write errors", "write_error=3", false},
    {"all of them", "torn=20,misdirect=20,corrupt=20,read_error=20,write_error=20", true}};

class Run {
 public:
  Run(const Fault& fault, uint64_t seed) : fault_(fault), random_(seed), buffer_(kLengthMax, 0) {
    StoreOptions options;
    const std::string uri = "sim:" + std::to_string(kLogBytes) +
                            ",seed=" + std::to_string(seed % 100'000 + 1) + "," + fault.settings;
    device_ = static_cast<SimDevice*>(open_device(uri.c_str(), kLogBytes));
    options.device = device_;
    options.dram_bytes = kDramBytes;
    options.log_bytes = 0;
    options.shards = 4;
    options.expected_keys = 16;
    store_ = open_store(options);
  }
  ~Run() { store_->close(); }
  void operations(uint64_t n);
  void check_result();
  void fail_for_a_while();

 private:
  static constexpr uint64_t kLengthMax = 40'000;
  std::string key(uint64_t number) const { return "key " + std::to_string(number); }
  bool is_failure(int64_t status) const {
    return status == -EIO || status == -EBADMSG || status == -ENOSPC;
  }
  void set(uint64_t number);
  bool get(uint64_t number);
  void del(uint64_t number);
  uint64_t walk();
  [[noreturn]] void wrong(const std::string& what, int64_t got) {
    FAIL(std::string(fault_.name) + ": " + what + " gave " + std::to_string(got));
  }

  const Fault& fault_;
  Random random_;
  std::string buffer_, value_;
  SimDevice* device_ = nullptr;
  Store* store_ = nullptr;
  std::unordered_map<uint64_t, std::pair<uint64_t, uint64_t>> model_;  // key: version and length
  uint64_t version_ = 0, failures_ = 0;
};

void Run::set(uint64_t number) {
  // some are large pairs
  const uint64_t length = random_.below(50) ? random_.below(900) : random_.below(kLengthMax);
  const std::string name = key(number);
  fill(&value_, number, ++version_, length);
  const int status = store_->set(bytes_of(name), bytes_of(value_));
  if (status == 0)
    model_[number] = {version_, length};
  else if (is_failure(status))
    ++failures_;
  else
    wrong("set of " + name, status);
}

// Whether it could be read.
bool Run::get(uint64_t number) {
  const std::string name = key(number);
  const int64_t length = store_->get(bytes_of(name), buffer_.data(), buffer_.size(), 0);
  if (length == -EIO || length == -EBADMSG) {
    ++failures_;
    return false;
  }
  const auto found = model_.find(number);
  if (found == model_.end()) {
    if (length != -ENOENT) wrong("get of no " + name, length);
    return true;
  }
  const auto [version, wanted] = found->second;
  if (length != static_cast<int64_t>(wanted)) wrong("get of " + name, length);
  fill(&value_, number, version, wanted);
  if (memcmp(value_.data(), buffer_.data(), wanted) != 0) wrong("bytes of " + name, length);
  return true;
}

void Run::del(uint64_t number) {
  const std::string name = key(number);
  const uint64_t damaged = store_->damaged_replaced();
  const int64_t length = store_->del(bytes_of(name));
  const auto found = model_.find(number);
  if (is_failure(length)) {
    ++failures_;
  } else if (length >= 0 && found != model_.end() && store_->damaged_replaced() > damaged) {
    model_.erase(found);  // how long its value was may not be known any more
  } else if (found == model_.end() ? length != -ENOENT
                                   : length != static_cast<int64_t>(found->second.second)) {
    wrong("del of " + name, length);
  } else {
    model_.erase(number);
  }
}

// How many keys it gave. Each must be there, and come once; those that it cannot read it tells of.
uint64_t Run::walk() {
  Walk* walk = nullptr;
  REQUIRE(Walk::open(store_, &walk) == 0);
  std::unordered_map<uint64_t, int> seen;
  char name[64];
  uint64_t unreadable = 0;
  for (;;) {
    const int64_t length = walk->next(name, sizeof name - 1);
    if (length == -ENOENT) break;
    if (length == -EIO || length == -EBADMSG) {
      ++unreadable;
      continue;
    }
    if (length <= 0 || length > 40) wrong("a key of a walk", length);
    name[length] = 0;
    unsigned long number;
    if (sscanf(name, "key %lu", &number) != 1 || model_.count(number) == 0 || seen[number]++)
      wrong(std::string("a walk: ") + name, length);
  }
  walk->close();
  if (unreadable == 0 && seen.size() != model_.size())
    wrong("keys of a walk", static_cast<int64_t>(seen.size()));
  return seen.size();
}

void Run::operations(uint64_t n) {
  for (uint64_t i = 0; i < n; ++i) {
    const uint64_t number = random_.below(kKeys), choice = random_.below(10);
    if (choice < 5)
      set(number);
    else if (choice < 9)
      get(number);
    else
      del(number);
  }
}

void Run::check_result() {
  uint64_t readable = 0;
  for (const auto& [number, value] : model_) readable += get(number) ? 1 : 0;
  if (store_->count() != model_.size()) wrong("count", static_cast<int64_t>(store_->count()));
  const uint64_t walked = walk();
  const SimCounters& counters = device_->counters();
  const uint64_t injected = counters.read_errors + counters.write_errors + counters.torn +
                            counters.misdirected + counters.corrupted;
  printf(
      "%-20s %5zu keys, %5lu can be read, %5lu walked; %lu faults, %lu failures told, %lu device "
      "I/Os\n",
      fault_.name, model_.size(), readable, walked, injected, failures_, store_->device_ios());
  if (injected == 0) FAIL(std::string(fault_.name) + ": the device injected no fault");
  if (fault_.lasting && failures_ == 0)
    FAIL(std::string(fault_.name) + ": not one of them was noticed");
  if (readable < model_.size() / 4) FAIL(std::string(fault_.name) + ": hardly a key can be read");
}

// Nothing is lost by a device that refuses everything for a time: it is told, and then all is as
// before.
void Run::fail_for_a_while() {
  device_->set_failing(true, true);
  const uint64_t before = failures_;
  operations(6000);
  REQUIRE(failures_ != before, "a device that refuses everything was not noticed");
  device_->set_failing(false, false);
  for (const auto& [number, value] : model_) {
    REQUIRE(get(number), "a key cannot be read after the device came back");
  }
  set(1);
  operations(3000);
}

}  // namespace

TEST_CASE("kv-faults") {
  const uint64_t operations = option("--operations", 25'000), seed = tier::run_seed();
  for (const Fault& fault : kFaults) {
    Run run(fault, seed);
    run.operations(operations);
    run.check_result();
  }
  const Fault none = {"none, then all, then none", "latency_us=0", false};
  Run run(none, seed);
  run.operations(operations / 2);
  run.fail_for_a_while();
}
