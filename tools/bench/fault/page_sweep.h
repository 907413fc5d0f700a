// SPDX-License-Identifier: Apache-2.0
// Walks of the seq workload. Every thread walks over its part of the pages again and again; a run
// continues where the last one ended. A thread that has finished a pass waits for the others, as in
// parallel sweeps over an array. (Otherwise a thread whose part is in memory would make most of the
// touches.)
// Threading: a Walk belongs to one thread during a run; passes_done is shared by the threads of its
// group.
#pragma once
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>
#include <vector>

namespace lunar::tools {

struct Walk {
  uint64_t low = 0, span = 1, step = 0, passes_counted = 0;
  uint64_t page(uint64_t s) const { return low + s % span; }
};

struct WalkGroup {
  std::vector<Walk> walks;
  std::atomic<uint64_t> passes_done{0};  // of all its threads

  // Divides `pages` among `threads`.
  WalkGroup(unsigned threads, uint64_t pages) : walks(threads) {
    for (unsigned t = 0; t < threads; ++t) {
      walks[t].low = pages * t / threads;
      walks[t].span = std::max<uint64_t>(1, pages * (t + 1) / threads - walks[t].low);
    }
  }
  // Call at the start of a step; may wait. False: the run is over, by `stopped`.
  template <class Stopped>
  bool join_pass(Walk& walk, const Stopped& stopped) {
    const uint64_t pass = walk.step / walk.span;
    if (pass > walk.passes_counted) {
      walk.passes_counted = pass;
      passes_done.fetch_add(1);
    }
    while (passes_done.load() < pass * walks.size()) {
      if (stopped()) return false;
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
    return true;
  }
};

}  // namespace lunar::tools
