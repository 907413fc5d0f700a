// SPDX-License-Identifier: Apache-2.0
// Handler: a thread that answers userfaultfd messages. README.md describes the life of a fault.
//
// A handler never blocks on a page, on DRAM or on the evictor: it parks a message that it cannot
// answer now, and tries again later. It waits only on its ring, for messages and completions.
// follower.h decides where it runs.
//
// One handler per node always runs. The others, the helpers, rest on a futex; otherwise every
// waiting handler would wake for every message. The first one wakes a helper when it has found
// several messages at once for a while; helpers rest again when few come.
//
// On a machine with several NUMA nodes each node has its own handlers, which run there and have
// their windows there, so that a page is filled from and into memory of the faulting thread's node.
// A handler that reads a message of another node's thread puts it into the inbox of a handler of
// that node.
#pragma once
#include "pager/fault/answerer.h"
#include "pager/fault/follower.h"
#include "pager/fault/inbox.h"
#include "pager/fault/resolver.h"
#include "sys/phases.h"
#include "sys/uffd.h"

namespace lunar {

struct Handler {
  explicit Handler(PagerState& state)
      : state_(state), resolver_(state), answerer_(state, resolver_), follower_(state) {}
  [[nodiscard]] int open(unsigned index, unsigned window_pages, int node);
  [[nodiscard]] int start();
  void wait_for_release() const { resolver_.wait_for_release(); }
  void forget_parents() { resolver_.forget_parents(); }  // in a forked child, before open()
  // Waits until the handler holds no pointer that it looked up before the call. Only for threads of
  // the program.
  void wait_for_round() const { round_.wait_for_end(); }
  void dump(int fd) const;

 private:
  enum class Next { kGoOn, kWait, kRest };
  void run();
  void set_up();
  Next do_round();
  void wait_for_more();
  void see_what_came();
  void rest();
  unsigned answer_inbox();
  unsigned take_messages();
  void answer(const sys::UffdMessage& message, bool again);
  void read_in_stall();
  Handler& owner_of(const sys::UffdMessage& message);
  bool hand_over(Handler& owner, const sys::UffdMessage& message);
  void call_helpers(unsigned load);
  bool may_rest(unsigned load);
  void arm_watches(unsigned messages);
  void note_stuck();
  // False: so many messages are parked that others wait in the kernel's queue.
  bool reads_messages() const { return inbox_.count() <= Inbox::kMax / 2; }
  // Whether there is nothing to answer now: no new message, here or in the kernel's queue.
  bool must_wait() const {
    return inbox_.count() == inbox_.parked() && (watching_messages_ || !reads_messages());
  }
  Bell& bell() const { return state_.services.bells[index_]; }

  PagerState& state_;
  Resolver resolver_;
  Answerer answerer_;
  Follower follower_;
  Inbox inbox_;          // messages that are not answered, parked or new
  sys::Section round_;   // inside while the handler may hold what it has looked up
  unsigned index_ = 0;   // in FaultState::handlers
  int node_ = 0;         // the NUMA node that it serves
  bool helper_ = false;  // not the first handler of its node

  bool watching_messages_ = false;  // the ring watches for messages, as there were none
  bool watching_bell_ = false;      // the ring watches for the bell
  unsigned hot_rounds_ = 0;         // rounds with a high load, less others
  unsigned calm_rounds_ = 0;        // of a helper: rounds in succession with a load of at most 1

  unsigned vain_retries_ = 0;  // rounds in which no parked message could be answered
  uint64_t stuck_since_ = 0;   // since when none could be answered; 0: one was
  bool stuck_said_ = false;    // logged since then

  struct ThreadNode {
    int thread_id = 0, node = 0;
    unsigned left = 0;  // faults until it is looked at again
  };
  ThreadNode thread_nodes_[64];  // the nodes on which threads ran, by their ids
};

}  // namespace lunar
