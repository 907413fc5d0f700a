// SPDX-License-Identifier: Apache-2.0
// See kv_stage.h.
// Threading: as in the header. May not be used by runtime/ (it allocates).
#include "tools/bench/kv/kv_stage.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <stdexcept>

#include "tools/bench/io/fio_job.h"
#include "tools/support/clock.h"
#include "tools/support/host.h"
#include "tools/support/text_file.h"

namespace lunar::tools {

namespace {

constexpr uint64_t kMiBytes = 1 << 20;
constexpr double kPatienceSeconds = 400;
constexpr uint64_t kLmdbAllowance = 16 * kMiBytes;  // code, stacks, the states of the keys
// Space of a file for each byte of pairs: what a log needs to clean in, and what the others take without being asked.
constexpr uint64_t kSpaceFactor = 2;
// Keys and records' headers, for each pair.
constexpr uint64_t kPairOverhead = 40;

bool is_directory(const std::string& path) {
  struct stat info{};
  return stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode);
}

}  // namespace

KvGround::KvGround(KvReport& report) : report_(report), begun_ns_(now_ns()) {
  const KvOptions& asked = report_.options;
  const uint64_t each = asked.dram_bytes + asked.allowance_bytes;
  host_ = check_bench_host(asked.lun, std::max<uint64_t>(asked.systems.size() * each, 3 * asked.dram_bytes));
  report_.skipped = host_.skipped;
  report_.skipped.erase("swap");
  lun_is_directory_ = is_directory(asked.lun);
  for (const char* system : kKvSystems) {
    if (std::find(asked.systems.begin(), asked.systems.end(), system) == asked.systems.end())
      report_.skipped[system] = "not asked for (--systems)";
  }
  if (!host_.cgroup && report_.skipped.count("lmdb") == 0)
    report_.skipped["lmdb"] = "its cache is the page cache, which only a memory cgroup bounds: run with sudo";
  if (!lun_is_directory_) {
    report_.skipped["growth"] = "--lun " + asked.lun + " serves one store at a time";
    report_.skipped["overwrite"] = "--lun " + asked.lun + " has the size that it has";
  }
  fio_ = find_in_path("fio");
  if (fio_.empty()) report_.skipped["fio"] = "not installed: apt-get install fio";
  if (report_.skipped.count("raw") > 0) report_.skipped["fio"] = "it reads the file of raw, which is left out";
  report_.skipped["ycsb e"] = "the interface has no scan in the order of keys";
  check_library();
  directory_ = fmt::format("{}/lunar-bench-{}-kv", host_.directory, getpid());
  recorded_ = "directory " + directory_;
  journal().record(recorded_);
  std::filesystem::create_directory(directory_);
}

KvGround::~KvGround() {
  std::error_code ignored;
  std::filesystem::remove_all(directory_, ignored);
  journal().forget(recorded_);
}

// Of another library only the interface is known, and what its flush does is not: IBM's empties the store.
void KvGround::check_library() {
  std::string& library = report_.options.library;
  kept_ = library.empty() && lun_is_directory_;
  if (library.empty()) {
    std::string tried;
    library = find_own_library("runtime/kv/ark/libarkdb-0.so", "libarkdb-0.so", &tried);
    if (library.empty()) report_.skipped["lunar"] = "libarkdb-0.so is not there (looked at " + tried + ")";
  }
  // A library that does not know the variable would measure something else.
  knows_levels_ = kept_ && read_text(library).value_or("").find("LUNAR_KV_DURABILITY") != std::string::npos;
  std::vector<std::string>& levels = report_.options.durability;
  if (knows_levels_ || levels == std::vector<std::string>{"flush"}) return;
  report_.skipped["durability"] = "lunar: " + library + " is not told by LUNAR_KV_DURABILITY: at a flush only";
  levels = {"flush"};
}

double KvGround::elapsed() const { return static_cast<double>(now_ns() - begun_ns_) / 1e9; }

bool KvGround::has(const std::string& system) const {
  const auto& asked = options().systems;
  return std::find(asked.begin(), asked.end(), system) != asked.end() && report_.skipped.count(system) == 0;
}

bool KvGround::wants(const char* experiment) const {
  const auto& asked = options().experiments;
  return std::find(asked.begin(), asked.end(), experiment) != asked.end() && report_.skipped.count(experiment) == 0;
}

void KvGround::attempt(const std::string& system, const std::function<void()>& work) {
  try {
    check_interrupted();
    work();
  } catch (const std::runtime_error& error) {
    const std::string why = error.what();
    report_.skipped[system] = why.substr(0, why.find('\n'));
    // What this machine does not have is no fault of the run.
    if (why.find("built without") == std::string::npos && why.find("cannot open shared") == std::string::npos)
      report_.failures.push_back(fmt::format("{}: {}", system, why));
  }
}

