// SPDX-License-Identifier: Apache-2.0
// See io_worker.h. An operation's latency is from its hand-over to the moment its caller has it back; those of a batch
// share their clock readings. Stamps are made and checked inside the clocked time, by all backends alike.
// Threading: as in the header. May not be used by runtime/ (it allocates).
#include "tools/bench/io/io_worker.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <stdexcept>
#include <thread>
#include <vector>

#include "tools/bench/histogram.h"
#include "tools/bench/io/cpu_time.h"
#include "tools/bench/io/io_engine.h"
#include "tools/bench/report_parts.h"
#include "tools/support/clock.h"
#include "tools/support/process.h"
#include "tools/support/procfs.h"

namespace lunar::tools {

namespace {

enum Phase : int { kWarm, kMeasure, kStop };

struct Counters {
  uint64_t ns = 0;
  double cpu = 0, user = 0;
  CpuTimes machine;
  std::optional<DiskBytes> disk;
};

Counters count(const std::string& disk_stat) {
  Counters counters;
  counters.disk = read_disk(disk_stat);
  counters.user = process_user_seconds(getpid());
  counters.cpu = static_cast<double>(clock_ns(CLOCK_PROCESS_CPUTIME_ID)) / 1e9;
  counters.machine = read_cpu_times();
  counters.ns = now_ns();
  return counters;
}

struct alignas(64) Worker {
  Random random{0};
  Histogram latencies;
  uint64_t reads = 0, writes = 0, mismatches = 0;
  std::string error;
  bool measuring = false;

