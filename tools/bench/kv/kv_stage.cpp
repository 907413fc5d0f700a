// SPDX-License-Identifier: Apache-2.0
// See kv_stage.h.
#include "tools/bench/kv/kv_stage.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <stdexcept>

#include "base/units.h"
#include "tools/bench/io/fio_job.h"
#include "tools/bench/swap_file.h"
#include "tools/support/clock.h"
#include "tools/support/host.h"
#include "tools/support/text_file.h"

namespace lunar::tools {

namespace {

constexpr double kPatienceSeconds = 400;
constexpr uint64_t kLmdbAllowance = 16 * kMiB;  // code, stacks, the states of the keys
// File space per byte of pairs: a log needs free space for cleaning, and the other stores take as
// much.
constexpr uint64_t kSpaceFactor = 2;
// Bytes of the key and the record's header, per pair.
constexpr uint64_t kPairOverhead = 40;

}  // namespace

KvGround::KvGround(const KvOptions& options) : options_(options), begun_ns_(now_ns()) {
  const uint64_t each = options.dram_bytes + options.allowance_bytes;
  host_ = check_bench_host(
      options.lun, std::max<uint64_t>(options.systems.size() * each, 3 * options.dram_bytes));
  auto& skipped = report.skipped = host_.skipped;
  skipped.erase("swap");
  std::error_code ignored;
  lun_is_directory_ = std::filesystem::is_directory(options.lun, ignored);
  report.skip_unasked(options.systems, {"lunar", "rocksdb", "rocksdb-lz4", "lmdb", "fio"});
  if (!host_.cgroup && has("lmdb"))
    skipped["lmdb"] =
        "its cache is the page cache, which only a memory cgroup limits: run with sudo";
  if (!lun_is_directory_) skipped["overwrite"] = "--lun " + options.lun + " has a fixed size";
  fio_ = find_in_path("fio");
  if (fio_.empty()) skipped["fio"] = "not installed: apt-get install fio";
  skipped["ycsb e"] = "the interface has no scan in the order of keys";
  check_library();
  directory_.emplace(journal(), fmt::format("{}/lunar-bench-{}-kv", host_.directory, getpid()));
}

// Finds the library. Only the interface of another library is known, not the effect of its flush
// (IBM's empties the store).
void KvGround::check_library() {
  std::string& library = options_.library;
  kept_ = library.empty() && lun_is_directory_;
  if (library.empty()) {
    std::string tried;
    library = find_own_library("runtime/kv/ark/libarkdb-0.so", "libarkdb-0.so", &tried);
    if (library.empty())
      report.skipped["lunar"] = "libarkdb-0.so is not there (looked at " + tried + ")";
  }
  // A library that ignores LUNAR_KV_DURABILITY would measure another level.
  knows_levels_ =
      kept_ && read_text(library).value_or("").find("LUNAR_KV_DURABILITY") != std::string::npos;
  std::vector<std::string>& levels = options_.durability;
  if (knows_levels_ || levels == std::vector<std::string>{"flush"}) return;
  report.skipped["durability"] =
      "lunar: " + library + " ignores LUNAR_KV_DURABILITY: only at a flush";
  levels = {"flush"};
}

void KvGround::say(const std::string& text) {
  progress_.say(
      fmt::format("[{:>3.0f} s] {}", static_cast<double>(now_ns() - begun_ns_) / 1e9, text));
}

KvStage::KvStage(KvGround& ground, KvStageSetup setup)
    : ground_(ground), setup_(std::move(setup)) {}

KvStage::~KvStage() {
  for (const std::string& system : setup_.systems) stop(system);
}

std::string KvStage::place_of(const std::string& system) const {
  if (setup_.in_memory) return "";
  if (!ground_.lun_is_directory() && system == "lunar") return ground_.options().lun;
  return ground_.directory() + "/" + system;
}

// LMDB uses all memory below its limit as cache, so it gets a smaller allowance; the others use no
// more of theirs than they need.
uint64_t KvStage::memory_limit(const std::string& system) const {
  const uint64_t allowance = ground_.options().allowance_bytes;
  return setup_.dram_bytes + (system == "lmdb" ? std::min(allowance, kLmdbAllowance) : allowance) +
         4 * (setup_.keys + setup_.keys_more);
}

void KvStage::start(const std::string& system) {
  const std::string place = place_of(system);
  if (system == "fio")
    return write_whole_file(place, setup_.keys * setup_.value_bytes, 0, 1, check_interrupted);
  // Lunar may take an empty file, and make it as large as it needs.
  if (system == "lunar" && !setup_.in_memory && ground_.lun_is_directory()) {
    const int fd = open(place.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0) throw std::runtime_error(fmt::format("{}: {}", place, strerror(errno)));
    close(fd);
  }
  const auto number = [](uint64_t value) { return fmt::format("{}", value); };
  const uint64_t pairs = setup_.keys * (setup_.value_bytes + kPairOverhead);
  uint64_t room = setup_.full_percent > 0 ? pairs * 100 / setup_.full_percent
                                          : kSpaceFactor * pairs + 512 * kMiB;
  // In a tiny store, the reserve for cleaning and states is a large share.
  if (setup_.full_percent > 0 && ground_.options().quick) room += room / 8;
  SystemUnderTest::Setup child;
  child.system = system;
  child.limit_bytes = memory_limit(system);
  child.cgroup = ground_.host().cgroup;
  child.child = "kv-child";
  child.arguments = {"--system",      system,
                     "--place",       place,
                     "--place-bytes", setup_.in_memory ? "0" : number(room),
                     "--library",     ground_.options().library,
                     "--durability",  setup_.durability,
                     "--dram",        number(setup_.dram_bytes),
                     "--keys",        number(setup_.keys),
                     "--keys-max",    number(setup_.keys + setup_.keys_more),
                     "--value-bytes", number(setup_.value_bytes),
                     "--memory",      number(memory_limit(system)),
                     "--disk-stat",   ground_.host().disk_stat,
                     "--seed",        number(ground_.options().seed)};
  if (ground_.kept() && !setup_.in_memory) child.arguments.push_back("--kept");
  if (setup_.full_percent > 0) child.arguments.push_back("--full");
  stores_[system] = std::make_unique<SystemUnderTest>(child, ground_.journal());
}

void KvStage::stop(const std::string& system) {
  if (const auto found = stores_.find(system); found != stores_.end()) {
    double& peak = ground_.report.peak_bytes[system];
    peak = std::max(peak, static_cast<double>(found->second->peak_bytes()));
    stores_.erase(found);
  }
  if (setup_.in_memory || place_of(system) == ground_.options().lun) return;
  std::error_code ignored;
  std::filesystem::remove_all(place_of(system), ignored);
}

RunResult KvStage::send_order(const std::string& system, const std::string& workload,
                              const std::string& line, double seconds_max) {
  const RunResult run = stores_.at(system)->order(line, seconds_max);
  ground_.report.check(fmt::format("{} {} {}", setup_.experiment, workload, system), run);
  return run;
}

RunResult KvStage::load(const std::string& system, const std::string& workload) {
  ground_.say(
      fmt::format("{} {}: {} loads {} pairs", setup_.experiment, workload, system, setup_.keys));
  stop(system);
  start(system);
  return system == "fio" ? RunResult()
                         : send_order(system, workload, fmt::format("load {}", setup_.load_threads),
                                      kPatienceSeconds);
}

void KvStage::each(const std::function<void(const std::string& system)>& work) {
  for (const std::string& system : setup_.systems) {
    if (ground_.has(system)) ground_.report.attempt(system, [&] { work(system); });
    if (!ground_.has(system)) stores_.erase(system);
  }
}

void KvStage::load_all() {
  each([&](const std::string& system) { (void)load(system, "load"); });
}

void KvStage::measure_loads(const std::string& workload, unsigned rounds) {
  KvStep step;
  step.workload = workload;
  step.threads = setup_.load_threads;
  for (unsigned round = 0; round < rounds; ++round)
    each([&](const std::string& system) { add_row(system, step, {load(system, workload)}); });
}

RunResult KvStage::run(const std::string& system, const KvStep& step) {
  ground_.say(fmt::format("{} {}: {}", setup_.experiment, step.workload, system));
  if (system == "fio") return run_fio(step);
  const bool chains = system == "lunar" && step.depth > 1;
  return send_order(
      system, step.workload,
      fmt::format("run {} {} {} {} {} {} {} {}", step.mix,
                  kKvDrawNames[static_cast<size_t>(step.draw)], chains ? "async" : "sync",
                  chains ? step.threads : step.threads * step.depth, chains ? step.depth : 1,
                  step.seconds, step.warm_share * step.seconds, ground_.next_seed()),
      10 * step.seconds + kPatienceSeconds);
}

RunResult KvStage::run_fio(const KvStep& step) {
  const FioTarget target{place_of("fio"), ground_.host().disk_stat, 0,
                         setup_.keys * setup_.value_bytes, setup_.value_bytes};
  IoOrder order;
  order.system = "fio";
  order.depth = step.depth;
  order.batch = batch_of(step.depth);
  order.seconds = step.seconds;
  order.warm_seconds = step.warm_share * step.seconds;
  const RunResult found = measure_fio_run(ground_.fio(), target, order);
  ground_.report.check(fmt::format("{} {} fio", setup_.experiment, step.workload), found);
  return found;
}

void KvStage::churn(const KvStep& step, uint64_t writes) {
  each([&](const std::string& system) {
    for (double done = 0; done < static_cast<double>(writes);) done += run(system, step).writes;
  });
}

void KvStage::measure(const KvStep& step, unsigned rounds) {
  for (unsigned round = 0; round < rounds; ++round) {
    each([&](const std::string& system) {
      if (system != "fio" ? stores_.count(system) > 0 : step.draw == KvDraw::kUniform)
        add_row(system, step, {run(system, step)});
    });
  }
}

void KvStage::add_row(const std::string& system, const KvStep& step,
                      const std::vector<RunResult>& runs) {
  const bool deep = step.depth > 1 && (system == "lunar" || system == "fio");
  BenchRow row;
  row.system = system;
  row.experiment = setup_.experiment;
  row.workload = step.workload;
  row.place = setup_.in_memory                            ? "memory"
              : place_of(system) == ground_.options().lun ? "lun"
                                                          : "file";
  row.durability =
      setup_.in_memory || (system == "lunar" && !ground_.kept()) ? "none" : setup_.durability;
  row.value_bytes = setup_.value_bytes;
  row.threads = deep ? step.threads : step.threads * step.depth;
  row.depth = deep ? step.depth : 1;
  ground_.report.add(row, runs);
}

}  // namespace lunar::tools