KvStage::KvStage(KvGround& ground, KvStageSetup setup) : ground_(ground), setup_(std::move(setup)) {
  std::erase_if(setup_.systems, [&](const std::string& system) { return !ground_.has(system); });
}

KvStage::~KvStage() {
  for (const std::string& system : setup_.systems) stop(system);
}

std::string KvStage::place_of(const std::string& system) const {
  if (setup_.in_memory) return "";
  if (!ground_.lun_is_directory() && system == "lunar") return ground_.options().lun;
  return fmt::format("{}/{}{}", ground_.directory(), system, setup_.label);
}

// What LMDB's limit leaves it is its cache, all of it; the others take no more of the allowance than they need.
uint64_t KvStage::memory_limit(const std::string& system) const {
  const uint64_t allowance = ground_.options().allowance_bytes;
  const uint64_t buffers = uint64_t{setup_.in_flight} * ((setup_.value_bytes + 4095) / 4096 * 4096 + 1024);
  return setup_.dram_bytes + (system == "lmdb" ? std::min(allowance, kLmdbAllowance) : allowance) +
         4 * (setup_.keys + setup_.keys_more) + buffers;
}

std::vector<std::string> KvStage::child_arguments(const std::string& system) const {
  const auto number = [](uint64_t value) { return fmt::format("{}", value); };
  const uint64_t pairs = setup_.keys * (setup_.value_bytes + kPairOverhead);
  const uint64_t room =
      setup_.full_percent > 0 ? pairs * 100 / setup_.full_percent : kSpaceFactor * pairs + 512 * kMiBytes;
  std::vector<std::string> words{"--system",        system,
                                 "--place",         place_of(system),
                                 "--place-bytes",   setup_.in_memory ? "0" : number(room),
                                 "--library",       ground_.options().library,
                                 "--durability",    setup_.durability,
                                 "--dram",          number(setup_.dram_bytes),
                                 "--keys",          number(setup_.keys),
                                 "--keys-max",      number(setup_.keys + setup_.keys_more),
                                 "--value-bytes",   number(setup_.value_bytes),
                                 "--store-threads", number(setup_.store_threads),
                                 "--in-flight",     number(setup_.in_flight),
                                 "--memory",        number(memory_limit(system)),
                                 "--disk-stat",     ground_.host().disk_stat,
                                 "--seed",          number(ground_.options().seed)};
  if (setup_.htc) words.push_back("--htc");
  if (ground_.kept() && !setup_.in_memory) words.push_back("--kept");
  return words;
}

void KvStage::start(const std::string& system) {
  const std::string place = place_of(system);
  // An empty file is one that Lunar may take and make as large as it needs.
  if (system == "lunar" && !setup_.in_memory && ground_.lun_is_directory()) {
    const int fd = open(place.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0) throw std::runtime_error(fmt::format("{}: {}", place, strerror(errno)));
    close(fd);
  }
  SystemUnderTest::Setup child{system + setup_.label, child_arguments(system), memory_limit(system), false,
                               ground_.host().cgroup};
  child.child = "kv-child";
  stores_[system] = std::make_unique<SystemUnderTest>(child, ground_.journal());
}

void KvStage::stop(const std::string& system) {
  if (const auto found = stores_.find(system); found != stores_.end()) {
    double& peak = ground_.report().peak_bytes[system];
    peak = std::max(peak, static_cast<double>(found->second->peak_bytes()));
    stores_.erase(found);
  }
  if (setup_.in_memory || place_of(system) == ground_.options().lun) return;
  std::error_code ignored;
  std::filesystem::remove_all(place_of(system), ignored);
}

KvRun KvStage::ask(const std::string& system, const std::string& line, double seconds_max) {
  const std::string answer = stores_.at(base_of(system))->ask(line, seconds_max);
  KvRun run;
  if (!parse_kv_run(answer, &run)) throw std::runtime_error(fmt::format("{}: {}", system, answer));
  return run;
}

void KvStage::check(const std::string& system, const std::string& workload, const KvRun& run) {
  for (const std::string& failure : run_failures(run))
    ground_.report().failures.push_back(fmt::format("{} {} {}: {}", setup_.experiment, workload, system, failure));
}

KvRun KvStage::load(const std::string& system, const std::string& workload) {
  ground_.say(fmt::format("{} {}: {} loads {} pairs", setup_.experiment, workload, system, setup_.keys));
  stop(system);
  start(system);
  const KvRun run = ask(system, fmt::format("load {}", setup_.load_threads), kPatienceSeconds);
  check(system, workload, run);
  (void)ask(system, "settle", kPatienceSeconds);
  return run;
}

template <class Work>
void KvStage::each(const Work& work) {
  for (const std::string& system : setup_.systems) {
    if (ground_.has(system)) ground_.attempt(system, [&] { work(system); });
    if (!ground_.has(system)) stores_.erase(system);
  }
}

void KvStage::load_all() {
  each([&](const std::string& system) { (void)load(system, "load"); });
}

