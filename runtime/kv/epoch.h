// SPDX-License-Identifier: Apache-2.0
// Epochs: how a reader without a lock keeps what it looks at from being used for something else.
//
//   reader   Reading guard(epochs);      publishes the current epoch in a slot, looks, leaves
//   writer   unlinks X; e = retire();    readers that may still see X have published e or less
//            safe(e)                     ... and is gone: X is free
//
// A guard may be held for as long as it takes to copy one value, never across I/O or a wait. 256 threads may read at
// one time; one more yields until a slot is free. A slot also counts what was done under it, so that counting costs no
// shared cache line. Threading: any. May not: allocate, call the kernel (but for that yield).
#pragma once
#include <atomic>
#include <cstdint>

namespace lunar::kv {

class Epochs {
 public:
  // After what was unlinked: its number.
  uint64_t retire() { return epoch_.fetch_add(1, std::memory_order_seq_cst); }
  // No reader is left that published `retired` or less.
  bool safe(uint64_t retired) const;
  uint64_t operations() const;  // all that were counted, ever

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
    slot_.operations.store(slot_.operations.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  }

 private:
  Epochs::Slot& slot_;
};

}  // namespace lunar::kv