  void note(bool write, int64_t result, size_t unit_bytes, uint64_t ns) {
    latencies.add(ns);
    ++(write ? writes : reads);
    if (result == static_cast<int64_t>(unit_bytes)) return;
    ++mismatches;
    if (error.empty()) error = result < 0 ? strerror(static_cast<int>(-result)) : fmt::format("{} bytes moved", result);
  }
};

struct IoTask {
  const BenchBacking& backing;
  const IoOrder& order;
  std::atomic<int> phase{kWarm};
  std::atomic<size_t> ready{0};      // workers that are set up, or have failed
  std::atomic<size_t> measuring{0};  // workers that count for the result, or have failed
  int fd = -1;                       // of blocking backends
  BlockStamps& stamps() const { return backing.stamps(); }
  bool writes(Worker& worker) const { return worker.random.below(100) >= order.read_percent; }
  // At the start of each round; what was counted while warming up is dropped once.
  void follow(int phase, Worker& worker) {
    if (phase != kMeasure || worker.measuring) return;
    worker.measuring = true;
    worker.latencies.clear();
    worker.reads = worker.writes = 0;
    measuring.fetch_add(1);
  }
};

void work_blocking(IoTask& task, Worker& worker) {
  const size_t unit_bytes = task.stamps().unit_bytes();
  const NoiseBuffer buffer(unit_bytes, worker.random.next());
  task.ready.fetch_add(1);
  for (int phase; (phase = task.phase.load(std::memory_order_acquire)) != kStop;) {
    task.follow(phase, worker);
    const uint64_t unit = task.stamps().claim(worker.random);
    const bool write = task.writes(worker);
    const auto at = static_cast<off_t>(task.backing.path_offset() + unit * unit_bytes);
    if (write) task.stamps().stamp(unit, buffer.data());
    const uint64_t start = now_ns();
    const ssize_t moved =
        write ? pwrite(task.fd, buffer.data(), unit_bytes, at) : pread(task.fd, buffer.data(), unit_bytes, at);
    worker.note(write, moved < 0 ? -errno : moved, unit_bytes, now_ns() - start);
    if (!write && moved > 0 && !task.stamps().check(unit, buffer.data())) ++worker.mismatches;
    task.stamps().release(unit);
  }
}

void work_async(IoTask& task, Worker& worker) {
  struct InFlight {
    uint64_t unit = 0, start = 0;
    bool write = false;
  };
  const unsigned depth = task.order.depth;
  const size_t unit_bytes = task.stamps().unit_bytes();
  const NoiseBuffer buffers(depth * unit_bytes, worker.random.next());
  const auto engine = make_engine(task.order.system, {&task.backing, &buffers, depth, unit_bytes});
  std::vector<InFlight> entries(depth);
  std::vector<unsigned> free;
  for (unsigned i = 0; i < depth; ++i) free.push_back(depth - 1 - i);
  std::vector<IoOp> ops(depth);
  std::vector<IoDone> done(depth);
  task.ready.fetch_add(1);
  for (;;) {
    const int phase = task.phase.load(std::memory_order_acquire);
    task.follow(phase, worker);
    unsigned n = 0;
    uint64_t now = now_ns();
    for (; phase != kStop && !free.empty(); ++n, free.pop_back()) {
      const unsigned slot = free.back();
      InFlight& entry = entries[slot];
      entry = {task.stamps().claim(worker.random), now, task.writes(worker)};
      if (entry.write) task.stamps().stamp(entry.unit, buffers.data() + slot * unit_bytes);
      ops[n] = {entry.write, slot, entry.unit * unit_bytes};
    }
    const auto in_flight = depth - static_cast<unsigned>(free.size());
    if (in_flight == 0) return;
    const int got = engine->exchange(ops.data(), n, done.data(), std::min(task.order.batch, in_flight));
    if (got < 0) throw std::runtime_error(fmt::format("{}: {}", task.order.system, strerror(-got)));
    now = now_ns();
    for (int i = 0; i < got; ++i) {
      const InFlight& entry = entries[done[i].slot];
      if (phase != kStop) worker.note(entry.write, done[i].result, unit_bytes, now - entry.start);
      if (!entry.write && !task.stamps().check(entry.unit, buffers.data() + done[i].slot * unit_bytes))
        ++worker.mismatches;
      task.stamps().release(entry.unit);
      free.push_back(done[i].slot);
    }
  }
}

void sleep_watchfully(double seconds) {
  const uint64_t end = now_ns() + static_cast<uint64_t>(seconds * 1e9);
  for (uint64_t now; (now = now_ns()) < end && !interrupted();) {
    std::this_thread::sleep_for(std::chrono::nanoseconds(std::min<uint64_t>(end - now, 200'000'000)));
  }
}

IoRun result_of(const IoTask& task, const Worker& all, const Counters& before, const Counters& after, unsigned slack) {
  IoRun result;
  put_latencies(&result, all.latencies, static_cast<double>(after.ns - before.ns) / 1e9);
  result.cpu_s = after.cpu - before.cpu;
  const CpuUse use = cpu_between(before.machine, after.machine, result.seconds, sysconf(_SC_NPROCESSORS_ONLN));
  result.machine_cpu_s = use.total_s;
  result.kernel_cpu_s = use.kernel_s;
  result.kernel_ticks_cpu_s = use.kernel_ticks_s;
  result.other_user_cpu_s = std::max(0.0, use.user_s - (after.user - before.user));
  result.reads = static_cast<double>(all.reads);
  result.writes = static_cast<double>(all.writes);
  result.mismatches = static_cast<double>(all.mismatches);
  result.error = all.error;
  if (before.disk && after.disk) {
    result.disk_read_bytes = static_cast<double>(after.disk->read - before.disk->read);
    result.disk_written_bytes = static_cast<double>(after.disk->written - before.disk->written);
  }
  if (task.order.system != "buffered") {  // what was done when the clock started, but not yet counted
    const auto must = [&](uint64_t ops) {
      return static_cast<double>((ops > slack ? ops - slack : 0) * task.stamps().unit_bytes());
    };
    result.must_read_bytes = must(all.reads);
    result.must_write_bytes = must(all.writes);
  }
  finish_io_run(&result);
  return result;
}

}  // namespace

void finish_io_run(IoRun* run) {
  const auto per = [](double amount, double of) { return of > 0 ? amount / of : 0; };
  run->ops_per_s = per(run->ops, run->seconds);
  run->cpu_us_per_op = per(run->machine_cpu_s * 1e6, run->ops);
  run->kiops_per_cpu = per(run->ops / 1e3, run->machine_cpu_s);
  run->kiops_per_cpu_kernel = per(run->ops / 1e3, run->kernel_cpu_s);
  run->kiops_per_cpu_kernel_ticks = per(run->ops / 1e3, run->kernel_ticks_cpu_s);
}

IoRun measure_io_run(const BenchBacking& backing, const IoOrder& order) {
  const bool buffered = order.system == "buffered",
             blocking = buffered || order.system == "legacy" || order.system == "raw";
  IoTask task{backing, order};
  if (blocking) {
    task.fd = open(backing.path().c_str(), O_RDWR | O_CLOEXEC | (buffered ? 0 : O_DIRECT));
    if (task.fd < 0) throw std::runtime_error(fmt::format("{}: {}", backing.path(), strerror(errno)));
    if (buffered) {
      (void)posix_fadvise(task.fd, 0, 0, POSIX_FADV_DONTNEED);
      (void)posix_fadvise(task.fd, 0, 0, POSIX_FADV_RANDOM);
    }
  }
  std::vector<Worker> workers(blocking ? order.depth : 1);
  std::vector<std::thread> threads;
  for (size_t t = 0; t < workers.size(); ++t) {
    workers[t].random = Random(order.seed * 1000 + t);
    threads.emplace_back([&task, &worker = workers[t], blocking] {
      try {
        if (blocking)
          work_blocking(task, worker);
        else
          work_async(task, worker);
      } catch (const std::exception& error) {
        worker.error = error.what();
        task.ready.fetch_add(1);
        if (!worker.measuring) task.measuring.fetch_add(1);
      }
    });
  }
  const auto wait_for_all = [&](const std::atomic<size_t>& counted) {
    while (counted.load() < workers.size() && !interrupted()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  };
  wait_for_all(task.ready);
  sleep_watchfully(order.warm_seconds);
  const Counters before = count(backing.disk_stat());
  task.phase.store(kMeasure, std::memory_order_release);
  sleep_watchfully(order.seconds);
  // One that had no CPU for so long would end with what it counted while warming up.
  wait_for_all(task.measuring);
  Counters after;
  if (!buffered) after = count(backing.disk_stat());
  task.phase.store(kStop, std::memory_order_release);
  for (std::thread& thread : threads) thread.join();
  // Once more, now that all that is counted is done: work went on while the other counters were read.
  if (!buffered) after.disk = read_disk(backing.disk_stat());
  if (buffered) {
    (void)fdatasync(task.fd);
    after = count(backing.disk_stat());
    (void)posix_fadvise(task.fd, 0, 0, POSIX_FADV_DONTNEED);  // O_DIRECT with cached pages costs the others
  }
  if (task.fd >= 0) close(task.fd);
  check_interrupted();
  Worker& all = workers[0];
  for (size_t t = 1; t < workers.size(); ++t) {
    all.latencies.merge(workers[t].latencies);
    all.reads += workers[t].reads;
    all.writes += workers[t].writes;
    all.mismatches += workers[t].mismatches;
    if (all.error.empty()) all.error = workers[t].error;
  }
  if (all.latencies.count() == 0 && !all.error.empty()) throw std::runtime_error(all.error);
  return result_of(task, all, before, after, 2 * order.depth);
}

}  // namespace lunar::tools
