// SPDX-License-Identifier: Apache-2.0
// See kv_driver.h. Making and checking values is part of the measured time, for all systems. The
// latency of an asynchronous operation is the time from its issue to its callback.
#include "tools/bench/kv/kv_driver.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <numeric>
#include <stdexcept>
#include <thread>

#include "tools/bench/kv/kv_worker.h"
#include "tools/bench/report.h"
#include "tools/bench/run_counters.h"
#include "tools/support/clock.h"

namespace lunar::tools {

namespace {

constexpr uint64_t kLoadChunk = 1000;
constexpr double kShortSeconds = 1e-3;

void sleep_seconds(double seconds) {
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
}

}  // namespace

void KvStates::loaded(uint64_t keys) {
  for (uint64_t number = 0; number < keys; ++number)
    states_[number].store(1, std::memory_order_relaxed);
  keys_.store(keys, std::memory_order_release);
}

bool KvStates::add(uint64_t* number) {
  uint64_t keys = keys_.load(std::memory_order_relaxed);
  do {
    if (keys == capacity_) return false;
  } while (!keys_.compare_exchange_weak(keys, keys + 1, std::memory_order_acq_rel));
  states_[*number = keys].store(kBusy, std::memory_order_release);
  return true;
}

bool KvStates::claim(uint64_t number) {
  uint32_t state = states_[number].load(std::memory_order_relaxed);
  return (state & kBusy) == 0 && state != 0 &&
         states_[number].compare_exchange_strong(state, state | kBusy, std::memory_order_acq_rel);
}

void KvStates::release(uint64_t number, bool written) {
  const uint32_t version = get(number) & ~kBusy;
  states_[number].store(version + (written ? 1 : 0), std::memory_order_release);
}

struct KvDriver::Counters : RunCounters {
  std::optional<uint64_t> written;  // bytes written by the process
};

KvDriver::KvDriver(const KvSetup& setup, const KvLimits& limits, uint64_t seed)
    : setup_(setup),
      limits_(limits),
      content_(seed, setup.value_bytes),
      states_(limits.keys_max),
      bytes_without_store_(process_memory(getpid(), "VmRSS")),
      system_(make_kv_system(setup)) {}

KvDriver::Counters KvDriver::count() const {
  const std::optional<uint64_t> written = process_written_bytes(getpid());
  return {read_counters(setup_.place.empty() ? "" : limits_.disk_stat), written};
}

KvTally& KvDriver::tally() {
  thread_local KvTally* mine = nullptr;
  thread_local uint64_t of_run = 0;
  if (mine == nullptr || of_run != run_number_) {
    const std::lock_guard<std::mutex> guard(lock_);
    tallies_.push_back(std::make_unique<KvTally>());
    mine = tallies_.back().get();
    of_run = run_number_;
  }
  const int phase = phase_.load(std::memory_order_acquire);
  if (phase != kWarm && !mine->measuring) {
    const uint64_t mismatches = mine->mismatches;  // a wrong value counts also in the warm-up
    *mine = KvTally();
    mine->mismatches = mismatches;
    mine->measuring = true;
    measured_.store(true, std::memory_order_relaxed);
  }
  return *mine;
}

void KvDriver::fail(int code, const char* what) {
  const std::lock_guard<std::mutex> guard(lock_);
  if (error_.empty()) error_ = fmt::format("{}: {}", what, strerror(code));
  phase_.store(kStop, std::memory_order_release);
}

void KvDriver::begin_run() {
  tallies_.clear();
  ++run_number_;
  measured_.store(false);
  phase_.store(kWarm);
}

RunResult KvDriver::result(const Counters& before, const Counters& after) {
  if (!error_.empty()) throw std::runtime_error(error_);
  KvTally all;
  for (const auto& one : tallies_) {
    all.mismatches += one->mismatches;
    if (!one->measuring) continue;
    all.latencies.merge(one->latencies);
    all.reads += one->reads;
    all.writes += one->writes;
  }
  RunResult run;
  put_latencies(&run, all.latencies, before.seconds_until(after));
  put_counters(&run, before, after, run.ops);
  run.reads = static_cast<double>(all.reads);
  run.writes = static_cast<double>(all.writes);
  run.mismatches = static_cast<double>(all.mismatches);
  return run;
}

// Bytes of the disk in use per byte of keys and values: from the store, or else the size of its
// files.
double KvDriver::space() const {
  if (setup_.place.empty()) return kNone;
  auto bytes = static_cast<double>(system_->bytes_in_use());
  if (bytes < 0) {
    bytes = 0;
    for (const auto& file : std::filesystem::recursive_directory_iterator(setup_.place)) {
      struct stat info{};
      if (stat(file.path().c_str(), &info) == 0 && S_ISREG(info.st_mode))
        bytes += 512 * static_cast<double>(info.st_blocks);
    }
  }
  return bytes / static_cast<double>(states_.keys() * (sizeof(KvKey) + setup_.value_bytes));
}

// Memory of L bytes holds at most L / v values of v bytes. With uniform keys that is the largest
// share of hits, with zipf it is the mass of as many of the hottest keys. Three standard deviations
// less, so that chance does not fail a short run.
double KvDriver::must_read_bytes(const KvOrder& order, double reads) const {
  if (setup_.place.empty() || setup_.system == "rocksdb-lz4" || order.draw == KvDraw::kLatest)
    return 0;
  const auto value = static_cast<double>(setup_.value_bytes),
             keys = static_cast<double>(states_.keys());
  const double fit = static_cast<double>(limits_.memory_bytes) / value;
  const double hit = order.draw == KvDraw::kZipf ? zipf_->mass(static_cast<uint64_t>(fit))
                                                 : std::fmin(1, fit / keys);
  return value * std::fmax(0, reads * (1 - hit) - 3 * std::sqrt(reads * hit * (1 - hit)) -
                                  order.threads * order.depth);
}

void KvDriver::load_range(uint64_t from, uint64_t to) {
  const auto session = system_->connect();
  std::vector<char> value(setup_.value_bytes);
  std::vector<uint64_t> numbers;
  for (uint64_t last = now_ns(); from < to && phase_.load() != kStop; from += numbers.size()) {
    numbers.resize(std::min(kLoadChunk, to - from));
    std::iota(numbers.begin(), numbers.end(), from);
    if (const int code = session->set_many(numbers, content_, value.data()); code != 0)
      return fail(code, "load");
    const uint64_t now = now_ns();
    KvTally& mine = tally();
    mine.latencies.add((now - last) / numbers.size(), numbers.size());
    mine.writes += numbers.size();
    last = now;
  }
}

RunResult KvDriver::load(unsigned threads) {
  begin_run();
  phase_.store(kMeasure);
  const Counters before = count();
  std::vector<std::thread> workers;
  for (unsigned t = 0; t < threads; ++t)
    workers.emplace_back([this, t, threads] {
      load_range(setup_.keys * t / threads, setup_.keys * (t + 1) / threads);
    });
  for (std::thread& worker : workers) worker.join();
  if (error_.empty()) {
    if (const int code = system_->flush(); code != 0) fail(code, "flush");
  }
  const Counters after = count();
  states_.loaded(setup_.keys);
  RunResult run = result(before, after);
  const auto bytes = static_cast<double>(setup_.keys * setup_.value_bytes);
  if (setup_.place.empty())
    run.index_bytes =
        (static_cast<double>(process_memory(getpid(), "VmRSS") - bytes_without_store_) -
         static_cast<double>(system_->bytes_in_use())) /
        static_cast<double>(setup_.keys);
  const bool kept = setup_.system != "lunar" || setup_.kept;
  if (!setup_.place.empty() && setup_.system != "rocksdb-lz4")
    run.must_write_bytes =
        kept ? bytes : std::fmax(0, bytes - static_cast<double>(limits_.memory_bytes));
  system_->settle();
  run.space = space();
  return run;
}

void KvDriver::work(const KvOrder& order, unsigned thread) {
  const auto session = system_->connect();
  std::vector<char> value(setup_.value_bytes);
  KvWorker worker(*this, order, order.seed * 4096 + thread, value.data());
  for (uint64_t last = now_ns(); phase_.load(std::memory_order_acquire) != kStop;) {
    worker.begin();
    KvTally* mine = nullptr;
    for (bool more = true; more;) {
      int64_t length = 0;
      const int code = worker.writing() ? session->set(worker.key(), worker.value())
                                        : session->get(worker.key(), worker.value(), &length);
      if (code != 0) {
        worker.give_up();
        return fail(code, worker.writing() ? "set" : "get");
      }
      mine = &tally();
      more = worker.end(length, *mine);
    }
    const uint64_t now = now_ns();
    mine->latencies.add(now - last);
    last = now;
  }
}

void KvDriver::work_async(const KvOrder& order, unsigned thread) {
  const auto session = system_->connect();
  std::vector<char> values(order.depth * setup_.value_bytes);
  std::vector<std::unique_ptr<KvChain>> chains;
  for (unsigned i = 0; i < order.depth; ++i) {
    const uint64_t seed = (order.seed * 4096 + thread) * 4096 + i;
    chains.push_back(std::make_unique<KvChain>(*this, *session, order, seed,
                                               values.data() + i * setup_.value_bytes));
  }
  for (const auto& chain : chains) chain->start();
  for (uint32_t left; (left = chains_alive_.load(std::memory_order_acquire)) != 0;)
    chains_alive_.wait(left);
}

RunResult KvDriver::run(const KvOrder& order) {
  if (order.draw != KvDraw::kUniform && !zipf_)
    zipf_ = std::make_unique<ZipfGenerator>(setup_.keys, kZipfTheta);
  begin_run();
  chains_alive_.store(order.threads * order.depth);
  std::vector<std::thread> workers;
  for (unsigned t = 0; t < order.threads; ++t) {
    workers.emplace_back([this, &order, t] {
      try {
        if (order.async)
          work_async(order, t);
        else
          work(order, t);
      } catch (const std::exception& error) {
        fmt::print(stderr, "{}\n", error.what());
        fail(EIO, "worker");
      }
    });
  }
  sleep_seconds(order.warm_seconds);
  const Counters before = count();
  int expected = kWarm;
  phase_.compare_exchange_strong(expected, kMeasure);
  sleep_seconds(order.seconds);
  // On a busy machine a worker may begin after the end of a short run. The run then waits for a
  // first operation, because a rate of 0 would be wrong.
  while (!measured_.load(std::memory_order_relaxed) &&
         phase_.load(std::memory_order_acquire) != kStop)
    sleep_seconds(kShortSeconds);
  phase_.store(kStop, std::memory_order_release);
  for (std::thread& worker : workers) worker.join();
  const Counters after = count();
  RunResult run = result(before, after);
  run.must_read_bytes = must_read_bytes(order, run.reads);
  if (run.writes == 0) return run;
  system_->settle();
  const std::optional<uint64_t> written = process_written_bytes(getpid());
  if (before.written && written && !setup_.place.empty()) {
    const double sets = run.writes * static_cast<double>(sizeof(KvKey) + setup_.value_bytes);
    run.amplification = static_cast<double>(*written - *before.written) / sets;
  }
  run.space = space();
  return run;
}

}  // namespace lunar::tools
