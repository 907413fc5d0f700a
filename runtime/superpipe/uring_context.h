// SPDX-License-Identifier: Apache-2.0
// A context on io_uring: one ring a thread, the device's file registered with it, and (where RLIMIT_MEMLOCK allows) a
// window of the owner's frames, so that page I/O pins nothing.
//
//   submit ──► SQ ring ──► io_uring_enter (one a call) ──► device
//                                                            │ completion, as deferred task work
//   reap / wait ◄── CQ ring ◄── io_uring_enter only when the shared flag says that work waits
//
// Threading: the thread that attached. submit, reap, wait, watch do not allocate.
#pragma once
#include <atomic>

#include "superpipe/context_base.h"
#include "sys/uring.h"

namespace lunar {

class UringContext final : public OwnedContext {
 public:
  // fd: the device's file, O_DIRECT. data_offset: where the device's offset 0 lies in it. 0 or -errno.
  [[nodiscard]] static int create(int fd, uint64_t data_offset, const ContextOptions& options, OwnedContext** out);

  [[nodiscard]] int submit(const Command* commands, unsigned n) override;
  [[nodiscard]] int reap(Response* out, unsigned max) override;
  [[nodiscard]] int wait(Response* out, unsigned max, int64_t timeout_ns) override;
  [[nodiscard]] int exchange(const Command* commands, unsigned n, unsigned* taken, Response* out, unsigned max,
                             unsigned least, int64_t timeout_ns) override;
  [[nodiscard]] int watch(int fd, uint64_t tag) override { return watches_.add(fd, tag); }
  unsigned in_flight() const override { return in_flight_; }
  uint64_t usual_latency_ns() const override { return latency_.ns(); }
  [[nodiscard]] int await(int64_t timeout_ns) override { return ring_.await(timeout_ns); }
  void release() override;

  bool window_registered() const { return window_ != nullptr; }

 private:
  struct Flight {
    uint64_t tag;
    uint64_t start_ns;   // 0: not a sample of read latency
  };
  UringContext() = default;
  bool queue(const Command& command, uint32_t index);
  unsigned queue_all(const Command* commands, unsigned n);
  void arm_watches();
  bool flush();
  unsigned take(Response* out, unsigned max, bool drive);
  unsigned spin(Response* out, unsigned max, int64_t timeout_ns);
  bool in_window(const iovec& part) const;

  sys::Uring ring_;
  WatchSet watches_;
  LatencyAverage latency_;
  Flight* flights_ = nullptr;       // by index; the index travels as the ring's user data
  uint16_t* free_ = nullptr;        // stack of free indices, free_[0 .. depth_ - in_flight_)
  unsigned depth_ = 0;
  unsigned in_flight_ = 0;
  uint64_t data_offset_ = 0;
  const char* window_ = nullptr;
  size_t window_bytes_ = 0;
  size_t mapping_bytes_ = 0;
  int cpus_ = 1;
  bool spin_ = true;
  unsigned spin_skip_ = 0;          // waits that go to sleep at once, because a spin was preempted
  unsigned spin_penalty_ = 8;       // how many the next preempted spin costs
};

}  // namespace lunar
