// SPDX-License-Identifier: Apache-2.0
// `lunar bench kv`: Lunar's key/value store against RocksDB, LMDB and the bare disk.
//
// An experiment has one or more stages. A stage has stores of the same pairs, each in a child
// process (kv_child.cpp) in a memory cgroup of the same limit, which take turns A B C A B C. The
// background work of a store (compaction, write-back) runs between the turns, unmeasured. A run
// fails the bench if its disk did not move the bytes that the work needs, or if a value was wrong.
// The setup is undone at the end and on a signal, and after kill -9 by the next run
// (bench/setup_journal.h).
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <memory>

#include "base/units.h"
#include "tools/bench/benches.h"
#include "tools/bench/kv/kv_stage.h"

namespace lunar::tools {

namespace {

constexpr unsigned kColdDepth = 128, kYcsbThreads = 16, kStoreThreads = 20, kMemoryDepth = 32;
constexpr unsigned kDurableThreads = 64;
constexpr size_t kOverwriteBytes = 4000;
// DRAM budget per small pair: a quarter of the budget holds the index entries, with some reserve.
constexpr uint64_t kDramPerSmallPair = 80;
// In memory the log has three quarters of the budget; the rest is a reserve for overwritten pairs.
constexpr uint64_t memory_budget(uint64_t keys, uint64_t value_bytes) {
  return keys * (value_bytes + 64) * 2 + 64 * kMiB;
}
const std::vector<std::string> kStores{"lunar", "rocksdb", "rocksdb-lz4", "lmdb"};

constexpr const char* kFooter =
    "Experiments:\n"
    "  memory  Lunar in memory, 4000-byte values: 32 asynchronous calls in flight, and 20 threads\n"
    "  index   bytes of DRAM per entry of the index\n"
    "  load    writes of new 8/24-byte pairs; at each --durability\n"
    "  cold    gets of --data of 4 KiB values: uniform and zipfian with 128 in flight, uniform "
    "with one\n"
    "  overwrite  repeated uniform sets of half of --data of 4000-byte values, in a place that is "
    "70% and 80% full, by 1 and 16 threads, durable at a flush and by group commit, after enough "
    "sets to reach a steady state\n"
    "  ycsb    YCSB A, B, C, D and F on --data of 1000-byte values, 16 threads\n"
    "Systems: lunar = libarkdb by its ark_* calls; rocksdb, rocksdb-lz4 = RocksDB as its wiki says "
    "for point lookups, without and with compression; lmdb; fio = uniform reads of a file of as "
    "many values, whose content is not checked. All have the same memory cgroup limit and disk, "
    "and the bench checks every byte that the stores return. A system without asynchronous calls "
    "gets a thread for each operation in flight. Durability: flush = a flush at the end (RocksDB "
    "without log, LMDB without sync), group = every write, where writers share a sync, each = "
    "every write.";

class KvBench {
 public:
  explicit KvBench(const KvOptions& options) : ground_(options) {}
  BenchReport run();

