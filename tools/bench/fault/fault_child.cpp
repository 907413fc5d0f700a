// SPDX-License-Identifier: Apache-2.0
// A child of `lunar bench fault`, which touches the memory of one system. It reads orders from
// standard input and answers on standard output, one line each:
//
//   fill THREADS | run WORKLOAD THREADS SECONDS WARM_SECONDS WRITE_PERCENT SEED | verify
//     ->  result ... | error TEXT
//
// In a run, worker threads touch pages until the time is over, and check every page that they read.
//
// The bytes that the disk must have moved are bounded from below without the counters of the system
// under test. A cache of C out of N equally likely pages hits at most C/N of independent touches,
// for zipf at most the mass of the C hottest pages. A walk must read the pages that mincore(2) did
// not find in memory before the run. C is the whole memory limit.
// Threading: the main thread answers the orders and keeps the clock; workers live for one run.
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cmath>
#include <cstdio>
#include <map>
#include <memory>
#include <thread>
#include <vector>

#include "tools/bench/benches.h"
#include "tools/bench/fault/bench_memory.h"
#include "tools/bench/fault/page_sweep.h"
#include "tools/bench/histogram.h"
#include "tools/bench/page_content.h"
#include "tools/bench/random.h"
#include "tools/bench/report.h"
#include "tools/bench/run_counters.h"
#include "tools/bench/system_under_test.h"
#include "tools/support/clock.h"
#include "tools/support/flags.h"

namespace lunar::tools {

namespace {

// The most pages that a pager has in flight, outside of the region, where mincore does not see
// them.
constexpr uint64_t kInFlightPagesMax = 1024;

struct ChildOptions {
  BenchMemoryOptions memory;
  uint64_t data_bytes = 0, limit_bytes = 0, seed = 1;
  std::string disk_stat;
};

struct RunOrder {
  Workload workload = Workload::kUniform;
  unsigned threads = 1;
  double seconds = 1, warm_seconds = 0;
  unsigned write_percent = 30;
  uint64_t seed = 1;
};

enum Phase : int { kWarm, kMeasure, kStop };

struct Counters : RunCounters {
  uint64_t major_faults = 0;
};

struct alignas(64) Worker {
  Random random{0};
  WalkGroup* group = nullptr;
  Walk* walk = nullptr;
  Histogram latencies;
  uint64_t mismatches = 0;
};

class FaultChild {
 public:
  explicit FaultChild(const ChildOptions& options)
      : options_(options),
        page_bytes_(static_cast<size_t>(sysconf(_SC_PAGESIZE))),
        pages_(options.data_bytes / page_bytes_),
        content_(options.seed, page_bytes_),
        versions_(std::make_unique<std::atomic<uint32_t>[]>(pages_)),
        memory_(BenchMemory::make(options.memory)) {
    // The version counts must not fault, in either system.
    (void)mlock(versions_.get(), pages_ * sizeof versions_[0]);
  }
  RunResult fill(unsigned threads);
  RunResult run(const RunOrder& order);
  RunResult verify();

 private:
  Counters count() const;
  static void finish(const Counters& before, const Counters& after, const Histogram& latencies,
                     RunResult* run);
  void touch(uint64_t page, bool write, Worker& worker);
  void work(const RunOrder& order, Worker& worker);
  void work_prefetch(const RunOrder& order, Worker& worker);
  std::vector<unsigned char> resident() const;
  double must_read_pages(const RunOrder& order, uint64_t ops,
                         const std::vector<unsigned char>& resident_before,
                         const std::vector<Walk>& walks_before,
                         const std::vector<Walk>& walks_after) const;
  double limit_pages() const {
    const uint64_t whole = options_.limit_bytes / page_bytes_;
    return static_cast<double>(whole);
  }

