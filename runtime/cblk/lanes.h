// SPDX-License-Identifier: Apache-2.0
// Lanes: contexts for blocking I/O with a time limit. A thread borrows a lane for each I/O.
//
// Why: a thread in a blocking system call on a device that hangs cannot return; one that waits for
// a ring can. But a command that was handed to the device cannot be withdrawn: a late one is
// *lost*. Its lane, with the buffer that the device may still read or write, is parked until the
// device releases it (sweep), and carries no other I/O meanwhile.
//
// Lanes are attached on demand, at most one more than threads at any one time, and kept. The first
// lane spins for a moment before it sleeps (as every context may). A thread that is alone takes
// that one; several threads take the others as long as there are any.
// Threading: any. Takes a lock only to attach and to park. begin() allocates nothing once there are
// enough lanes.
#pragma once
#include <sys/uio.h>

#include <atomic>
#include <cstdint>

#include "cblk/bounce.h"
#include "cblk/cache.h"
#include "cblk/late_writes.h"
#include "superpipe/device.h"
#include "sys/thread.h"

namespace lunar::cblk {

struct Transfer {
  Op op = Op::kRead;
  uint64_t block = 0;
  uint64_t blocks = 0;
  uint64_t deadline_ns = 0;
  uint64_t left_ns = 0;  // until the deadline, for a transfer that begins now; 0: read the clock
  // A read or write of one block uses the lane's own memory, which is registered with its ring
  // (this saves 1 us of CPU), and is copied to and from here:
  char* buffer = nullptr;
  const uint64_t* stamps = nullptr;  // if set, the data read also go into the cache
  // Without a time limit: the memory for the blocks, if not the bounce buffer.
  const iovec* parts = nullptr;
  uint32_t part_count = 0;
};

// A transfer that has a lane.
struct Underway {
  static constexpr unsigned kNone = ~0u;
  unsigned lane = kNone;
  bool submitted = false;  // if not, end() submits it, in one system call with the wait
  uint64_t left_ns = 0;
};

// The interval at which a hanging device is checked for I/O that it has released.
constexpr uint64_t kLostRetryNs = 2'000'000;

class Lanes {
 public:
  static constexpr unsigned kMost = 64;

  // Attaches no lane yet.
  void open(Device* device, BouncePool* bounces, Cache* cache, LateWrites* late);
  void close();  // pre: nothing is in progress, nothing is lost
  // Takes a lane for the transfer. If none is free, waits for one until the deadline (may_wait) or
  // fails with -EAGAIN. With `submit` the transfer is handed to the device at once. 0, or -errno:
  // not begun. A thread that has begun a transfer must not wait for another lane: two threads could
  // wait for each other's.
  [[nodiscard]] int begin(const Transfer& transfer, Bounce* bounce, bool may_wait, bool submit,
                          Underway* out);
  // Waits for the transfer. Returns bytes moved (discard: 0) or -errno; -ETIMEDOUT: not done in
  // time. The data of more than one block are in `bounce`, which remains the caller's unless *lost
  // is set: then the lane takes it over, and tells the cache when a lost write ends.
  [[nodiscard]] int64_t end(Underway* transfer, Bounce* bounce, bool* lost);
  // Releases lost commands that have ended. Returns how many are left.
  unsigned sweep();
  bool some_lost() const { return lost_count_.load(std::memory_order_relaxed) != 0; }
  void forget_in_child();

 private:
  struct Lane {
    Context* context = nullptr;
    char* own = nullptr;  // memory of one block
    iovec part{};
    Transfer transfer;
    Bounce bounce;   // if lost: its memory,
    LateWrite late;  //   and, for a write, its entry in LateWrites
  };
  static ::lunar::Command command_of(const Lane& lane);
  int await_one(uint64_t deadline_ns);  // index of a free lane, or -ETIMEDOUT
  int take_free(bool any);              // index, or -1
  int attach_one();                     // index; -EAGAIN: no more; or -errno
  void give(unsigned index);
  void park(unsigned index, Bounce* bounce);

  Device* device_ = nullptr;
  BouncePool* bounces_ = nullptr;
  Cache* cache_ = nullptr;
  LateWrites* late_ = nullptr;
  std::atomic<uint64_t> free_{0};      // one bit per lane
  std::atomic<uint32_t> attached_{0};  // count_, for readers without the lock
  std::atomic<uint32_t> waiting_{0};   // threads that wait for a lane,
  std::atomic<uint32_t> word_{0};      //   on this word, which changes when one becomes free
  std::atomic<uint32_t> lost_count_{0};
  // After a failure to attach another lane: the time of the next try. 0: it did not fail.
  std::atomic<uint64_t> none_until_ns_{0};
  sys::Mutex lock_;         // of the members below
  char* memory_ = nullptr;  // one block per lane; touched when used
  unsigned count_ = 0;      // attached
  uint64_t lost_ = 0;
  Lane lane_[kMost];
};

}  // namespace lunar::cblk
