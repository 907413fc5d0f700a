// SPDX-License-Identifier: Apache-2.0
#include "pager/state/state.h"

#include "sys/log.h"
#include "sys/memory_copy.h"
#include "sys/proc.h"

namespace lunar {

PagerState& pager_state() {
  static constinit PagerState instance;
  return instance;
}

uint64_t committed_pages(const PagerState& state) {
  uint64_t pages = 0;
  for (const Region& region : state.regions) pages += region.committed_pages.load();
  return pages;
}

Region* own_region(const PagerState& state, const void* address) {
  Region* region = state.regions.find(address);
  return region == nullptr || state.foreign.overlaps(address, 1) ? nullptr : region;
}

int forked_past_us(const PagerState& state) {
  return !state.is_active() || state.member.copy.load() == sys::memory_copy()
             ? 0
             : state.member.pid.load();
}

void say_limited(const PagerState& state, size_t bytes) {
  if (const int parent = forked_past_us(state); parent != 0) {
    LUNAR_LOG_LIMITED(log_warning, 1,
                      "refused: this process was forked from %d by a system call past Lunar, and "
                      "has no tiered memory; "
                      "use libc's fork or syscall(), or run the program without Lunar",
                      parent);
    return;
  }
  LUNAR_LOG_LIMITED(log_warning, 1,
                    "allocation refused: the kernel does not give %s more to this process; raise "
                    "the limit on its memory (%s)",
                    format_size(bytes).text, sys::memory_limit());
}

MutatorScope::MutatorScope(PagerState& state, bool wait) : state_(state) {
  for (;;) {
    state.fork.mutators.fetch_add(1, std::memory_order_seq_cst);
    if (!state.fork.forking.load(std::memory_order_seq_cst)) {
      tables_.emplace();
      return;
    }
    state.fork.mutators.fetch_sub(1, std::memory_order_seq_cst);
    if (!wait) {
      entered_ = false;
      return;
    }
    signals_.unblock();
    while (state.fork.forking.load(std::memory_order_acquire)) sys::sleep_ns(20'000);
    signals_.block();
  }
}

MutatorScope::~MutatorScope() {
  tables_.reset();
  if (entered_) state_.fork.mutators.fetch_sub(1, std::memory_order_release);
}

void count_evicted(int64_t delta) {
  counters().evicted.fetch_add(delta, std::memory_order_relaxed);
}

void count_resident(PagerState& state, Region& region, PageIndex page, int delta) {
  region.note_resident(page, delta);
  int64_t now = counters().resident.fetch_add(delta, std::memory_order_relaxed) + delta;
  if (now > state.resident_peak.load(std::memory_order_relaxed))
    state.resident_peak.store(now, std::memory_order_relaxed);
}

}  // namespace lunar
