// SPDX-License-Identifier: Apache-2.0
// Write amplification by counts: the bytes written to the device, saved states included, over the
// bytes of keys and values that were set, while a full store is overwritten. A share is the share
// of the log, reserve and states included, that records take. In theory, with u the live part of
// the segment that is emptied, (u - 1) / ln u = share and the amplification is 1 / (1 - u): 2.7 at
// 80%, 1.9 at 70%, 1.5 at 60% of uniform overwrites. Skewed overwrites have less, because pairs
// that are overwritten soon lie apart. One thread never waits for room, because the store cleans
// ahead.
//   kv_amplification [--turns N] [--segment-kib N] [--dram-mib N] [--log-mib N] [--value N]
//     [--all: more shares] [--percent N [--most HUNDREDTHS] [--kept 1] [--zipf 1] [--grows 1]: that
//     one alone]. LUNAR_SEED= replays.
// --segment-kib 0: as long as the store chooses.
// Threading: one thread.
#include <algorithm>
#include <cmath>
#include <vector>

#include "kv/inspect.h"
#include "tests/kv/kv_support.h"
#include "tests/support/cases.h"
#include "tests/support/lun_device.h"
#include "tests/support/seed.h"

using namespace lunar;
using namespace lunar::kv;
using namespace kv_test;

namespace {

using lunar_test::option;

struct Shape {
  uint64_t log_bytes, segment_bytes, dram_bytes, value_bytes, turns;
};

enum class Draw : uint8_t { kUniform, kZipf };

struct Goal {
  uint64_t percent;
  double most;  // 0: none
  Contents contents = Contents::kScratch;
  Draw draw = Draw::kUniform;
  bool grows = false;  // it begins with 16 segments
};

// Keys below `keys`, uniform or zipfian 0.99. Neighbouring ranks are not neighbouring keys.
class Keys {
 public:
  Keys(uint64_t keys, Draw draw) : count_(keys) {
    if (draw == Draw::kUniform) return;
    double sum = 0;
    for (uint64_t i = 1; i <= keys; ++i)
      sums_.push_back(sum += std::pow(static_cast<double>(i), -0.99));
  }
  uint64_t draw(Random* random) const {
    if (sums_.empty()) return random->below(count_);
    const double at = static_cast<double>(random->below(1u << 30)) / (1u << 30) * sums_.back();
    const auto rank =
        static_cast<uint64_t>(std::upper_bound(sums_.begin(), sums_.end(), at) - sums_.begin());
    return rank * 1'000'003 % count_;
  }

 private:
  uint64_t count_;
  std::vector<double> sums_;
};

double amplification(const Goal& goal, const Shape& shape) {
  std::vector<char> memory(shape.log_bytes);
  lunar_test::MemoryDevice device(memory.data(), memory.size());
  StoreOptions options;
  options.device = &device;
  options.log_bytes = goal.grows ? 16 * shape.segment_bytes : 0;
  options.log_bytes_most = goal.grows ? shape.log_bytes : 0;
  options.segment_bytes = shape.segment_bytes;
  options.dram_bytes = shape.dram_bytes;
  options.expected_keys = 1 << 16;
  options.contents = goal.contents;
  Store* store = open_store(options);
  const uint64_t record_bytes = sizeof(uint64_t) + shape.value_bytes + sizeof(Record);
  const uint64_t count =
      (goal.grows ? shape.log_bytes : store->bytes_allocated()) / record_bytes * goal.percent / 100;
  const Keys keys(count, goal.draw);
  Random random(tier::run_seed());
  std::string value;
  const auto set = [&](uint64_t key) {
    fill(&value, key, random.next(), shape.value_bytes);
    REQUIRE(store->set({&key, sizeof key}, bytes_of(value)) == 0);
  };
  for (uint64_t key = 0; key < count; ++key) set(key);
  REQUIRE(store->flush() == 0);  // from here on a state holds what it refers to
  for (uint64_t i = 0; i < shape.turns * count; ++i)
    set(keys.draw(&random));  // until it is as it will stay
  const uint64_t written = device.written_bytes, cleaned = store->cleaned_bytes(),
                 waits = store->waits_for_room();
  for (uint64_t i = 0; i < shape.turns * count; ++i) set(keys.draw(&random));
  const auto set_bytes =
      static_cast<double>(shape.turns * count * (sizeof(uint64_t) + shape.value_bytes));
  const double out = static_cast<double>(device.written_bytes - written) / set_bytes;
  const uint64_t waited = store->waits_for_room() - waits;
  StoreInfo info;
  store->info(&info);
  const uint64_t filled = shape.turns * count * record_bytes / info.segment_bytes;
  printf("%lu of %lu segments waited for; cleaning moved %.2f; ", waited, filled,
         static_cast<double>(store->cleaned_bytes() - cleaned) / set_bytes);
  REQUIRE(waited <= filled / 100, "a set waits for room");
  check_store(store);
  store->close();
  return out;
}

}  // namespace

TEST_CASE("kv-amplification") {
  const Shape shape = {option("--log-mib", 64) * kMiB, option("--segment-kib", 64) * kKiB,
                       option("--dram-mib", 4) * kMiB, option("--value", 992),
                       option("--turns", 2)};
  std::vector<Goal> goals = {{70, 2.2},
                             {80, 2.9},
                             {80, 4.7, Contents::kNew},
                             {80, 1.65, Contents::kScratch, Draw::kZipf},
                             {80, 1.75, Contents::kScratch, Draw::kZipf, true},
                             {80, 2.7, Contents::kNew, Draw::kZipf}};
  if (lunar_test::has_option("--all"))
    goals.insert(goals.end(), {{50, 1.4}, {60, 1.7}, {70, 2.8, Contents::kNew}});
  if (const uint64_t percent = option("--percent", 0))
    goals = {{percent, static_cast<double>(option("--most", 0)) / 100,
              option("--kept", 0) ? Contents::kNew : Contents::kScratch,
              option("--zipf", 0) ? Draw::kZipf : Draw::kUniform, option("--grows", 0) != 0}};
  for (const Goal& goal : goals) {
    const double found = amplification(goal, shape);
    printf("%s%s, %lu%% full, %s: %.2f bytes written a byte, at most %.2f\n",
           goal.contents == Contents::kNew ? "kept" : "scratch", goal.grows ? ", grown" : "",
           goal.percent, goal.draw == Draw::kZipf ? "zipf 0.99" : "uniform", found, goal.most);
    REQUIRE(found > 0, "nothing was counted");
    REQUIRE(goal.most == 0 || found <= goal.most, "too much is written");
  }
}
