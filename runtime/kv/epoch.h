// SPDX-License-Identifier: Apache-2.0
// Epochs keep memory from being reused while a reader without a lock may look at it.
//
//   reader   Reading guard(epochs);      publishes the current epoch in a slot, looks, leaves
//   writer   unlinks X; e = retire();    readers that may still see X have published e or less
//            safe(e)                     all of these have left: X is free
//
// A guard lives for as long as it takes to copy one value, never across I/O or a wait. 256 threads
// may read at a time; one more yields until a slot is free. A slot also counts the operations under
// it, so that counting shares no cache line.
// Threading: any. May not: allocate, make system calls (except that yield).
#pragma once
#include <atomic>
#include <cstdint>

namespace lunar::kv {

class Epochs {
 public:
  // Called after something was unlinked; returns the number to pass to safe().
  uint64_t retire() { return epoch_.fetch_add(1, std::memory_order_seq_cst); }
  // Whether all readers that published `retired` or less have left.
  bool safe(uint64_t retired) const;
  uint64_t operations() const;  // number of all operations that were counted

 private:
  friend class Reading;
  static constexpr unsigned kSlots = 256;
  struct alignas(64) Slot {
    std::atomic<uint64_t> epoch{0};  // 0: no reader
    std::atomic<uint64_t> operations{0};
  };
  unsigned enter();

  alignas(64) std::atomic<uint64_t> epoch_{1};
  Slot slots_[kSlots];
};

class Reading {
 public:
  explicit Reading(Epochs& epochs) : slot_(epochs.slots_[epochs.enter()]) {}
  ~Reading() { slot_.epoch.store(0, std::memory_order_release); }
  Reading(const Reading&) = delete;
  Reading& operator=(const Reading&) = delete;
  void count() {
    slot_.operations.store(slot_.operations.load(std::memory_order_relaxed) + 1,
                           std::memory_order_relaxed);
  }

 private:
  Epochs::Slot& slot_;
};

}  // namespace lunar::kv
