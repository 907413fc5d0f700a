// SPDX-License-Identifier: Apache-2.0
// See kv_bench.h.
//
// Each experiment is a stage or some: stores of the same pairs, each a child process (kv_child.cpp) in a memory cgroup
// of the same limit, that take turns A B C A B C. Medians are quoted, a ratio is the median of the rounds' ratios. What
// a store has to do behind its user's back (compaction, writing back) it does between the turns, untimed. A run whose
// disk did not move what the work needs, and one with a wrong value, fails the bench. What is set up is undone at the
// end, on a signal, and by the next run after kill -9 (bench/setup_journal.h).
// Threading: one thread. May not be used by runtime/ (it allocates).
#include "tools/bench/kv/kv_bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>

#include "tools/bench/bench_main.h"
#include "tools/bench/kv/kv_options.h"
#include "tools/bench/kv/kv_plot.h"
#include "tools/bench/kv/kv_stage.h"

namespace lunar::tools {

namespace {

constexpr uint64_t kMiBytes = 1 << 20;
constexpr unsigned kColdDepth = 128, kYcsbThreads = 16, kStoreThreads = 20, kMemoryDepth = 32;
constexpr unsigned kDurableThreads = 64;
constexpr double kPacedRate = 909e3;  // 1% above what is aimed at, so that what falls short of it is seen
constexpr size_t kOverwriteBytes = 4000;
constexpr uint64_t kKeysAtOnce = 1000;
// Bytes of DRAM budget a small pair: what a quarter of the budget holds as index entries, with some room.
constexpr uint64_t kDramPerSmallPair = 80;
// In memory a log holds three quarters of the budget; some is left for what is overwritten.
constexpr uint64_t memory_budget(uint64_t keys, uint64_t value_bytes) {
  return keys * (value_bytes + 64) * 2 + 64 * kMiBytes;
}
const std::vector<std::string> kLunarOnly{"lunar"}, kOverwritten{"lunar", "rocksdb"};
const std::vector<std::string> kStores{"lunar", "rocksdb", "rocksdb-lz4", "lmdb"};
const std::vector<std::string> kAll{"lunar", "rocksdb", "rocksdb-lz4", "lmdb", "raw"};

class KvBench {
 public:
  explicit KvBench(KvOptions options) { report_.options = std::move(options); }
  KvReport run();

 private:
  const KvOptions& options() const { return report_.options; }
  unsigned rounds() const { return options().rounds; }
  KvStep step(const std::string& workload, const std::string& mix, KvDraw draw, unsigned threads, unsigned depth) const;
  KvStep scan_step(const std::string& workload, uint64_t at_once) const;
  KvStageSetup stage(const char* experiment, bool in_memory, size_t value_bytes, uint64_t keys) const;
  uint64_t small_keys() const { return options().dram_bytes / kDramPerSmallPair; }
  void memory();
  void paper();
  void paper_stage(bool in_memory, unsigned value_bytes, bool htc);
  void load();
  void durable(const std::string& level);
  void cold();
  void overwrite();
  void ycsb();
  void scan_memory();
  void growth();
  void index();

