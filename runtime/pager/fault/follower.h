// SPDX-License-Identifier: Apache-2.0
// Follower: decides where a handler runs. While only one thread faults, the handler runs on that
// thread's CPU, which is idle because the thread sleeps. So neither of the two is woken on another
// CPU. README.md ("Handlers follow") has the reasons and the costs.
//
//   follows      pinned to the CPU of the followed thread, in the scheduler's idle class
//                (SCHED_IDLE)
//   does not     a normal thread on any CPU (of its node): several threads fault, faults are rare,
//                or others want the CPU and would starve an idle-class thread
// Threading: the handler's thread only, except describe().
#pragma once
#include <cstddef>
#include <cstdint>

namespace lunar {

struct PagerState;

class Follower {
 public:
  explicit Follower(PagerState& state) : state_(state) {}
  // may_follow: false for a helper, which serves several threads. node: where the handler runs when
  // it does not follow; -1: any CPU.
  void start(bool may_follow, int node);
  // Messages were read, the first from that thread (0: unknown). load: these messages and reads in
  // flight.
  void messages_came(int thread_id, unsigned load);
  // The handler has nothing to do. On the followed thread's CPU it would run only while that thread
  // waits for it. So the thread is on another CPU, and is looked up at its next fault.
  void nothing_came() { lost_ = true; }
  void stop_following();
  size_t describe(char* out, size_t size) const;  // for a dump; any thread

 private:
  bool faults_often();
  bool starved();
  void mark_delay();
  void keep_evictor_off(int cpu);

  PagerState& state_;
  bool may_follow_ = false;
  int node_ = -1;

  int thread_ = 0;  // the last one served
  int cpu_ = -1;    // the CPU to which the handler is pinned; -1: none
  bool idle_class_ = false;
  bool lost_ = false;           // the thread seems to be on another CPU
  unsigned until_look_ = 0;     // faults until the thread's CPU is looked up
  unsigned busy_rounds_ = 0;    // rounds in which several threads faulted, less others
  uint64_t last_fault_ns_ = 0;  // time of the last fault
  uint64_t gap_ns_ = 0;         // mean time between faults

  unsigned until_delay_look_ = 0;  // faults until the handler's waiting time is looked up
  int delay_thread_ = 0;
  int64_t starved_ns_ = 0;                      // time waited above kStarvedNs a fault, a leaky sum
  uint64_t waited_ns_ = 0, thread_ran_ns_ = 0;  // at the last such look
  uint64_t not_before_ns_ = 0, pause_ns_ = 0;   // after it starved: when it may follow again
};

}  // namespace lunar
