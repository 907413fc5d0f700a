// SPDX-License-Identifier: Apache-2.0
// See io_worker.h. The latency of an operation is the time from its hand-over to the return of its
// result; a batch shares its clock readings. Making and checking stamps is part of the measured
// time.
#include "tools/bench/io/io_worker.h"

#include <fmt/format.h>

#include <cstring>
#include <stdexcept>
#include <vector>

#include "tools/bench/histogram.h"
#include "tools/bench/io/fio_job.h"
#include "tools/bench/io/io_engine.h"
#include "tools/bench/report.h"
#include "tools/bench/run_counters.h"
#include "tools/support/clock.h"
#include "tools/support/process.h"

namespace lunar::tools {

namespace {

struct Tally {
  Histogram latencies;
  uint64_t reads = 0, writes = 0, mismatches = 0;
  std::string error;

  void note(bool write, int64_t result, uint64_t ns) {
    latencies.add(ns);
    ++(write ? writes : reads);
    if (result == static_cast<int64_t>(kBlockBytes)) return;
    ++mismatches;
    if (error.empty())
      error =
          result < 0 ? strerror(static_cast<int>(-result)) : fmt::format("{} bytes moved", result);
  }
};

RunResult result_of(const Tally& all, const RunCounters& before, const RunCounters& after,
                    unsigned slack) {
  RunResult run;
  put_latencies(&run, all.latencies, before.seconds_until(after));
  put_counters(&run, before, after, run.ops);
  run.reads = static_cast<double>(all.reads);
  run.writes = static_cast<double>(all.writes);
  run.mismatches = static_cast<double>(all.mismatches);
  run.error = all.error;
  // Operations that were done before the clock started may be counted after it.
  const auto must = [&](uint64_t ops) {
    return static_cast<double>((ops > slack ? ops - slack : 0) * kBlockBytes);
  };
  run.must_read_bytes = must(all.reads);
  run.must_write_bytes = must(all.writes);
  put_cpu_figures(&run);
  return run;
}

}  // namespace

RunResult measure_io_run(const BenchBacking& backing, const IoOrder& order) {
  struct InFlight {
    uint64_t unit = 0, start = 0;
    bool write = false;
  };
  BlockStamps& stamps = backing.stamps();
  Random random(order.seed);
  const unsigned depth = order.depth;
  const NoiseBuffer buffers(depth * kBlockBytes, random.next());
  const auto engine = make_engine(order.system, backing, buffers, depth);
  std::vector<InFlight> entries(depth);
  std::vector<unsigned> free;
  for (unsigned i = 0; i < depth; ++i) free.push_back(depth - 1 - i);
  std::vector<IoOp> ops(depth);
  std::vector<IoDone> done(depth);
  Tally tally;
  RunCounters before, after;
  const uint64_t begin = now_ns();
  for (enum {kWarm, kMeasure, kStop} phase = kWarm;;) {
    uint64_t now = now_ns();
    if (phase == kWarm && now >= begin + static_cast<uint64_t>(order.warm_seconds * 1e9)) {
      tally = {{}, 0, 0, tally.mismatches, tally.error};
      before = read_counters(backing.disk_stat());
      now = now_ns();
      phase = kMeasure;
    } else if (phase == kMeasure &&
               (interrupted() || now >= before.ns + static_cast<uint64_t>(order.seconds * 1e9))) {
      after = read_counters(backing.disk_stat());
      phase = kStop;
    }
    unsigned n = 0;
    for (; phase != kStop && !free.empty(); ++n, free.pop_back()) {
      const unsigned slot = free.back();
      InFlight& entry = entries[slot];
      entry = {stamps.claim(random), now, random.below(100) >= order.read_percent};
      if (entry.write) stamps.stamp(entry.unit, buffers.data() + slot * kBlockBytes);
      ops[n] = {entry.write, slot, entry.unit * kBlockBytes};
    }
    const auto in_flight = depth - static_cast<unsigned>(free.size());
    if (in_flight == 0) break;
    const int got = engine->exchange(ops.data(), n, done.data(), std::min(order.batch, in_flight));
    if (got < 0) throw std::runtime_error(fmt::format("{}: {}", order.system, strerror(-got)));
    now = now_ns();
    for (int i = 0; i < got; ++i) {
      const InFlight& entry = entries[done[i].slot];
      if (phase != kStop) tally.note(entry.write, done[i].result, now - entry.start);
      if (!entry.write && !stamps.check(entry.unit, buffers.data() + done[i].slot * kBlockBytes))
        ++tally.mismatches;
      stamps.release(entry.unit);
      free.push_back(done[i].slot);
    }
  }
  check_interrupted();
  return result_of(tally, before, after, 2 * depth);
}

}  // namespace lunar::tools
