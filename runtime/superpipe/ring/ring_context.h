// SPDX-License-Identifier: Apache-2.0
// The common part of contexts on io_uring: one ring per thread, the registered files of one or
// several devices, and waiting.
//
//   submit ──► SQ ring ──► io_uring_enter (one per call) ──► device
//                                                            │ completion, as deferred task work
//   reap / wait ◄── CQ ring ◄── io_uring_enter only when the shared flag says that work waits
//
// A derived context defines how a command becomes an entry of the ring (queue) and what a
// completion means (finish).
//
// Threading: the thread that attached; or, attached as shared, one at a time, await() at any time.
// submit, reap, wait, watch do not allocate.
#pragma once
#include <atomic>

#include "superpipe/context_base.h"
#include "superpipe/device_files.h"
#include "sys/uring.h"

namespace lunar {

// Whether the host lets a window be registered with a ring (RLIMIT_MEMLOCK), as of now. Blocking;
// for probes at open.
[[nodiscard]] bool window_can_be_registered();

class RingContext : public OwnedContext {
 public:
  [[nodiscard]] int submit(const Command* commands, unsigned n) final;
  [[nodiscard]] int reap(Response* out, unsigned max) final;
  [[nodiscard]] int wait(Response* out, unsigned max, int64_t timeout_ns) final;
  [[nodiscard]] int exchange(const Command* commands, unsigned n, unsigned* taken, Response* out,
                             unsigned max, unsigned least, int64_t timeout_ns) final;
  [[nodiscard]] int watch(int fd, uint64_t tag) final { return watches_.add(fd, tag); }
  unsigned in_flight() const final { return in_flight_; }
  uint64_t usual_latency_ns() const final { return latency_.ns(); }
  [[nodiscard]] int await(int64_t timeout_ns) final;
  void wakeups(Wakeups* out) final;
  void release() final;

  bool window_registered() const { return window_ != nullptr; }

 protected:
  static constexpr unsigned kDepthMax = 4096;

  RingContext() = default;
  // The size of the mapping for a derived context of `head` bytes.
  static size_t mapping_bytes(size_t head, unsigned depth) {
    return head + depth * (sizeof(InFlight) + sizeof(uint16_t));
  }
  // Sets up all that belongs to this class, in `memory` (zeros), which starts with the derived
  // object and has mapping_bytes(head, depth) bytes. The file of files[i] is registered as number
  // i. large: a ring for NVMe commands. 0 or -errno (only the memory remains then).
  static constexpr unsigned kFilesMax = 8;
  [[nodiscard]] int start(char* memory, size_t head, const DeviceFiles* const* files,
                          unsigned count, const ContextOptions& options, bool large);

  // Puts the command with in-flight entry `index` into the ring. False: the ring is full.
  virtual bool queue(const Command& command, uint32_t index) = 0;
  // Handles a completion of in-flight entry `index`. True: *result is the result of its response.
  // False: the command continues (it was put into the ring again).
  virtual bool finish(uint32_t /*index*/, int32_t completed, int64_t* result) {
    *result = completed;
    return true;
  }
  bool in_window(const iovec& part) const {
    const auto offset =
        reinterpret_cast<uintptr_t>(part.iov_base) - reinterpret_cast<uintptr_t>(window_);
    return offset < window_bytes_ && part.iov_len <= window_bytes_ - offset;
  }
  void drop_window() { window_bytes_ = 0; }

  sys::Uring ring_;

 private:
  struct InFlight {
    uint64_t tag;
    uint64_t start_ns;  // 0: not a sample of read latency
  };
  unsigned queue_all(const Command* commands, unsigned n);
  void arm_watches();
  bool flush();
  void note_unsent() { unsent_.store(ring_.queued() != 0, std::memory_order_relaxed); }
  unsigned take(Response* out, unsigned max, bool drive);
  unsigned spin(Response* out, unsigned max, int64_t timeout_ns);

  WatchSet watches_;
  LatencyAverage latency_;
  InFlight* entries_ = nullptr;      // the index is the ring's user data
  uint16_t* free_ = nullptr;         // stack of free indices, free_[0 .. depth_ - in_flight_)
  std::atomic<bool> unsent_{false};  // for await, which checks nothing else
  unsigned depth_ = 0;
  unsigned in_flight_ = 0;
  const char* window_ = nullptr;
  size_t window_bytes_ = 0;
  size_t mapping_bytes_ = 0;
  int cpus_ = 1;
  bool spin_ = true;
  bool samples_ = false;       // reads are timed, for spinning: by one thread at a time
  unsigned spin_skip_ = 0;     // waits that go to sleep at once, because a spin was preempted
  unsigned spin_penalty_ = 8;  // how many the next preempted spin costs
};

}  // namespace lunar