  KvReport report_;
  std::unique_ptr<KvGround> ground_;
};

KvStep KvBench::step(const std::string& workload, const std::string& mix, KvDraw draw, unsigned threads,
                     unsigned depth) const {
  KvStep step;
  step.workload = workload;
  step.mix = mix;
  step.draw = draw;
  step.threads = threads;
  step.depth = depth;
  step.async = depth > 1;
  step.seconds = options().seconds;
  return step;
}

KvStep KvBench::scan_step(const std::string& workload, uint64_t at_once) const {
  KvStep scan = step(workload, "get", KvDraw::kUniform, 1, 1);
  scan.keys_at_once = at_once;
  scan.seconds = std::max(1.0, 2 * options().seconds);
  return scan;
}

KvStageSetup KvBench::stage(const char* experiment, bool in_memory, size_t value_bytes, uint64_t keys) const {
  KvStageSetup setup;
  setup.experiment = experiment;
  setup.in_memory = in_memory;
  setup.value_bytes = value_bytes;
  setup.keys = keys;
  setup.dram_bytes = in_memory ? memory_budget(keys, value_bytes) : options().dram_bytes;
  setup.store_threads = kStoreThreads;
  setup.systems = kLunarOnly;
  return setup;
}

void KvBench::memory() {
  {
    KvStage values(*ground_, stage("memory", true, 4000, options().dram_bytes / 4000));
    values.load_all();
    for (const char* mix : {"get", "set"}) {
      const std::string name = mix;
      values.measure(step(name + "_async", mix, KvDraw::kUniform, 1, kMemoryDepth), rounds());
      values.measure(step(name + "_sync", mix, KvDraw::kUniform, kStoreThreads, 1), rounds());
    }
    KvStep paced = step("get_paced", "get", KvDraw::kUniform, 1, kMemoryDepth);
    paced.rate = kPacedRate;
    values.measure(paced, rounds());
  }
  KvStageSetup one = stage("memory", true, 128, options().dram_bytes / 512);
  one.store_threads = 1;
  KvStage shard(*ground_, one);
  shard.load_all();
  for (const char* mix : {"get", "set"})
    shard.measure(step(fmt::format("shard_{}", mix), mix, KvDraw::kUniform, 1, 1), rounds());
}

void KvBench::paper() {
  for (const bool in_memory : {true, false}) {
    for (const unsigned value_bytes : options().values) {
      if (options().htc != "on") paper_stage(in_memory, value_bytes, false);
      if (options().htc != "off") paper_stage(in_memory, value_bytes, true);
    }
  }
}

// One round and half the time for each: the table is large, and nothing is compared.
void KvBench::paper_stage(bool in_memory, unsigned value_bytes, bool htc) {
  const uint64_t data = in_memory ? options().dram_bytes / 2 : options().data_bytes;
  KvStageSetup setup = stage("paper", in_memory, value_bytes, std::min(data / value_bytes, small_keys()));
  setup.htc = htc;
  setup.in_flight = *std::max_element(options().threads.begin(), options().threads.end()) *
                    *std::max_element(options().depths.begin(), options().depths.end());
  KvStage stores(*ground_, setup);
  stores.load_all();
  const std::string name = fmt::format("{}_{}{}", in_memory ? "memory" : "file", value_bytes, htc ? "_htc" : "");
  for (const unsigned threads : options().threads) {
    for (const unsigned depth : options().depths) {
      for (const char* mix : {"get", "set"}) {
        KvStep one =
            step(fmt::format("{}_{}_t{}_qd{}", name, mix, threads, depth), mix, KvDraw::kUniform, threads, depth);
        one.seconds = options().seconds / 2;
        stores.measure(one, 1);
      }
    }
  }
  for (const uint64_t at_once : {uint64_t{1}, kKeysAtOnce}) {
    KvStep one = scan_step(fmt::format("{}_next_{}", name, at_once), at_once);
    one.seconds = options().seconds / 2;
    stores.measure(one, 1);
  }
}

void KvBench::load() {
  KvStageSetup setup = stage("load", false, 24, small_keys());
  setup.systems = kStores;
  {
    KvStage stores(*ground_, setup);
    if (ground_->wants("load") && options().durability.front() == "flush")
      stores.measure_loads("load_flush", rounds());
    else
      stores.load_all();
    if (ground_->wants("scan")) {
      stores.experiment("scan");
      stores.measure(scan_step("next_file", 1), rounds());
      stores.measure(scan_step("next_many_file", kKeysAtOnce), rounds());
    }
  }
  for (const std::string& level : options().durability)
    if (ground_->wants("load") && level != "flush") durable(level);
}

// A store of a few pairs, to which many threads add others for a while.
void KvBench::durable(const std::string& level) {
  KvStageSetup setup = stage("load", false, 24, 10'000);
  setup.keys_more = small_keys();
  setup.durability = level;
  setup.systems = kStores;
  KvStage stores(*ground_, setup);
  stores.load_all();
  stores.measure(step("load_" + level, "insert", KvDraw::kUniform, kDurableThreads, 1), rounds());
}

void KvBench::cold() {
  KvStageSetup setup = stage("cold", false, 4096, options().data_bytes / 4096);
  setup.systems = kAll;
  KvStage stores(*ground_, setup);
  stores.load_all();
  if (ground_->wants("cold")) {
    for (const KvDraw draw : {KvDraw::kUniform, KvDraw::kZipf}) {
      KvStep deep = step(kKvDrawNames[static_cast<size_t>(draw)], "get", draw, 1, kColdDepth);
      deep.both = true;
      deep.fio = draw == KvDraw::kUniform;
      stores.measure(deep, rounds());
    }
    KvStep one = step("uniform_1", "get", KvDraw::kUniform, 1, 1);
    one.fio = true;
    stores.measure(one, rounds());
  }
  if (!ground_->wants("scan")) return;
  stores.experiment("scan");
  stores.measure(scan_step("all_file", kKeysAtOnce), rounds());
}

// Stores that are so full, each overwritten until it is as it stays; then measured, by one thread and by many.
void KvBench::overwrite() {
  const std::vector<KvOverwrite> all = kv_overwrites();
  std::unique_ptr<KvStage> stores;
  for (size_t i = 0; i < all.size(); ++i) {
    const KvOverwrite& one = all[i];
    if (std::string(one.durability) != "flush" && !ground_->knows_levels()) continue;
    if (i == 0 || all[i - 1].full_percent != one.full_percent) {
      stores.reset();
      KvStageSetup setup = stage("overwrite", false, kOverwriteBytes,
                                 options().data_bytes / (options().quick ? 8 : 2) / kOverwriteBytes);
      setup.full_percent = one.full_percent;
      setup.durability = one.durability;
      setup.load_threads = kDurableThreads;
      setup.systems = kOverwritten;
      stores = std::make_unique<KvStage>(*ground_, setup);
      stores->load_all();
      stores->churn(step("churn", "set", KvDraw::kUniform, kDurableThreads, 1),
                    options().quick ? setup.keys / 4 : 2 * setup.keys);
    }
    KvStep sets = step(one.workload(), "set", KvDraw::kUniform, one.threads, 1);
    sets.seconds = 2 * options().seconds;
    sets.warm_share = 0;  // the amplification has all writes in it
    stores->measure(sets, rounds());
  }
}

void KvBench::ycsb() {
  const uint64_t keys = options().data_bytes / 1000;
  KvStageSetup setup = stage("ycsb", false, 1000, keys);
  setup.keys_more = keys / 4;
  setup.systems = kStores;
  KvStage stores(*ground_, setup);
  stores.load_all();
  // D, which adds pairs, last.
  for (const char* mix : {"c", "b", "a", "f", "d"})
    stores.measure(step(mix, mix, *mix == 'd' ? KvDraw::kLatest : KvDraw::kZipf, kYcsbThreads, 1), rounds());
}

void KvBench::scan_memory() {
  KvStage stores(*ground_, stage("scan", true, 24, small_keys()));
  stores.load_all();
  stores.measure(scan_step("next_memory", 1), rounds());
  stores.measure(scan_step("next_many_memory", kKeysAtOnce), rounds());
}

// So much data that what DRAM holds of it is no matter: both stores read nearly everything. (Of 4 times the DRAM the
// read cache serves a fifth of the gets, of 12 times a sixteenth: that alone makes a ratio of 0.87.)
void KvBench::growth() {
  const uint64_t dram = std::max(64 * kMiBytes, options().dram_bytes / 4);
  KvStageSetup setup = stage("growth", false, 4096, (options().quick ? 2 : 16) * dram / 4096);
  setup.dram_bytes = dram;
  setup.systems = {"lunar", "raw"};  // whether the disk itself gives less of a larger file
  setup.label = "-1x";
  KvStage once(*ground_, setup);
  setup.keys *= 3;
  setup.label = "-3x";
  KvStage thrice(*ground_, setup);
  once.load_all();
  thrice.load_all();
  for (unsigned round = 0; round < rounds(); ++round) {
    once.measure(step("data_1x", "get", KvDraw::kUniform, 1, kColdDepth), 1);
    thrice.measure(step("data_3x", "get", KvDraw::kUniform, 1, kColdDepth), 1);
  }
}

void KvBench::index() {
  KvStage stores(*ground_, stage("index", true, 24, small_keys()));
  stores.measure_loads("load", rounds());
}

KvReport KvBench::run() {
  ground_ = std::make_unique<KvGround>(report_);
  const auto wants = [&](const char* experiment) { return ground_->wants(experiment); };
  if (wants("memory")) memory();
  if (wants("index")) index();
  if (wants("scan")) scan_memory();
  if (wants("load") || wants("scan")) load();
  if (wants("cold") || wants("scan")) cold();
  if (wants("overwrite")) overwrite();
  if (wants("ycsb")) ycsb();
  if (wants("growth")) growth();
  if (wants("paper")) paper();
  ground_.reset();
  return std::move(report_);
}

}  // namespace

int kv_bench_main(int argc, char** argv) {
  KvOptions options;
  if (const std::optional<int> code = parse_kv_options(argc, argv, &options)) return *code;
  return plotting_bench_main<KvBench>("kv", std::move(options));
}

}  // namespace lunar::tools
