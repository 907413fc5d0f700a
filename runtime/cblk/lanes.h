// SPDX-License-Identifier: Apache-2.0
// Lanes: contexts for blocking I/O with a time limit. A thread that moves blocks borrows one for the I/O.
//
// Why: a thread inside a blocking system call on a device that hangs cannot be called back; one that waits for a ring
// can. And a command that was handed to the device cannot be taken back: one that is late is *lost*. Its lane, with the
// buffer that the device may still read or write, is parked until the device releases it (sweep), and carries no other
// I/O meanwhile.
//
// Lanes are attached on demand, one more than there are threads at one time, and kept. The first one spins for a moment
// before it sleeps (as every context may): a thread that is alone takes it, several take the others while they last.
// Threading: any. Takes a lock only to attach and to park. begin() allocates nothing once there are lanes enough.
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
  uint64_t left_ns = 0;  // until then, when it begins just now; 0: the clock is asked
  // A read or write of one block goes by the lane's own memory, which its ring knows (1 us of CPU less), to and from
  // here:
  char* buffer = nullptr;
  const uint64_t* stamps = nullptr;  // and what was read goes into the cache, if set
  const iovec* parts = nullptr;      // without a time limit: where the blocks lie, if not in the bounce buffer
  uint32_t part_count = 0;
};

// A transfer that has a lane.
struct Underway {
  static constexpr unsigned kNone = ~0u;
  unsigned lane = kNone;
  bool submitted = false;  // else end() hands it over, in one system call with the wait
  uint64_t left_ns = 0;
};

// between two looks at whether a device that hangs has released something
constexpr uint64_t kLostRetryNs = 2'000'000;

class Lanes {
 public:
  static constexpr unsigned kMost = 64;

  // None is attached yet.
  void open(Device* device, BouncePool* bounces, Cache* cache, LateWrites* late);
  void close();  // pre: nothing runs, none is lost
  // Takes a lane for it; waits for one until the deadline where it `may_wait`, else -EAGAIN when none is free. With
  // `submit` the device has it at once. 0 or -errno: not begun. A thread that has begun one must not wait for a lane:
  // two could wait for each other's.
  [[nodiscard]] int begin(const Transfer& transfer, Bounce* bounce, bool may_wait, bool submit, Underway* out);
  // Waits for it: bytes moved (discard: 0) or -errno; -ETIMEDOUT: not done in time. The data of more than a block lie
  // in `bounce`, which stays the caller's unless the command is *lost: then it is taken over, and of a write the cache
  // is reported when it ends.
  [[nodiscard]] int64_t end(Underway* transfer, Bounce* bounce, bool* lost);
  // Lost commands that may have ended are released. How many are left.
  unsigned sweep();
  bool some_lost() const { return lost_count_.load(std::memory_order_relaxed) != 0; }
  void forget_in_child();

 private:
  struct Lane {
    Context* context = nullptr;
    char* own = nullptr;  // a block
    iovec part{};
    Transfer transfer;
    Bounce bounce;   // lost: its memory,
    LateWrite late;  //   and, of a write, that it is
  };
  static ::lunar::Command command_of(const Lane& lane);
  int await_one(uint64_t deadline_ns);  // or -ETIMEDOUT
  int take_free(bool any);              // or -1
  int attach_one();                     // -EAGAIN: no more; or -errno
  void give(unsigned index);
  void park(unsigned index, Bounce* bounce);

  Device* device_ = nullptr;
  BouncePool* bounces_ = nullptr;
  Cache* cache_ = nullptr;
  LateWrites* late_ = nullptr;
  std::atomic<uint64_t> free_{0};      // a bit a lane
  std::atomic<uint32_t> attached_{0};  // count_, for those without the lock
  std::atomic<uint32_t> waiting_{0};   // threads that wait for one,
  std::atomic<uint32_t> word_{0};      //   on this, bumped when one comes free
  std::atomic<uint32_t> lost_count_{0};
  std::atomic<uint64_t> none_until_ns_{0};  // no lane more was to be had; 0: it was
  sys::Mutex lock_;                         // of what follows
  char* memory_ = nullptr;                  // a block a lane; touched where used
  unsigned count_ = 0;                      // attached
  uint64_t lost_ = 0;
  Lane lane_[kMost];
};

}  // namespace lunar::cblk
