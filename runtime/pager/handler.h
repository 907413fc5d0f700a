// SPDX-License-Identifier: Apache-2.0
// Handler: a thread that answers userfaultfd messages. README.md describes the life of a fault.
//
// A handler never blocks on a page, on DRAM or on the evictor: it parks a message that it cannot answer now and tries
// again later. One wait (of its ring) covers messages and completions. It follows the thread it serves: it runs under
// SCHED_IDLE, pinned to the CPU of the faulting thread, which sleeps, so that no other CPU has to wake up. With more
// work than one thread's faults it runs as a normal thread on any CPU, because a busy CPU would starve an idle-class
// one.
//
// One handler per node always runs. The others rest on a futex (otherwise every waiting handler would wake for every
// message) until the first one finds several messages at once for a while; they rest again when few come.
//
// On a machine with several NUMA nodes each node has its own handlers, which run there with windows there, so that a
// page is filled from and into memory of the faulting thread's node. A handler that reads a message of another node's
// thread posts it to a handler of that node.
#pragma once
#include <pthread.h>

#include <atomic>
#include <cstdint>

#include "pager/resolver.h"
#include "pager/streams.h"
#include "sys/thread.h"
#include "sys/uffd.h"

namespace lunar {

struct Handler {
  explicit Handler(PagerState& state) : state_(state), resolver_(state) {}
  [[nodiscard]] int open(unsigned index, unsigned window_pages, int node);
  [[nodiscard]] int start();
  void wait_for_release() const { resolver_.wait_for_release(); }
  void forget_parents() { resolver_.forget_parents(); }  // in a forked child, before open()
  // Waits until the handler holds nothing that it looked up before the call. Only for threads of the program.
  void wait_for_round() const;
  int mailbox_descriptor() const { return mailbox_event_; }  // -1 with one node
  void post(const sys::UffdMessage& message);                // by other handlers
  void stalled();                                            // called by its own thread, in the middle of an answer
  void room_came();                                          // called by service threads: retry parked messages
  void dump(int fd) const;

 private:
  int node_of(int thread_id);
  void route(const sys::UffdMessage& message);
  unsigned take_mailbox();
  static void run_thread(void* self);
  void run();
  unsigned take_messages();
  int read_messages(sys::UffdMessage* messages, unsigned max);
  bool may_pass_budget(const sys::UffdMessage& message);
  unsigned take_late();
  void answer(const sys::UffdMessage& message);
  void answer_outside(const sys::UffdMessage& message);
  void answer_protected(Region& region, PageIndex page, const sys::UffdMessage& message);
  void mark_lost(Region& region, PageIndex page, PageWord seen, const sys::UffdMessage& message);
  void answer_missing(Region& region, PageIndex page, const sys::UffdMessage& message);
  Ahead ahead_of(const Region& region, PageIndex page, int thread_id, bool first_touch);
  bool check_guard(Region& region, PageIndex page, PageWord was);
  void read_ahead(Region& region, PageIndex page, const Ahead& ahead, unsigned taken);
  void answer_evictor(const sys::UffdMessage& message);
  void check_resident(Region& region, PageIndex page);
  void park(const sys::UffdMessage& message);
  void retry_parked();
  void wait_for_room();
  void follow(int thread_id, unsigned messages);
  void mark_delay();
  bool faults_often();
  bool starved();
  void keep_evictor_off(int cpu);
  void call_helpers(unsigned load);
  void rest_when_calm(unsigned load);
  void unfollow();

  static constexpr unsigned kParkedMax = 4096, kMailboxMax = 256, kLateMax = 256;

  PagerState& state_;
  Resolver resolver_;
  Streams streams_;
  sys::UffdMessage* parked_ = nullptr;
  unsigned parked_count_ = 0;
  sys::UffdMessage late_[kLateMax];  // read in the middle of an answer
  unsigned late_count_ = 0;
  bool retrying_ = false;
  unsigned retries_ = 0;
  int pagemap_ = -1;           // in the service threads' table; made by its thread
  uint64_t stuck_since_ = 0;   // 0: a parked message was answered recently
  uint64_t passed_since_ = 0;  // since when faults that exceeded the budget during a fork are counted
  unsigned passed_ = 0;
  bool stuck_said_ = false;
  unsigned index_ = 0;
  bool watching_ = false;

  int room_event_ = -1;  // room_came() signals it if wants_room_
  bool watching_room_ = false;
  std::atomic<bool> wants_room_{false};

  int node_ = 0;
  int mailbox_event_ = -1;
  bool watching_mailbox_ = false;
  sys::SpinLock mailbox_lock_;
  sys::UffdMessage mailbox_[kMailboxMax];
  unsigned mailbox_count_ = 0;
  struct ThreadNode {
    int thread_id = 0, node = 0;
    unsigned left = 0;
  };
  ThreadNode thread_nodes_[64];

  bool helper_ = false;  // not the first of its node
  unsigned calm_rounds_ = 0, hot_rounds_ = 0;

  int followed_tid_ = 0;
  int followed_cpu_ = -1;
  unsigned until_look_ = 0;
  unsigned busy_rounds_ = 0;
  unsigned until_delay_look_ = 0;
  int delay_tid_ = 0;
  int64_t starved_ns_ = 0;                   // time waited beyond what is fair, a leaky sum
  uint64_t waited_ = 0, followed_ran_ = 0;   // at the last look, nanoseconds
  uint64_t last_fault_ns_ = 0, gap_ns_ = 0;  // mean time between faults
  uint64_t no_follow_until_ = 0, no_follow_ns_ = 0;
  bool can_follow_ = false;  // true for the first of its node, if it can leave SCHED_IDLE again
  bool idle_class_ = false;
  bool lost_ = false;               // the followed thread seems to be on another CPU
  std::atomic<uint64_t> round_{0};  // odd: it has looked something up and may still hold it
};

// Called after EAGAIN from an operation on pages: a handler reads messages, because an unread event may be the cause;
// other threads yield.
void wait_out_stall();

}  // namespace lunar
