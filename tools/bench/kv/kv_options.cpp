// SPDX-License-Identifier: Apache-2.0
// See kv_options.h.
// Threading: free functions. May not be used by runtime/ (it allocates).
#include "tools/bench/kv/kv_options.h"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <iterator>

#include "tools/bench/kv/kv_content.h"
#include "tools/bench/size_option.h"
#include "tools/support/flags.h"

namespace lunar::tools {

namespace {

constexpr uint64_t kMiBytes = 1 << 20;

constexpr const char* kFooter =
    "Experiments:\n"
    "  memory  Lunar in memory: 4000-byte values by 20 threads, asynchronous (also at 909,000 gets a second) and\n"
    "          synchronous; 128-byte values by one thread\n"
    "  paper   Lunar as in the paper on ArkDB: 8-byte keys, --values, --threads x --depths, in memory and on a file\n"
    "  load    writes of new 8/24-byte pairs; at each --durability\n"
    "  cold    gets of 4 KiB values, --data of them: uniform and zipfian with 128 in flight, uniform with one\n"
    "  overwrite  uniform sets of half of --data of 4000-byte values again, in a place that is 70% and 80% full, by 1\n"
    "          and 16 threads, durable at a flush and by group commit, after enough sets to reach a steady state\n"
    "  ycsb    YCSB A, B, C, D and F on --data of 1000-byte values, 16 threads\n"
    "  scan    all keys one by one and 1000 per call, and the disk from end to end\n"
    "  growth  cold gets of 16 and of 48 times the DRAM, which is a quarter of --dram (64m at least)\n"
    "  index   bytes per entry of the index\n"
    "Systems: lunar = libarkdb by its ark_* calls; rocksdb, rocksdb-lz4 = RocksDB as its wiki says for point lookups,\n"
    "without and with compression; lmdb; raw = values in the slots of a file, by io_uring and O_DIRECT; fio = fio\n"
    "on that file, uniform gets only, without a look at the values. All have the same memory cgroup limit and disk,\n"
    "and the bench checks every byte that is read. A system without asynchronous calls gets a thread for each\n"
    "operation in flight. Durability: flush = a flush at the end (RocksDB without log, LMDB without\n"
    "sync), group = every write, where writers share a sync, each = every write.";

void add_options(CLI::App& app, KvOptions& options) {
  const std::vector<std::string> experiments(std::begin(kKvExperiments), std::end(kKvExperiments));
  const std::vector<std::string> systems(std::begin(kKvSystems), std::end(kKvSystems));
  options.experiments = experiments;
  options.systems = systems;
  const auto list = [&](const char* name, auto& values, const char* help) {
    return app.add_option(name, values, help)->delimiter(',');
  };
  list("--experiments", options.experiments, "see below (default: all)")->check(CLI::IsMember(experiments));
  list("--systems", options.systems, "any of lunar,rocksdb,rocksdb-lz4,lmdb,raw,fio (default: all)")
      ->check(CLI::IsMember(systems));
  list("--threads", options.threads, "threads of paper (default 1,20)")->check(CLI::Range(1, 128));
  list("--depths", options.depths, "for paper: operations that a thread has in flight; 1: synchronous (default 1,32)")
      ->check(CLI::Range(1, 1024));
  list("--values", options.values, "for paper: bytes of a value (default 24,4096)")->check(CLI::Range(24, 1 << 20));
  list("--durability", options.durability, "for load: flush,group,each (default flush)")
      ->check(CLI::IsMember(std::vector<std::string>{"flush", "group", "each"}));
  app.add_option("--htc", options.htc, "for paper: with ARK_KV_HTC, without, or both (default)")
      ->check(CLI::IsMember(std::vector<std::string>{"on", "off", "both"}));
  app.add_option("--library", options.library, "another libarkdb, IBM's for one (default: this Lunar's)");
  app.add_option("--plot", options.plot, "draw figures as SVG in this directory (needs gnuplot)");
}

void finish(KvOptions& options, const std::string& dram, const std::string& data, const std::string& allowance) {
  options.dram_bytes = size_option("--dram", dram);
  options.data_bytes = data.empty() ? 4 * options.dram_bytes : size_option("--data", data);
  options.allowance_bytes = size_option("--allowance", allowance);
  if (options.dram_bytes < 64 * kMiBytes) throw CLI::ValidationError("--dram", "at least 64m");
  if (options.data_bytes < options.dram_bytes) throw CLI::ValidationError("--data", "at least --dram");
  for (const unsigned value : options.values)
    if (value % 8 != 0) throw CLI::ValidationError("--values", "multiples of 8");
  if (!options.library.empty() && access(options.library.c_str(), R_OK) != 0)
    throw CLI::ValidationError("--library", options.library + " cannot be read");
}

void parse(CLI::App& app, KvOptions& options, int argc, char** argv) {
  std::string dram, data, allowance = "96m";
  add_options(app, options);
  auto* dram_option = app.add_option("--dram", dram, "DRAM budget of each store (default 128m; 64m with --quick)");
  auto* data_option = app.add_option("--data", data, "bytes of values (default: 4 times --dram; twice with --quick)");
  app.add_option("--allowance", allowance,
                 "memory limit of each system above --dram: code, stacks, page tables (default 96m)");
  options.seconds = 1;
  const CommonFlags common(app, options,
                           "directory for all files (default /var/tmp); or Lunar's place, a file, device or URI: the "
                           "others stay in /var/tmp",
                           "a rough answer within half a minute on a quiet machine, --rounds 1");
  app.footer(kFooter);
  app.parse(argc, argv);
  common.settle({0.1, 1});
  if (dram_option->count() == 0) dram = options.quick ? "64m" : "128m";
  if (options.quick && data_option->count() == 0) data = std::to_string(2 * size_option("--dram", dram));
  finish(options, dram, data, allowance);
}

}  // namespace

std::optional<int> parse_kv_options(int argc, char** argv, KvOptions* options) {
  CLI::App app{"Lunar's key/value store against RocksDB, LMDB and the bare disk, under the same memory limit",
               "lunar bench kv"};
  try {
    parse(app, *options, argc, argv);
  } catch (const CLI::ParseError& error) { return refuse_flags(app, error); }
  return std::nullopt;
}

}  // namespace lunar::tools
