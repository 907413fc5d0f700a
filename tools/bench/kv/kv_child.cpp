// SPDX-License-Identifier: Apache-2.0
// A child of `lunar bench kv` with one store. It reads orders (kv_order.h) from standard input and
// answers on standard output. An error ends it.
// Threading: the main thread answers the orders; the driver has its own threads.
#include <algorithm>
#include <memory>
#include <sstream>
#include <stdexcept>

#include "tools/bench/benches.h"
#include "tools/bench/kv/kv_driver.h"
#include "tools/bench/system_under_test.h"
#include "tools/support/flags.h"

namespace lunar::tools {

namespace {

KvOrder parse_order(std::istringstream& words) {
  KvOrder order;
  std::string mix, draw, mode;
  words >> mix >> draw >> mode >> order.threads >> order.depth >> order.seconds >>
      order.warm_seconds >> order.seed;
  const auto* found = std::find_if(std::begin(kKvMixes), std::end(kKvMixes),
                                   [&](const KvMix& m) { return m.name == mix; });
  const auto* drawn = std::find(std::begin(kKvDrawNames), std::end(kKvDrawNames), draw);
  if (!words || found == std::end(kKvMixes) || drawn == std::end(kKvDrawNames))
    throw std::runtime_error("bad order: " + words.str());
  order.mix = *found;
  order.draw = static_cast<KvDraw>(drawn - std::begin(kKvDrawNames));
  order.async = mode == "async";
  return order;
}

}  // namespace

int kv_child_main(int argc, char** argv) {
  Flags flags("a store for `lunar bench kv`", "lunar bench kv-child");
  KvSetup setup;
  KvLimits limits;
  uint64_t seed = 1;
  flags.add("--system", setup.system).required();
  flags.add("--place", setup.place);
  flags.add("--place-bytes", setup.place_bytes);
  flags.add("--library", setup.library);
  flags.add("--durability", setup.durability);
  flags.add("--dram", setup.dram_bytes).required();
  flags.add("--keys", setup.keys).required();
  flags.add("--keys-max", limits.keys_max).required();
  flags.add("--value-bytes", setup.value_bytes).required();
  flags.add("--kept", setup.kept);
  flags.add("--full", setup.full);
  flags.add("--memory", limits.memory_bytes).required();
  flags.add("--disk-stat", limits.disk_stat);
  flags.add("--seed", seed);
  return answer_orders(flags, argc, argv, [&]() -> OrderTaker {
    auto driver = std::make_shared<KvDriver>(setup, limits, seed);
    return [driver](const std::string& verb, std::istringstream& words) {
      if (verb == "run") return driver->run(parse_order(words));
      if (verb != "load") throw std::runtime_error("unknown order: " + words.str());
      unsigned threads = 1;
      words >> threads;
      return driver->load(threads);
    };
  });
}

}  // namespace lunar::tools