void KvStage::measure_loads(const std::string& workload, unsigned rounds) {
  std::map<std::string, std::vector<KvRun>> runs;
  for (unsigned round = 0; round < rounds; ++round)
    each([&](const std::string& system) { runs[system].push_back(load(system, workload)); });
  KvStep step;
  step.workload = workload;
  step.threads = setup_.load_threads;
  for (const std::string& system : setup_.systems) add_row(system, step, runs[system]);
}

std::string KvStage::order_text(const std::string& system, const KvStep& step) {
  if (step.keys_at_once > 0) return fmt::format("scan {} {}", step.keys_at_once, step.seconds);
  const bool chains = async(system, step);
  return fmt::format("run {} {} {} {} {} {} {} {} {}", step.mix, kKvDrawNames[static_cast<size_t>(step.draw)],
                     chains ? "async" : "sync", chains ? step.threads : step.threads * step.depth,
                     chains ? step.depth : 1, step.seconds, step.warm_share * step.seconds, step.rate,
                     ground_.next_seed());
}

KvRun KvStage::run(const std::string& system, const KvStep& step) {
  ground_.say(fmt::format("{} {}: {}", setup_.experiment, step.workload, system));
  const KvRun run = ask(system, order_text(system, step), 10 * step.seconds + kPatienceSeconds);
  check(system, step.workload, run);
  return run;
}

KvRun KvStage::run_fio(const KvStep& step) {
  ground_.say(fmt::format("{} {}: fio", setup_.experiment, step.workload));
  const FioTarget target{place_of("raw"), ground_.host().disk_stat, 0, setup_.keys * setup_.value_bytes,
                         setup_.value_bytes};
  IoOrder order;
  order.depth = step.depth;
  order.batch = batch_of(step.depth);
  order.seconds = step.seconds;
  order.warm_seconds = step.warm_share * step.seconds;
  const IoRun found = measure_fio_run(ground_.fio(), target, order);
  KvRun run;
  static_cast<RunResult&>(run) = found;
  run.reads = found.reads;
  // With what fio does before it begins.
  run.cores = found.cpu_s / (step.seconds + order.warm_seconds);
  run.ops_per_core_s = found.cpu_s > 0 ? found.ops / found.cpu_s : 0;
  run.bytes_per_s = found.ops_per_s * static_cast<double>(setup_.value_bytes);
  check("fio", step.workload, run);
  return run;
}

void KvStage::churn(const KvStep& step, uint64_t writes) {
  each([&](const std::string& system) {
    for (double done = 0; done < static_cast<double>(writes);) done += run(system, step).writes;
  });
}

void KvStage::measure(const KvStep& step, unsigned rounds) {
  std::map<std::string, std::vector<KvRun>> runs;
  for (unsigned round = 0; round < rounds; ++round) {
    each([&](const std::string& system) {
      if (stores_.count(system) == 0) return;
      runs[system].push_back(run(system, step));
      if (system == "lunar" && step.both) runs["lunar-sync"].push_back(run("lunar-sync", step));
      if (system == "raw" && step.fio && ground_.has("fio"))
        ground_.attempt("fio", [&] { runs["fio"].push_back(run_fio(step)); });
    });
  }
  for (const std::string& system : setup_.systems) {
    add_row(system, step, runs[system]);
    if (system == "lunar") add_row("lunar-sync", step, runs["lunar-sync"]);
    if (system == "raw") add_row("fio", step, runs["fio"]);
  }
}

KvResult* KvStage::row_of(const std::string& system, const std::string& workload) {
  std::vector<KvResult>& rows = ground_.report().results;
  const auto found = std::find_if(rows.begin(), rows.end(), [&](const KvResult& row) {
    return row.system == system && row.experiment == setup_.experiment && row.workload == workload;
  });
  if (found != rows.end()) return &*found;
  rows.emplace_back();
  return &rows.back();
}

void KvStage::add_row(const std::string& system, const KvStep& step, const std::vector<KvRun>& runs) {
  if (runs.empty()) return;
  KvResult& row = *row_of(system, step.workload);
  row.system = system;
  row.experiment = setup_.experiment;
  row.workload = step.workload;
  row.place = setup_.in_memory ? "memory" : place_of(base_of(system)) == ground_.options().lun ? "lun" : "file";
  row.durability = setup_.in_memory || (base_of(system) == "lunar" && !ground_.kept()) ? "none" : setup_.durability;
  row.value_bytes = setup_.value_bytes;
  row.async = async(system, step);
  row.threads = row.async ? step.threads : step.threads * step.depth;
  row.depth = row.async ? step.depth : 1;
  row.htc = setup_.htc;
  row.runs.insert(row.runs.end(), runs.begin(), runs.end());
  row.median = median_of(row.runs);
  row.spread = spread_of(row.runs, &KvRun::ops_per_s, row.median.ops_per_s);
}

}  // namespace lunar::tools
