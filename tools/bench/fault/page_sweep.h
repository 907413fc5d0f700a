// SPDX-License-Identifier: Apache-2.0
// Walks of the seq and stride workloads: every thread goes over a part of the pages again and
// again, kept between runs, so that a short run goes on where the last one ended. They go pass by
// pass, as parallel sweeps over an array do: a thread that has finished a pass waits for the
// others. (Without that, a thread whose part happens to be in memory would run round in it alone.)
// Threading: a Walk belongs to one thread during a run; passes_done is shared by the threads of its
// group.
#pragma once
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace lunar::tools {

struct Walk {
  uint64_t low = 0, span = 1, step = 0, passes_told = 0;
  uint64_t steps_per_pass(uint64_t stride) const { return (span + stride - 1) / stride * stride; }
  // Page of step s: over the part with `stride`, then again one page further.
  uint64_t page(uint64_t s, uint64_t stride) const {
    const uint64_t column = (span + stride - 1) / stride;
    const uint64_t lane = (s / column) % stride, row = s % column;
    return low + std::min(row * stride + lane, span - 1);
  }
};

struct WalkGroup {
  std::string name;
  std::vector<Walk> walks;
  std::atomic<uint64_t> passes_done{0};  // of all its threads

  // At the start of a step. False when `stopped` says that the run is over.
  template <class Stopped>
  bool join_pass(Walk& walk, uint64_t stride, const Stopped& stopped) {
    const uint64_t pass = walk.step / walk.steps_per_pass(stride);
    if (pass > walk.passes_told) {
      walk.passes_told = pass;
      passes_done.fetch_add(1);
    }
    while (passes_done.load() < pass * walks.size()) {
      if (stopped()) return false;
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
    return true;
  }
};

class Walks {
 public:
  void clear() { groups_.clear(); }
  // The group of that name, made when it is new: `pages` divided among `threads`.
  WalkGroup& group(const std::string& name, unsigned threads, uint64_t pages) {
    for (WalkGroup& known : groups_) {
      if (known.name == name) return known;
    }
    WalkGroup& fresh = groups_.emplace_back();
    fresh.name = name;
    fresh.walks.resize(threads);
    for (unsigned t = 0; t < threads; ++t) {
      fresh.walks[t].low = pages * t / threads;
      fresh.walks[t].span = std::max<uint64_t>(1, pages * (t + 1) / threads - fresh.walks[t].low);
    }
    return fresh;
  }

 private:
  std::deque<WalkGroup> groups_;
};

}  // namespace lunar::tools
