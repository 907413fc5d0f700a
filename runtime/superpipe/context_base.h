// SPDX-License-Identifier: Apache-2.0
// The common parts of the contexts of superpipe/ beyond the public interface: release, the device's
// count of them, watches, and the moving average of the read latency.
// Threading: a context's owner only. May not allocate.
#pragma once
#include <errno.h>

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "superpipe/device.h"
#include "superpipe/wakeups.h"
#include "sys/fatal.h"
#include "sys/memory_copy.h"

namespace lunar {

// A context in its own mapping. release() waits for in-flight commands and unmaps the context,
// which must not be used afterwards. In a forked child it only forgets them, because in-flight
// commands are the parent's.
class OwnedContext : public Context {
 public:
  virtual void release() = 0;
  // False in a forked child.
  bool mine() const { return sys::memory_copy() == copy_; }

 protected:
  // Reaps until nothing is in flight.
  void drain() {
    if (!mine()) return;
    Response dropped[16];
    while (in_flight() != 0) {
      const int n = wait(dropped, 16, -1);
      if (n < 0 && n != -EINTR) return;  // closing a broken ring cancels the remaining commands
    }
  }

 private:
  const uint32_t copy_ = sys::memory_copy();  // the copy of the memory in which it was made
};

class CountedDevice : public Device {
 public:
  void detach(Context* context) override {
    static_cast<OwnedContext*>(context)->release();
    contexts_.fetch_sub(1, std::memory_order_release);
  }

 protected:
  // The end of attach(). status: as create() of the context returned.
  int attached(int status, OwnedContext* context, Context** out) {
    if (status < 0) return status;
    contexts_.fetch_add(1, std::memory_order_relaxed);
    *out = context;
    return 0;
  }
  void check_detached() const {  // at close()
    LUNAR_CHECK(contexts_.load(std::memory_order_acquire) == 0,
                "LUN closed with contexts attached");
  }

 private:
  std::atomic<int> contexts_{0};
};

struct WatchSet {
  static constexpr unsigned kMax = 4;
  enum class State : uint8_t { kFree, kWanted, kArmed };
  struct Watch {
    uint64_t tag = 0;
    int fd = -1;
    State state = State::kFree;
  };
  Watch watches[kMax];
  uint8_t used = 0;    // not free
  uint8_t wanted = 0;  // to be armed

  // 0; -EBUSY if all are in use. Watching a descriptor again while it is watched replaces the tag.
  int add(int fd, uint64_t tag) {
    unsigned index = kMax;
    for (unsigned i = 0; i < kMax; ++i) {
      if (watches[i].state == State::kFree) {
        index = i;
      } else if (watches[i].fd == fd) {
        watches[i].tag = tag;
        return 0;
      }
    }
    if (index == kMax) return -EBUSY;
    watches[index] = {tag, fd, State::kWanted};
    ++used;
    ++wanted;
    return 0;
  }
  void fired(unsigned index) {
    watches[index].state = State::kFree;
    --used;
  }
  // For contexts that poll the descriptors themselves.
  void wakeups(Wakeups* out) const {
    for (unsigned i = 0; used && i < kMax; ++i) {
      if (watches[i].state != State::kFree) out->readable(watches[i].fd);
    }
  }
};

// Moving average over about 8 reads. A single very late sample (because the reaper was busy
// elsewhere) must not move it far.
class LatencyAverage {
 public:
  void add(uint64_t sample_ns) {
    sample_ns = std::min(sample_ns, kSampleMaxNs);
    if (average_ns_ == 0)
      average_ns_ = sample_ns;
    else
      average_ns_ = average_ns_ - average_ns_ / 8 + sample_ns / 8;
  }
  uint64_t ns() const { return average_ns_; }

 private:
  static constexpr uint64_t kSampleMaxNs = 20'000'000;
  uint64_t average_ns_ = 0;
};

}  // namespace lunar
