// SPDX-License-Identifier: Apache-2.0
// Handler: a thread that answers userfaultfd messages. README.md describes the life of a fault.
//
// A handler never blocks on a page, on DRAM or on the evictor: it parks a message that it cannot answer now and tries
// again later. One wait (of its ring) covers messages and completions. Where it runs: follower.h.
//
// One handler per node always runs. The others rest on a futex (otherwise every waiting handler would wake for every
// message) until the first one finds several messages at once for a while; they rest again when few come.
//
// On a machine with several NUMA nodes each node has its own handlers, which run there with windows there, so that a
// page is filled from and into memory of the faulting thread's node. A handler that reads a message of another node's
// thread puts it into the inbox of a handler of that node.
#pragma once
#include <pthread.h>

#include <atomic>
#include <cstdint>

#include "pager/fault/follower.h"
#include "pager/fault/inbox.h"
#include "pager/fault/resolver.h"
#include "pager/fault/streams.h"
#include "sys/thread.h"
#include "sys/uffd.h"

namespace lunar {

struct Handler {
  explicit Handler(PagerState& state) : state_(state), resolver_(state), follower_(state) {}
  [[nodiscard]] int open(unsigned index, unsigned window_pages, int node);
  [[nodiscard]] int start();
  void wait_for_release() const { resolver_.wait_for_release(); }
  void forget_parents() { resolver_.forget_parents(); }  // in a forked child, before open()
  // Waits until the handler holds nothing that it looked up before the call. Only for threads of the program.
  void wait_for_round() const;
  // Waits until it has judged the events that it had read before the call. The same.
  void wait_for_reading() const;
  void stalled();  // called by its own thread, in the middle of an answer
  void dump(int fd) const;

 private:
  Bell& bell() const { return state_.services.bells[index_]; }
  int node_of(int thread_id);
  Handler& owner_of(const sys::UffdMessage& message);
  bool hand_over(Handler& owner, const sys::UffdMessage& message);
  static void run_thread(void* self);
  void run();
  unsigned take_messages();
  int read_messages(sys::UffdMessage* messages, unsigned max);
  bool may_pass_budget(const sys::UffdMessage& message);
  unsigned answer_inbox();
  void note_stuck();
  void answer(const sys::UffdMessage& message);
  void answer_outside(const sys::UffdMessage& message);
  void answer_protected(Region& region, PageIndex page, const sys::UffdMessage& message);
  void mark_lost(Region& region, PageIndex page, PageWord seen);
  void answer_missing(Region& region, PageIndex page, const sys::UffdMessage& message);
  Ahead ahead_of(const Region& region, PageIndex page, int thread_id, bool first_touch);
  bool check_guard(Region& region, PageIndex page, PageWord was);
  void read_ahead(Region& region, PageIndex page, const Ahead& ahead, unsigned taken);
  void answer_evictor(const sys::UffdMessage& message);
  void check_resident(Region& region, PageIndex page);
  void park(const sys::UffdMessage& message);
  void wait_for_room();
  void call_helpers(unsigned load);
  void rest_when_calm(unsigned load);

  PagerState& state_;
  Resolver resolver_;
  Follower follower_;
  Streams streams_;
  Inbox inbox_;
  bool retrying_ = false;  // the message in hand was parked
  unsigned retries_ = 0;
  int pagemap_ = -1;           // in the service threads' table; made by its thread
  uint64_t stuck_since_ = 0;   // 0: a parked message was answered recently
  uint64_t passed_since_ = 0;  // since when faults that exceeded the budget during a fork are counted
  unsigned passed_ = 0;
  bool stuck_said_ = false;
  unsigned index_ = 0;
  bool watching_ = false;

  bool watching_bell_ = false;

  int node_ = 0;
  struct ThreadNode {
    int thread_id = 0, node = 0;
    unsigned left = 0;
  };
  ThreadNode thread_nodes_[64];

  bool helper_ = false;  // not the first of its node
  unsigned calm_rounds_ = 0, hot_rounds_ = 0;

  std::atomic<uint64_t> readings_{0};  // odd: it reads messages and judges the events among them
  std::atomic<uint64_t> round_{0};     // odd: it has looked something up and may still hold it
};

}  // namespace lunar
