// SPDX-License-Identifier: Apache-2.0
// lunar-bench, which `lunar bench NAME` starts: measurements of Lunar and of its alternatives in
// turns. Each bench has its own file. A program of its own, so that building `lunar` does not build
// the benches.
#include <string_view>

#include "tools/bench/benches.h"
#include "tools/support/text.h"
#include "tools/support/verb_command.h"

namespace lunar::tools {

namespace {

constexpr Subcommand kBenches[] = {
    {"fault",
     "page faults: Lunar against kernel swap on the same disk, under the same memory limit",
     fault_bench_main},
    {"fits", "programs whose data fits into DRAM: plain, below Lunar's budget, and activated",
     fits_bench_main},
    {"redis", "redis-server with Lunar (module; `lunar run`) against one on kernel swap",
     redis_bench_main},
    {"kv", "Lunar's key/value store (libarkdb) against RocksDB, LMDB and the bare disk (fio)",
     kv_bench_main},
    {"superpipe", "random block I/O: superpipe and the block library against fio, AIO and threads",
     superpipe_bench_main}};
// The benches start these processes.
constexpr Subcommand kChildren[] = {{"fault-child", "", fault_child_main},
                                    {"fits-child", "", fits_child_main},
                                    {"kv-child", "", kv_child_main}};

int run_named(int argc, char** argv) {
  for (const Subcommand& child : kChildren)
    if (argc > 1 && std::string_view(argv[1]) == child.name) return child.run(argc - 1, argv + 1);
  return run_subcommand(
      "lunar bench", "bench", kBenches,
      "Usage: lunar bench NAME [--json] [--quick] ...\n" + summaries(kBenches) +
          "`lunar bench NAME --help` lists the options. Swap and memory limits need root (sudo).\n",
      argc, argv);
}

}  // namespace
}  // namespace lunar::tools

int main(int argc, char** argv) {
  return lunar::tools::finish_output("lunar bench", lunar::tools::run_named(argc, argv));
}