 private:
  const KvOptions& options() const { return ground_.options(); }
  unsigned rounds() const { return options().rounds; }
  KvStep step(const std::string& workload, const std::string& mix, KvDraw draw, unsigned threads,
              unsigned depth) const;
  KvStageSetup stage(const char* experiment, bool in_memory, size_t value_bytes,
                     uint64_t keys) const;
  uint64_t small_keys() const { return options().dram_bytes / kDramPerSmallPair; }
  void memory();
  void index();
  void load(const std::string& level);
  void cold();
  void overwrite();
  void ycsb();
  void compare();
  KvGround ground_;
};

KvStep KvBench::step(const std::string& workload, const std::string& mix, KvDraw draw,
                     unsigned threads, unsigned depth) const {
  return {workload, mix, draw, threads, depth, options().seconds};
}

KvStageSetup KvBench::stage(const char* experiment, bool in_memory, size_t value_bytes,
                            uint64_t keys) const {
  KvStageSetup setup;
  setup.experiment = experiment;
  setup.in_memory = in_memory;
  setup.value_bytes = value_bytes;
  setup.keys = keys;
  setup.dram_bytes = in_memory ? memory_budget(keys, value_bytes) : options().dram_bytes;
  setup.systems = in_memory ? std::vector<std::string>{"lunar"} : kStores;
  return setup;
}

void KvBench::memory() {
  KvStage values(ground_, stage("memory", true, 4000, options().dram_bytes / 4000));
  values.load_all();
  for (const std::string mix : {"get", "set"}) {
    values.measure(step(mix + "_async", mix, KvDraw::kUniform, 1, kMemoryDepth), rounds());
    values.measure(step(mix + "_sync", mix, KvDraw::kUniform, kStoreThreads, 1), rounds());
  }
}

void KvBench::index() {
  KvStage stores(ground_, stage("index", true, 24, small_keys()));
  stores.measure_loads("load", rounds());
}

// Durable at a flush: loads all pairs. Otherwise many threads add pairs to a small store for some
// time.
void KvBench::load(const std::string& level) {
  KvStageSetup setup = stage("load", false, 24, level == "flush" ? small_keys() : 10'000);
  setup.keys_more = level == "flush" ? 0 : small_keys();
  setup.durability = level;
  KvStage stores(ground_, setup);
  if (level == "flush") return stores.measure_loads("load_flush", rounds());
  stores.load_all();
  stores.measure(step("load_" + level, "insert", KvDraw::kUniform, kDurableThreads, 1), rounds());
}

void KvBench::cold() {
  KvStageSetup setup = stage("cold", false, 4096, options().data_bytes / 4096);
  setup.systems.push_back("fio");
  KvStage stores(ground_, setup);
  stores.load_all();
  stores.measure(step("uniform", "get", KvDraw::kUniform, 1, kColdDepth), rounds());
  stores.measure(step("zipf", "get", KvDraw::kZipf, 1, kColdDepth), rounds());
  stores.measure(step("uniform_1", "get", KvDraw::kUniform, 1, 1), rounds());
}

// Overwrites the full stores until they are in a steady state, then measures them with one thread
// and with many.
void KvBench::overwrite() {
  std::unique_ptr<KvStage> stores;
  unsigned full_percent = 0;
  for (const KvOverwrite& one : kv_overwrites()) {
    if (std::string(one.durability) != "flush" && !ground_.knows_levels()) continue;
    if (full_percent != one.full_percent) {
      full_percent = one.full_percent;
      stores.reset();
      KvStageSetup setup =
          stage("overwrite", false, kOverwriteBytes,
                options().data_bytes / (options().quick ? 8 : 2) / kOverwriteBytes);
      setup.full_percent = one.full_percent;
      setup.durability = one.durability;
      setup.load_threads = kDurableThreads;
      setup.systems = {"lunar", "rocksdb"};
      stores = std::make_unique<KvStage>(ground_, setup);
      stores->load_all();
      stores->churn(step("churn", "set", KvDraw::kUniform, kDurableThreads, 1),
                    options().quick ? setup.keys / 4 : 2 * setup.keys);
    }
    KvStep sets = step(one.workload(), "set", KvDraw::kUniform, one.threads, 1);
    sets.seconds = 2 * options().seconds;
    sets.warm_share = 0;  // the amplification must include all writes
    stores->measure(sets, rounds());
  }
}

void KvBench::ycsb() {
  const uint64_t keys = options().data_bytes / 1000;
  KvStageSetup setup = stage("ycsb", false, 1000, keys);
  setup.keys_more = keys / 4;
  KvStage stores(ground_, setup);
  stores.load_all();
  // D comes last, because it adds pairs.
  for (const char* mix : {"c", "b", "a", "f", "d"})
    stores.measure(step(mix, mix, *mix == 'd' ? KvDraw::kLatest : KvDraw::kZipf, kYcsbThreads, 1),
                   rounds());
}

void KvBench::compare() {
  BenchReport& report = ground_.report;
  for (const BenchRow& ours : report.rows)
    for (const BenchRow& theirs : report.rows)
      if (ours.system == "lunar" && theirs.system != "lunar" &&
          theirs.experiment == ours.experiment && theirs.workload == ours.workload)
        report.compare(theirs.system, ours.experiment + "_" + ours.workload + "_", ours, theirs);
  report.targets = kv_targets(report);
}

BenchReport KvBench::run() {
  const auto wants = [&](const char* experiment) { return ground_.wants(experiment); };
  if (wants("memory")) memory();
  if (wants("index")) index();
  if (wants("load"))
    for (const std::string& level : options().durability) load(level);
  if (wants("cold")) cold();
  if (wants("overwrite")) overwrite();
  if (wants("ycsb")) ycsb();
  compare();
  return std::move(ground_.report);
}

void parse(Flags& flags, KvOptions& options, int argc, char** argv) {
  options.seconds = 1;
  options.systems = {"lunar", "rocksdb", "rocksdb-lz4", "lmdb", "fio"};
  MemoryFlags memory(flags, options, {"128m", "64m", "96m", 64});
  add_choice(flags, "--experiments", options.experiments,
             std::vector<std::string>(options.experiments), "see below");
  add_choice(flags, "--durability", options.durability, {"flush", "group", "each"},
             "durability of load");
  flags.add("--library", options.library,
            "another libarkdb, for example IBM's (default: this Lunar's)");
  const BenchFlags common(flags, options,
                          "directory for all files; or Lunar's place, a file, device or URI (the "
                          "files of the others are in /var/tmp then)",
                          "a rough answer within half a minute on a quiet machine, --rounds 1");
  flags.footer(kFooter);
  flags.parse(argc, argv);
  common.settle(0.1, 1);
  memory.settle(2);
  if (!options.library.empty() && access(options.library.c_str(), R_OK) != 0)
    throw FlagsError("--library", options.library + " cannot be read");
}

}  // namespace

int kv_bench_main(int argc, char** argv) {
  Flags flags(
      "Lunar's key/value store against RocksDB, LMDB and the bare disk, under the same memory "
      "limit",
      "lunar bench kv", true);
  KvOptions options;
  return run_bench(
      flags, options, [&] { parse(flags, options, argc, argv); },
      [&] { return KvBench(options).run(); });
}

}  // namespace lunar::tools
