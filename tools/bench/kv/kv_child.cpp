// SPDX-License-Identifier: Apache-2.0
// One store of `lunar bench kv`, in a process of its own. Reads orders (kv_order.h) from standard input, answers on
// standard output. What was wrong ends it.
// Threading: the main thread speaks the protocol; the driver has its own. May not be used by runtime/ (it allocates).
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <iostream>
#include <sstream>
#include <stdexcept>

#include "tools/bench/benches.h"
#include "tools/bench/kv/kv_driver.h"

namespace lunar::tools {

namespace {

KvOrder parse_order(std::istringstream& words) {
  KvOrder order;
  std::string mix, draw, mode;
  words >> mix >> draw >> mode >> order.threads >> order.depth >> order.seconds >> order.warm_seconds >> order.seed;
  const auto* found =
      std::find_if(std::begin(kKvMixes), std::end(kKvMixes), [&](const KvMix& m) { return m.name == mix; });
  const auto* drawn = std::find(std::begin(kKvDrawNames), std::end(kKvDrawNames), draw);
  if (!words || found == std::end(kKvMixes) || drawn == std::end(kKvDrawNames))
    throw std::runtime_error("bad order: " + words.str());
  order.mix = *found;
  order.draw = static_cast<KvDraw>(drawn - std::begin(kKvDrawNames));
  order.async = mode == "async";
  return order;
}

void say(const std::string& line) {
  const std::string whole = line + "\n";
  if (write(STDOUT_FILENO, whole.data(), whole.size()) < 0) _exit(1);  // the bench is gone
}

RunResult carry_out(KvDriver& driver, const std::string& line) {
  std::istringstream words(line);
  std::string verb;
  words >> verb;
  if (verb == "load") {
    unsigned threads = 1;
    words >> threads;
    return driver.load(threads);
  }
  if (verb != "run") throw std::runtime_error("unknown order: " + line);
  return driver.run(parse_order(words));
}

}  // namespace

int kv_child_main(int argc, char** argv) {
  CLI::App app{"a store for `lunar bench kv`"};
  KvSetup setup;
  KvLimits limits;
  uint64_t seed = 1;
  app.add_option("--system", setup.system)->required();
  app.add_option("--place", setup.place);
  app.add_option("--place-bytes", setup.place_bytes);
  app.add_option("--library", setup.library);
  app.add_option("--durability", setup.durability);
  app.add_option("--dram", setup.dram_bytes)->required();
  app.add_option("--keys", setup.keys)->required();
  app.add_option("--keys-max", limits.keys_max)->required();
  app.add_option("--value-bytes", setup.value_bytes)->required();
  app.add_flag("--kept", setup.kept);
  app.add_option("--memory", limits.memory_bytes)->required();
  app.add_option("--disk-stat", limits.disk_stat);
  app.add_option("--seed", seed);
  try {
    app.parse(argc, argv);
    KvDriver driver(setup, limits, seed);
    say("ready");
    for (std::string line; std::getline(std::cin, line);) say(format_run(carry_out(driver, line)));
  } catch (const CLI::ParseError& error) { return app.exit(error); } catch (const std::exception& error) {
    say(std::string("error ") + error.what());
    return 1;
  }
  return 0;
}

}  // namespace lunar::tools
