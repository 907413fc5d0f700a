// SPDX-License-Identifier: Apache-2.0
// Keeps two things from happening at the same time: pages being installed or dropped, and events of the userfaultfd
// (unmapped.h) being read.
//
// A raw call that unmaps or moves tiered memory continues once its event has been read, and from then on the kernel
// accepts UFFDIO_COPY again. An install that found no note for its place, but reaches the kernel only then, would put
// old content into memory that has been moved there; a drop would remove what the program has written to its own map in
// that place. So what they looked up must remain true until the kernel has acted: no event is read in between.
//
//   install   enter ─ look for a note ─ UFFDIO_COPY, drop ─ leave  many at a time; one count per shard, nearly always
//                                                                  on its own cache line
//   read      begin ─ read ─ note the events ─ end                 waits for installs in progress if there is an event
//
// One thread reads at a time, so that notes keep the order of the events: a mremap brings two (moved, unmapped), and an
// unmap that is settled first drops what the move is to bring along. That wait is short: between a read and its notes
// nothing can be installed anyway.
//
// A reader whose queue holds only faults does not wait, because a thread that lost its CPU in the middle of an install
// must not stop faults.
//
// Threading: any. Neither side allocates. Both give up (EAGAIN, false) rather than wait for a reader that has lost its
// CPU.
#pragma once
#include <atomic>
#include <cstdint>

#include "sys/thread.h"

namespace lunar {

class EventGate {
 public:
  // Returns the shard entered, or -1: events are being read; try again, as when the kernel answers EAGAIN.
  [[nodiscard]] int enter() {
    // a stack, a shard
    const int shard = static_cast<int>(reinterpret_cast<uintptr_t>(__builtin_frame_address(0)) >> 16) & (kShards - 1);
    for (unsigned spins = 0; spins < kSpinsMax; ++spins) {
      installs_[shard].count.fetch_add(1, std::memory_order_seq_cst);
      if (!reading_.load(std::memory_order_seq_cst)) return shard;
      leave(shard);
      while (reading_.load(std::memory_order_relaxed) && ++spins < kSpinsMax) sys::cpu_relax();
    }
    return -1;
  }
  void leave(int shard) { installs_[shard].count.fetch_sub(1, std::memory_order_release); }

  // The same for a thread that does not read: waits for the reader.
  [[nodiscard]] int enter_waiting() {
    int shard;
    while ((shard = enter()) < 0) sys::yield_cpu();
    return shard;
  }
  // When this returns, events that were read before are noted. Must not be called by readers.
  void wait_for_readers() { leave(enter_waiting()); }

  // Around reading messages, until all events among them are noted. False: another thread is reading.
  [[nodiscard]] bool begin_read(int uffd);
  void end_read() { reading_.store(false, std::memory_order_release); }

  // In a forked child: none of the threads inside exists there.
  void enter_child();

 private:
  static constexpr int kShards = 16;
  static constexpr unsigned kSpinsMax = 400;  // some microseconds: a read takes one
  bool installing() const;

  struct alignas(64) Shard {
    std::atomic<uint32_t> count{0};
  };
  Shard installs_[kShards];
  alignas(64) std::atomic<bool> reading_{false};
};

}  // namespace lunar
