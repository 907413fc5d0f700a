// SPDX-License-Identifier: Apache-2.0
// Resolver: makes pages resident. Each handler has one, and each program thread that calls a range
// operation gets one; they share no lock. A resolver has a context (ring) for every LUN that it
// reads from, and a window of DRAM that it reads into.
//
// It has one function for each state from which a page comes in. The caller looks at the page's
// word and calls the function for its state: Answerer::answer_missing for a fault, bring_in.cpp for
// the next page of a range. The functions return an Outcome (fill_request.h). Empty pages are
// filled by zero_fill.h, without a resolver.
//
// Threading: used by one thread. Fault path: no allocation, no host lock, and tiered memory is
// touched only through userfaultfd.
#pragma once
#include <cstdint>
#include <utility>

#include "pager/fault/fill_request.h"
#include "pager/fault/read_window.h"
#include "pager/state/install.h"
#include "pager/state/state.h"
#include "superpipe/device.h"
#include "sys/phases.h"

namespace lunar {

struct ResolverOptions {
  unsigned window_pages = 64;
  bool required = false;  // for a handler: takes the window even beyond the cap (after a fork)
  int node = -1;          // NUMA node of the window; -1: any
};

class Resolver {
 public:
  explicit Resolver(PagerState& state) : state_(state) {}
  // Makes the window, which is charged to the account. A context is attached when its LUN is first
  // read. 0 or -errno; -EAGAIN: the account has no room now; -ENOMEM: also if promised page tables
  // leave no room.
  [[nodiscard]] int open(const ResolverOptions& options);
  void close();  // waits for what is in flight
  // In a forked child, before open(): gives back the memory of its parent's contexts.
  void forget_parents() {
    detach();
    releases_.reset_in_child();  // its thread may have been inside
  }

  // A function for each state from which `page` comes in. Its word was `seen` a moment ago.
  // kInFrame: installs this page.
  FillResult from_frame(Region& region, PageIndex page, PageWord seen, const FillRequest& request);
  // kEvicted: begins to read it, with the pages behind it whose slots are consecutive. The next
  // progress() submits the read.
  FillResult start_read(Region& region, PageIndex page, PageWord seen, const FillRequest& request);

  // Submits the reads that were begun, and installs finished ones. wait: for at least one response,
  // or until the timeout. Returns the number of responses handled.
  int progress(bool wait, int64_t timeout_ns);
  unsigned in_flight() const { return ops_in_flight_; }
  // Makes progress() also wait until the descriptor can be read. tag: 0..63.
  [[nodiscard]] int watch(int fd, uint64_t tag);
  // Returns the watches that have fired since the last call, a bit for each tag. A watch fires
  // once.
  uint64_t take_watched() { return std::exchange(watched_, 0); }
  // Attaches the context of the own LUN now, which watches need. False: not possible.
  bool attach_own();
  bool no_ring() const { return no_ring_; }  // the last attempt to attach a context has failed
  bool failed() const { return failed_reads_ != 0; }
  void clear_failed() { failed_reads_ = 0; }
  // Whether the kernel had no memory for pages since the last call. They are evicted still.
  bool take_refused() { return std::exchange(refused_, false); }
  // Returns when the pages that it had installed before the call, in place of evicted ones, are
  // released. Called by another thread.
  void wait_for_release() const { releases_.wait_for_end(); }

  Resolver* made_before = nullptr;  // the list of program threads' resolvers (bring_in.cpp)

 private:
  struct ReadOp {
    Region* region;
    uint64_t first;
    uint16_t count;
    uint16_t window;  // its first page of the window
    uint8_t lun;
    uint8_t heat;
    bool fault;
    uint8_t retries;
    Slot slot;
    iovec iov;
  };
  static constexpr unsigned kOpsMax = 128;

  Context* context_for(unsigned lun);
  void detach();
  void submit_queued();
  unsigned lock_run(Region& region, PageIndex page, PageWord first, unsigned run);
  void finish(unsigned op_index, int64_t result);
  uint64_t bad_pages(const ReadOp& op, int64_t result) const;
  void install_good(ReadOp& op, uint64_t bad);
  void finish_failed(unsigned op_index, uint64_t bad, int error);
  void install_read(ReadOp& op, unsigned from, unsigned count);
  void unlock_installed(ReadOp& op, unsigned index, bool already_there, uint16_t epoch);
  void give_back(ReadOp& op, unsigned index, PageState state);
  void release_op(unsigned op_index);

  PagerState& state_;
  sys::Section releases_;  // inside while evicted pages are installed and released
  ReadWindow window_;
  Context* contexts_[kLunIds] = {};
  ReadOp* ops_ = nullptr;
  uint16_t free_ops_[kOpsMax] = {};
  unsigned free_op_count_ = 0;
  unsigned ops_in_flight_ = 0;
  // reads that are begun and not submitted yet, each once
  uint16_t queued_[kOpsMax] = {};
  unsigned queued_count_ = 0;
  uint64_t watched_ = 0;
  unsigned watch_lun_ = 0;
  bool watching_ = false, no_ring_ = false;
  unsigned failed_reads_ = 0;
  bool refused_ = false;
};

}  // namespace lunar