  ChildOptions options_;
  size_t page_bytes_;
  uint64_t pages_;
  PageContent content_;
  std::unique_ptr<std::atomic<uint32_t>[]> versions_;
  std::unique_ptr<BenchMemory> memory_;
  std::unique_ptr<ZipfGenerator> zipf_;
  char* data_ = nullptr;
  std::atomic<int> phase_{kWarm};
  std::map<unsigned, WalkGroup> walks_;  // by number of threads
};

Counters FaultChild::count() const {
  const uint64_t faults = memory_->major_faults();
  return {read_counters(options_.disk_stat), faults};
}

void FaultChild::finish(const Counters& before, const Counters& after, const Histogram& latencies,
                        RunResult* run) {
  put_latencies(run, latencies, before.seconds_until(after));
  put_counters(run, before, after, run->ops);
  run->major_faults = static_cast<double>(after.major_faults - before.major_faults);
}

// Writes every page of new memory. The region is the data of all later runs.
RunResult FaultChild::fill(unsigned threads) {
  if (data_ != nullptr) memory_->destroy(data_, options_.data_bytes);
  data_ = nullptr;
  data_ = memory_->create(options_.data_bytes);
  for (uint64_t i = 0; i < pages_; ++i) versions_[i].store(0, std::memory_order_relaxed);
  walks_.clear();
  std::vector<Histogram> latencies(threads);
  const Counters before = count();
  std::vector<std::thread> workers;
  for (unsigned t = 0; t < threads; ++t) {
    workers.emplace_back([this, t, threads, &latencies] {
      uint64_t last = now_ns();
      for (uint64_t page = pages_ * t / threads; page < pages_ * (t + 1) / threads; ++page) {
        content_.fill(page, data_ + page * page_bytes_);
        const uint64_t now = now_ns();
        latencies[t].add(now - last);
        last = now;
      }
    });
  }
  for (std::thread& worker : workers) worker.join();
  const Counters after = count();
  for (unsigned t = 1; t < threads; ++t) latencies[0].merge(latencies[t]);
  RunResult run;
  finish(before, after, latencies[0], &run);
  run.must_write_bytes =
      std::fmax(0, static_cast<double>(pages_) - limit_pages()) * static_cast<double>(page_bytes_);
  return run;
}

// One operation: reads or changes the stamp of a page, reads one more word of it, and checks both.
void FaultChild::touch(uint64_t page, bool write, Worker& worker) {
  char* address = data_ + page * page_bytes_;
  auto* first = reinterpret_cast<std::atomic<uint64_t>*>(address);
  const uint32_t least = versions_[page].load(std::memory_order_acquire);
  const uint64_t found = write ? first->fetch_add(1, std::memory_order_acq_rel)
                               : first->load(std::memory_order_acquire);
  const size_t index = 1 + worker.random.below(content_.words_per_page() - 1);
  const uint64_t word = reinterpret_cast<const volatile uint64_t*>(address)[index];
  const auto version = static_cast<uint32_t>(found);
  if (found != content_.stamp(page, version) || version < least ||
      word != content_.word(page, index)) {
    ++worker.mismatches;
  }
  if (write) versions_[page].fetch_add(1, std::memory_order_release);
}

void FaultChild::work(const RunOrder& order, Worker& worker) {
  const bool walking = order.workload == Workload::kSeq;
  bool measuring = false;
  uint64_t last = now_ns();
  for (int phase; (phase = phase_.load(std::memory_order_acquire)) != kStop;) {
    if (phase == kMeasure && !measuring) {
      measuring = true;
      worker.latencies.clear();
    }
    if (walking && worker.walk->step % worker.walk->span == 0) {
      if (!worker.group->join_pass(*worker.walk, [this] { return phase_.load() == kStop; })) break;
      last = now_ns();
    }
    uint64_t page;
    switch (order.workload) {
      case Workload::kZipf:
        page = zipf_->scattered(zipf_->rank(worker.random));
        break;
      case Workload::kSeq:
        page = worker.walk->page(worker.walk->step++);
        break;
      default:
        page = worker.random.below(pages_);
        break;
    }
    touch(page, worker.random.below(100) < order.write_percent, worker);
    const uint64_t now = now_ns();
    worker.latencies.add(now - last);
    last = now;
  }
}

// Prefetches batches of 64 random pages, then touches them. A page's latency is its share of the
// batch.
void FaultChild::work_prefetch(const RunOrder& order, Worker& worker) {
  bool measuring = false;
  uint64_t pages[kPrefetchBatch];
  char* addresses[kPrefetchBatch];
  for (int phase; (phase = phase_.load(std::memory_order_acquire)) != kStop;) {
    if (phase == kMeasure && !measuring) {
      measuring = true;
      worker.latencies.clear();
    }
    const uint64_t start = now_ns();
    for (uint64_t i = 0; i < kPrefetchBatch; ++i) {
      pages[i] = worker.random.below(pages_);
      addresses[i] = data_ + pages[i] * page_bytes_;
    }
    memory_->prefetch(addresses, kPrefetchBatch, page_bytes_);
    for (const uint64_t page : pages)
      touch(page, worker.random.below(100) < order.write_percent, worker);
    worker.latencies.add((now_ns() - start) / kPrefetchBatch, kPrefetchBatch);
  }
}

std::vector<unsigned char> FaultChild::resident() const {
  std::vector<unsigned char> map(pages_);
  if (mincore(data_, options_.data_bytes, map.data()) != 0)
    map.assign(pages_, 1);  // not known, so there is no lower bound
  return map;
}

double FaultChild::must_read_pages(const RunOrder& order, uint64_t ops,
                                   const std::vector<unsigned char>& resident_before,
                                   const std::vector<Walk>& walks_before,
                                   const std::vector<Walk>& walks_after) const {
  if (order.workload == Workload::kSeq) {
    uint64_t missing = 0;
    for (size_t t = 0; t < walks_before.size(); ++t) {
      const Walk& walk = walks_before[t];
      const uint64_t end = std::min(walks_after[t].step, walk.step + walk.span);
      for (uint64_t s = walk.step; s < end; ++s)
        missing += (resident_before[walk.page(s)] & 1) == 0;
    }
    return missing > kInFlightPagesMax ? static_cast<double>(missing - kInFlightPagesMax) : 0;
  }
  const double hit = order.workload == Workload::kZipf
                         ? zipf_->mass(static_cast<uint64_t>(limit_pages()))
                         : std::fmin(1, limit_pages() / static_cast<double>(pages_));
  const double draws = static_cast<double>(ops);
  // Three standard deviations less, so that chance does not fail a short run.
  return std::fmax(0, draws * (1 - hit) - 3 * std::sqrt(draws * hit * (1 - hit)));
}

RunResult FaultChild::run(const RunOrder& order) {
  if (order.workload == Workload::kZipf && !zipf_)
    zipf_ = std::make_unique<ZipfGenerator>(pages_, kZipfTheta);
  const bool walking = order.workload == Workload::kSeq;
  WalkGroup& group = walks_.try_emplace(order.threads, order.threads, pages_).first->second;
  std::vector<Walk>& walks_now = group.walks;
  const std::vector<Walk> walks_before = walks_now;
  const std::vector<unsigned char> resident_before =
      walking ? resident() : std::vector<unsigned char>();
  std::vector<Worker> workers(order.threads);
  std::vector<std::thread> threads;
  // A walk continues the last one, so it needs no warm-up, and its bound needs the page at the
  // start.
  const double warm_seconds = walking ? 0 : order.warm_seconds;
  phase_.store(warm_seconds > 0 ? kWarm : kMeasure);
  Counters before = count();
  for (unsigned t = 0; t < order.threads; ++t) {
    workers[t].random = Random(order.seed * 1000 + t);
    workers[t].group = &group;
    workers[t].walk = &walks_now[t];
    threads.emplace_back([this, &order, &worker = workers[t]] {
      if (order.workload == Workload::kPrefetch)
        work_prefetch(order, worker);
      else
        work(order, worker);
    });
  }
  if (warm_seconds > 0) {
    std::this_thread::sleep_for(std::chrono::duration<double>(warm_seconds));
    before = count();
    phase_.store(kMeasure, std::memory_order_release);
  }
  std::this_thread::sleep_for(std::chrono::duration<double>(order.seconds));
  phase_.store(kStop, std::memory_order_release);
  for (std::thread& thread : threads) thread.join();
  const Counters after = count();
  for (unsigned t = 1; t < order.threads; ++t) {
    workers[0].latencies.merge(workers[t].latencies);
    workers[0].mismatches += workers[t].mismatches;
  }
  RunResult run;
  finish(before, after, workers[0].latencies, &run);
  run.mismatches = static_cast<double>(workers[0].mismatches);
  run.must_read_bytes = must_read_pages(order, workers[0].latencies.count(), resident_before,
                                        walks_before, walks_now) *
                        static_cast<double>(page_bytes_);
  return run;
}

// Checks every word of every page, with exactly the version of its last write.
RunResult FaultChild::verify() {
  std::vector<uint64_t> expected(content_.words_per_page());
  RunResult run;
  for (uint64_t page = 0; page < pages_; ++page) {
    content_.fill(page, expected.data());
    expected[0] = content_.stamp(page, versions_[page].load());
    if (memcmp(expected.data(), data_ + page * page_bytes_, page_bytes_) != 0) run.mismatches += 1;
  }
  run.ops = static_cast<double>(pages_);
  return run;
}

RunOrder parse_order(std::istringstream& words) {
  RunOrder order;
  std::string name;
  words >> name >> order.threads >> order.seconds >> order.warm_seconds >> order.write_percent >>
      order.seed;
  const auto* found = std::find(kWorkloadNames.begin(), kWorkloadNames.end(), name);
  if (!words || found == kWorkloadNames.end())
    throw std::runtime_error("bad order: " + words.str());
  order.workload = static_cast<Workload>(found - kWorkloadNames.begin());
  return order;
}

}  // namespace

int fault_child_main(int argc, char** argv) {
  Flags flags("touches memory for `lunar bench fault`", "lunar bench fault-child");
  ChildOptions options;
  flags.add("--system", options.memory.system).required();
  flags.add("--data", options.data_bytes).required();
  flags.add("--dram", options.memory.dram_bytes).required();
  flags.add("--limit", options.limit_bytes).required();
  flags.add("--lun", options.memory.lun);
  flags.add("--lun-bytes", options.memory.lun_bytes);
  flags.add("--options", options.memory.options);
  flags.add("--disk-stat", options.disk_stat);
  flags.add("--seed", options.seed);
  return answer_orders(flags, argc, argv, [&]() -> OrderTaker {
    auto child = std::make_shared<FaultChild>(options);
    return [child](const std::string& verb, std::istringstream& words) {
      if (verb == "run") return child->run(parse_order(words));
      if (verb == "verify") return child->verify();
      if (verb != "fill") throw std::runtime_error("unknown order: " + words.str());
      unsigned threads = 1;
      words >> threads;
      return child->fill(threads);
    };
  });
}

}  // namespace lunar::tools
