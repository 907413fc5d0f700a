// SPDX-License-Identifier: Apache-2.0
// Whether a new asynchronous command waits for the next ones, so that they go to the device together.
//
// Idea: one system call and one message to the device for several commands cost far less than one for each (a virtual
// disk: half of the CPU of a write at depth 128). While the device has plenty to do, a command that waits for a few
// others loses nothing. But a program may issue and then compute, and a command that is held would not be on its way
// meanwhile. So the plug learns: when one was held for longer than a moment, because the program did not come back,
// the next ones go at once, and the more of them the more often that happens.
// Threading: under its owner's lock. Asks the clock, once for those that are held together and once when they go.
#pragma once
#include <cstdint>

#include "sys/thread.h"

namespace lunar::cblk {

class Plug {
 public:
  // A command is ready; the device has so many. True: it is held.
  bool holds(uint32_t at_device) {
    const uint32_t most = at_device / kShare < kMost ? at_device / kShare : kMost;
    if (most < kLeast) return false;
    if (at_once_) {
      --at_once_;
      return false;
    }
    if (held_ == 0) since_ns_ = sys::now_ns();
    return ++held_ < most;
  }
  uint32_t held() const { return held_; }
  bool is_late() const { return held_ && sys::now_ns() - since_ns_ > kMomentNs; }
  // They go. True: they were held for longer than a moment.
  bool pull() {
    const bool late = is_late();
    if (late) {
      at_once_ = penalty_;
      penalty_ = penalty_ * 2 < kPenaltyMost ? penalty_ * 2 : kPenaltyMost;
    } else if (penalty_ > kPenaltyLeast) {
      --penalty_;
    }
    held_ = 0;
    return late;
  }

 private:
  static constexpr uint32_t kShare = 4;             // of what the device has, one in so many is held at most,
  static constexpr uint32_t kLeast = 4, kMost = 8;  //   if that comes to at least kLeast
  static constexpr uint64_t kMomentNs = 100'000;    // far less than a device with as much to do takes for one
  static constexpr uint32_t kPenaltyLeast = 64, kPenaltyMost = 8192;

  uint32_t held_ = 0;
  uint32_t at_once_ = 0;              // so many more are not held
  uint32_t penalty_ = kPenaltyLeast;  // what at_once_ becomes next
  uint64_t since_ns_ = 0;             // the first of those that are held
};

}  // namespace lunar::cblk
