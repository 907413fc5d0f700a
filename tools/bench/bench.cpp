// SPDX-License-Identifier: Apache-2.0
// lunar-bench, which `lunar bench NAME` starts: measurements side by side with what a user would
// pick instead. One file per bench. A program of its own, so that who builds `lunar` does not build
// the benches.
// Threading: one thread. May not be used by runtime/ (it allocates).
#include <fmt/format.h>

#include <string>
#include <string_view>
#include <vector>

#include "tools/bench/benches.h"
#include "tools/subcommands.h"
#include "tools/support/text.h"

namespace lunar::tools {

namespace {
constexpr const char* kHelp =
    "Usage: lunar bench NAME [--json] [--quick] ...\n"
    "  fault      page faults: Lunar against kernel swap on the same disk, under the same memory "
    "limit\n"
    "  fits       programs whose data fits into DRAM: plain, with Lunar below its budget, and with "
    "the pager active\n"
    "  redis      redis-server with Lunar (the module; `lunar run`) against redis-server with "
    "kernel swap\n"
    "  kv         Lunar's key/value store (libarkdb) against RocksDB, LMDB and the bare disk "
    "(fio)\n"
    "  superpipe  random block I/O: a superpipe context and the block library against fio, Linux "
    "AIO and threads\n"
    "`lunar bench NAME --help` lists the options. Swap and memory limits need root (sudo).\n";

struct Bench {
  const char* name;
  int (*run)(int argc, char** argv);
};
constexpr Bench kBenches[] = {{"fault", fault_bench_main},
                              {"fits", fits_bench_main},
                              {"redis", redis_bench_main},
                              {"kv", kv_bench_main},
                              {"superpipe", superpipe_bench_main}};
// Processes that the benches start.
constexpr Bench kChildren[] = {
    {"child", fault_child_main}, {"fits-child", fits_child_main}, {"kv-child", kv_child_main}};

int run_named(int argc, char** argv) {
  if (argc < 2) {
    fmt::print(stderr, "{}", kHelp);
    return kExitUsage;
  }
  const std::string_view name = argv[1];
  if (name == "--help" || name == "-h") {
    fmt::print("{}", kHelp);
    return 0;
  }
  std::vector<std::string> known;
  for (const Bench& bench : kBenches) {
    if (name == bench.name) return bench.run(argc - 1, argv + 1);
    known.emplace_back(bench.name);
  }
  for (const Bench& child : kChildren)
    if (name == child.name) return child.run(argc - 1, argv + 1);
  say_unknown("lunar bench", "bench", argv[1], known);
  return kExitUsage;
}

}  // namespace
}  // namespace lunar::tools

int main(int argc, char** argv) {
  return lunar::tools::finish_output("lunar bench", lunar::tools::run_named(argc, argv));
}
