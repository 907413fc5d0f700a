// SPDX-License-Identifier: Apache-2.0
// `lunar bench NAME`: measurements side by side with what a user would pick instead. One file a bench.
// Threading: one thread. May not be used by runtime/ (it allocates).
#include <fmt/format.h>

#include <string_view>

#include "tools/bench/fault/fault_bench.h"
#include "tools/bench/fault/fault_child.h"
#include "tools/bench/fault/fits_bench.h"
#include "tools/bench/io/io_bench.h"
#include "tools/bench/kv/kv_bench.h"
#include "tools/bench/kv/kv_child.h"
#include "tools/bench/lio/lio_bench.h"
#include "tools/bench/redis/redis_bench.h"
#include "tools/subcommands.h"
#include "tools/support/text.h"

namespace lunar::tools {

namespace {
constexpr const char* kHelp =
    "Usage: lunar bench NAME [--json] [--quick] ...\n"
    "  fault      page faults: Lunar against kernel swap on the same disk, under the same memory limit\n"
    "  fits       programs whose data fits into DRAM: plain, with Lunar below its budget, and with the pager active\n"
    "  redis      redis-server with Lunar (the module; `lunar run`) against redis-server with kernel swap\n"
    "  kv         Lunar's key/value store (libarkdb) against RocksDB, LMDB and the bare disk\n"
    "  superpipe  random block I/O: a superpipe context and the block library against blocking threads, Linux AIO and "
    "fio\n"
    "  stripe     several files of one disk as one device, against each file separately\n"
    "  lio        lists of I/Os on pmem: by delegate threads, against one after the other and lio_listio\n"
    "  window     block I/O with buffers registered once against buffers mapped for each I/O\n"
    "`lunar bench NAME --help` lists the options. Swap and memory limits need root (sudo).\n";
}  // namespace

int cmd_bench(int argc, char** argv) {
  const std::string_view name = argc > 1 ? argv[1] : "";
  if (name == "fault") return fault_bench_main(argc - 1, argv + 1);
  if (name == "redis") return redis_bench_main(argc - 1, argv + 1);
  if (name == "kv") return kv_bench_main(argc - 1, argv + 1);
  if (name == "superpipe") return superpipe_bench_main(argc - 1, argv + 1);
  if (name == "stripe") return stripe_bench_main(argc - 1, argv + 1);
  if (name == "window") return window_bench_main(argc - 1, argv + 1);
  if (name == "lio") return lio_bench_main(argc - 1, argv + 1);
  if (name == "fits") return fits_bench_main(argc - 1, argv + 1);
  if (name == "fits-child") return fits_child_main(argc - 1, argv + 1);  // for the bench itself
  if (name == "kv-child") return kv_child_main(argc - 1, argv + 1);      // likewise
  if (name == "child") return fault_child_main(argc - 1, argv + 1);      // for the benches themselves
  if (name == "--help" || name == "-h") {
    fmt::print("{}", kHelp);
    return 0;
  }
  if (name.empty())
    fmt::print(stderr, "{}", kHelp);
  else
    fmt::print(stderr, "lunar: bench: no bench named '{}'; see lunar bench --help\n", printable(name));
  return kExitUsage;
}

}  // namespace lunar::tools
