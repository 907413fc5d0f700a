// SPDX-License-Identifier: Apache-2.0
// A context whose commands are calls (copies or blocking I/O) made by the caller or by delegates.
// Commands that the caller carries out are done when submit returns; delegated ones go through
// three lock-free rings:
//
//   free_      indices of free slots; used by the owner only
//   cells_     indices of slots to be carried out: the owner adds at tail_, any thread takes at
//              head_ by compare-and-swap
//   done_top_  slots that are done: a stack to which any thread adds and from which the owner takes
//              all at once
//
// If calls are short (copies), wait() and await() help: they take untaken slots, and sleep only for
// slots that other threads have begun.
// Threading: as for every context; run_some, has_work and await from any thread. May not: allocate
// after create.
#pragma once
#include <atomic>

#include "superpipe/context_base.h"
#include "superpipe/ring/delegate.h"

namespace lunar {

class DelegateContext : public OwnedContext, public DelegateClient {
 public:
  [[nodiscard]] int submit(const Command* commands, unsigned n) override;
  [[nodiscard]] int reap(Response* out, unsigned max) override;
  [[nodiscard]] int wait(Response* out, unsigned max, int64_t timeout_ns) override;
  [[nodiscard]] int watch(int fd, uint64_t tag) override { return watches_.add(fd, tag); }
  unsigned in_flight() const override { return in_flight_.load(std::memory_order_relaxed); }
  uint64_t usual_latency_ns() const override { return latency_.ns(); }
  [[nodiscard]] int await(int64_t timeout_ns) override;
  void wakeups(Wakeups* out) override;
  void release() override;

  bool run_some(bool foreign) override;
  bool has_work() const override {
    return head_.load(std::memory_order_relaxed) < tail_.load(std::memory_order_acquire);
  }

 protected:
  static constexpr unsigned kDepthMax = 4096;
  struct Habits {
    bool helps;          // a waiting thread takes pieces itself
    uint32_t claim_max;  // maximum number of commands that one thread takes at once
    uint64_t look_ns;    // how often a thread that waits for several contexts polls this one
  };

  explicit DelegateContext(Habits habits) : habits_(habits) {}
  // The size of the mapping for a derived context of `head` bytes.
  static size_t mapping_bytes(size_t head, unsigned depth);
  // Sets up all that belongs to this class, in `memory` (zeros), where the derived object is. The
  // pool belongs to the device.
  void start(char* memory, size_t head, DelegatePool* pool, const ContextOptions& options);
  // Any thread. foreign: by a delegate.
  virtual int64_t carry_out(const Command& command, bool foreign) = 0;
  // Whether a submit call of that many bytes goes to the delegates. If so, they run.
  virtual bool delegates(uint64_t bytes) = 0;

 private:
  static constexpr uint32_t kNone = UINT32_MAX;
  struct Slot {
    Command command;
    int64_t result;
    uint64_t took_ns;  // 0: not a sample of read latency
    uint32_t next;     // on the stack, in the list
  };
  void perform(Slot* slot, bool foreign);
  void finish(uint32_t index);
  uint32_t take_slot(const Command& command);
  void append_ready(uint32_t index);
  void collect();
  unsigned deliver(Response* out, unsigned max);
  bool may_reap() const;
  bool spin() const;
  int sleep(int64_t timeout_ns);
  void wake_sleepers();

  // Used by the owner only.
  const Habits habits_;
  DelegatePool* pool_ = nullptr;
  Slot* slots_ = nullptr;
  uint16_t* free_ = nullptr;  // stack, free_[0 .. depth_ - in_flight_)
  std::atomic<uint16_t>* cells_ = nullptr;
  uint32_t depth_ = 0, mask_ = 0;
  uint32_t ready_first_ = kNone, ready_last_ = kNone;  // done, not yet reaped
  uint32_t epoch_ = 0;                                 // of the pool when work was offered last
  bool shared_ = false, spin_ = true;
  WatchSet watches_;
  LatencyAverage latency_;
  size_t mapping_bytes_ = 0;
  std::atomic<uint32_t> in_flight_{0};    // written by the owner
  std::atomic<uint32_t> ready_count_{0};  // likewise
  // Shared by all threads.
  // The number of commands to take at once: about kClaimBytes, at most habits_.claim_max.
  std::atomic<uint32_t> claim_max_{1};
  alignas(64) std::atomic<uint64_t> tail_{0};
  alignas(64) std::atomic<uint64_t> head_{0};
  alignas(64) std::atomic<uint32_t> done_top_{0};  // index + 1
  std::atomic<uint32_t> sleepers_{0};
  std::atomic<uint32_t> event_{0};  // futex of the sleepers
};

}  // namespace lunar
