// SPDX-License-Identifier: Apache-2.0
// Finds out whether a process still has a lock of a device, or only the kernel has it. The rings of
// a killed owner keep its files, and so its locks, until their last write has ended, which takes
// seconds on a busy machine.
// Threading: at open, any thread, blocking.
#pragma once
#include <cstdint>

#include "sys/thread.h"

namespace lunar {

struct LockedBytes {
  uint64_t first, bytes;  // bytes 0: up to the end
};

// Whether a process that this one can see (including itself) has a descriptor with a lock
// (F_OFD_SETLK) on some of the bytes of one of these files. Also true if /proc does not tell.
// Processes of other users (without the right to inspect them) and of other PID namespaces are not
// seen.
bool any_process_locks(const int* fds, unsigned count, const LockedBytes* ranges,
                       unsigned range_count);

// Sleeps for 2 to 18 ms. The times of two opens that conflict differ.
inline void pause_apart(uint64_t now) {
  constexpr uint64_t kLeastNs = 2'000'000, kSpread = 1u << 24;
  sys::sleep_ns(kLeastNs + now * 0x9e3779b97f4a7c15 % kSpread);
}

// The wait of an open for conflicting locks: a second while a process has them, half a minute while
// only the kernel can have them (with a line in the log).
class LockWait {
 public:
  explicit LockWait(const char* path) : path_(path) {}
  // Sleeps for some milliseconds (pause_apart()). False: it has waited long enough. held: returns
  // whether any process has the locks; called once a second, after the first.
  template <class Held>
  bool pause(Held held) {
    const uint64_t now = sys::now_ns();
    if (now - start_ > kForProcessNs && now >= next_look_) {
      if (now - start_ > kForKernelNs || held()) return false;
      note();
      next_look_ = now + kForProcessNs;
    }
    pause_apart(now);
    return true;
  }

 private:
  static constexpr uint64_t kForProcessNs = 1'000'000'000, kForKernelNs = 30'000'000'000;
  void note();

  const char* path_;
  const uint64_t start_ = sys::now_ns();
  uint64_t next_look_ = 0;
  bool noted_ = false;
};

}  // namespace lunar
