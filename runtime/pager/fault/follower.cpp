// SPDX-License-Identifier: Apache-2.0
#include "pager/fault/follower.h"

#include <algorithm>

#include "base/format.h"
#include "pager/state/state.h"
#include "sys/numa.h"

namespace lunar {
namespace {

constexpr unsigned kLookEvery = 32;       // faults of one thread between looks at where it runs
constexpr unsigned kDelayLookEvery = 16;  // faults between looks at how long it waited for its CPU
constexpr int64_t kStarvedNs = 20'000;    // a longer wait a fault: other threads want the CPU
constexpr int64_t kStarvedMostNs = 2'000'000;  // more than that in sum: they want it for long
constexpr uint64_t kPauseMinNs = 50'000'000, kPauseMaxNs = 1'000'000'000;
// mean time between faults: begins to follow below the first, stops above the second
constexpr uint64_t kOftenGapNs = 300'000, kRareGapNs = 1'000'000, kGapMaxNs = 16'000'000;
// rounds with several messages before a handler stops following
constexpr unsigned kBusyRounds = 4;

}  // namespace

void Follower::start(bool may_follow, int node) {
  may_follow_ = may_follow && sys::idle_policy_can_be_left();
  node_ = node;
  thread_ = delay_thread_ = 0;
  cpu_ = -1;
  idle_class_ = lost_ = false;
  busy_rounds_ = 0;
  gap_ns_ = kGapMaxNs;
  starved_ns_ = 0;
  not_before_ns_ = pause_ns_ = 0;
}

void Follower::messages_came(int thread_id, unsigned load) {
  if (!may_follow_ || thread_id == 0) return;
  if (!faults_often()) return;
  if (load > 2 || (thread_id != thread_ && thread_ != 0)) {
    if (++busy_rounds_ >= kBusyRounds) stop_following();
    thread_ = thread_id;
    return;
  }
  if (busy_rounds_ != 0) {
    --busy_rounds_;
    return;
  }
  if (idle_class_) {
    if (starved()) return;
    if (until_look_ != 0) --until_look_;
    if (until_look_ != 0 && !lost_) return;
    // not while the evictor is awake: on its CPU the handler would wait for the end of its batches
    if (!state_.services.evictor_asleep.load(std::memory_order_relaxed)) return;
  } else if (not_before_ns_ != 0 && sys::now_ns() < not_before_ns_) {
    return;
  }
  lost_ = false;
  until_look_ = kLookEvery;
  thread_ = thread_id;
  const int cpu = sys::cpu_of_thread(thread_id);
  if (cpu < 0 || (cpu == cpu_ && idle_class_)) return;
  keep_evictor_off(cpu);
  if (sys::set_affinity(cpu) == 0)
    cpu_ = cpu;
  else
    keep_evictor_off(cpu_);
  if (!idle_class_ && sys::set_idle_policy(true) == 0) {
    idle_class_ = true;
    mark_delay();
  }
}

void Follower::stop_following() {
  busy_rounds_ = kBusyRounds * 4;
  if (idle_class_ && sys::set_idle_policy(false) == 0) idle_class_ = false;
  if (cpu_ < 0) return;
  (void)(node_ >= 0 ? sys::set_affinity_node(node_) : sys::set_affinity(-1));
  keep_evictor_off(-1);
  cpu_ = -1;
}

// A CPU that runs an idle-class handler looks free to the scheduler. A batch of evictions there
// would delay the fault that it makes room for. The evictor's affinity is changed before it wakes
// there: if it woke there first, the scheduler would already have moved the faulting thread.
void Follower::keep_evictor_off(int cpu) {
  const int evictor = state_.services.evictor_tid.load(std::memory_order_relaxed);
  if (evictor != 0) (void)sys::set_affinity_but(evictor, cpu);
}

// Following saves 20 us a fault and risks starvation for a tick or more. It pays only while faults
// come quickly; for a thread that faults now and then a handler of normal priority is better.
bool Follower::faults_often() {
  const uint64_t now = sys::now_ns();
  const uint64_t gap = std::min(now - last_fault_ns_, kGapMaxNs);
  last_fault_ns_ = now;
  gap_ns_ = gap_ns_ - gap_ns_ / 8 + gap / 8;
  if (gap_ns_ <= (idle_class_ ? kRareGapNs : kOftenGapNs)) return true;
  if (idle_class_) stop_following();
  return false;
}

void Follower::mark_delay() {
  until_delay_look_ = kDelayLookEvery;
  delay_thread_ = thread_;
  waited_ns_ = sys::cpu_time_of(sys::thread_id()).waited;
  thread_ran_ns_ = sys::cpu_time_of(thread_).ran;
}

// An idle-class thread starves on a CPU with other work. Its time on the run queue, less the time
// that the followed thread ran, shows that. It then becomes a normal thread for a while, twice as
// long each time.
bool Follower::starved() {
  if (until_delay_look_-- != 0) return false;
  const uint64_t waited = waited_ns_, ran = thread_ran_ns_;
  const bool same = delay_thread_ == thread_;
  mark_delay();
  if (!same) return false;
  starved_ns_ += static_cast<int64_t>((waited_ns_ - waited) - (thread_ran_ns_ - ran)) -
                 kDelayLookEvery * kStarvedNs;
  starved_ns_ = std::max<int64_t>(starved_ns_, 0);
  if (starved_ns_ < kStarvedMostNs) {
    if (pause_ns_ > kPauseMinNs) pause_ns_ -= pause_ns_ / 64;
    return false;
  }
  starved_ns_ = 0;
  pause_ns_ = pause_ns_ == 0 ? kPauseMinNs : std::min(pause_ns_ * 2, kPauseMaxNs);
  not_before_ns_ = sys::now_ns() + pause_ns_;
  stop_following();
  busy_rounds_ = 0;
  return true;
}

size_t Follower::describe(char* out, size_t size) const {
  return format_to(out, size, "follows thread %d on cpu %d%s", thread_, cpu_,
                   idle_class_ ? " (idle class)" : "");
}

}  // namespace lunar
