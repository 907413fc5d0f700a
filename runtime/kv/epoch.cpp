// SPDX-License-Identifier: Apache-2.0
// Epochs: see epoch.h.
//
// Why this is safe: a reader publishes (1) and then loads the index (2). A writer stores into the
// index (3) and then looks at the slots (4). All four are sequentially consistent. If (4) did not
// see (1), then (3) came before (2), so the reader sees the writer's store.
// Threading: any.
#include "kv/epoch.h"

#include "sys/thread.h"

namespace lunar::kv {
namespace {

// The slot that a thread had last + 1, where it looks first; 0: none.
thread_local unsigned slot_hint = 0;
std::atomic<unsigned> hints{0};

}  // namespace

unsigned Epochs::enter() {
  if (slot_hint == 0) slot_hint = hints.fetch_add(1, std::memory_order_relaxed) % kSlots + 1;
  unsigned i = slot_hint - 1;
  for (unsigned tries = 0;; i = (i + 1) % kSlots) {
    uint64_t idle = 0;
    if (slots_[i].epoch.compare_exchange_strong(idle, epoch_.load(std::memory_order_seq_cst),
                                                std::memory_order_seq_cst)) {
      slot_hint = i + 1;
      return i;
    }
    if (++tries % kSlots == 0) sys::yield_cpu();
  }
}

bool Epochs::safe(uint64_t retired) const {
  for (const Slot& slot : slots_) {
    const uint64_t epoch = slot.epoch.load(std::memory_order_seq_cst);
    if (epoch != 0 && epoch <= retired) return false;
  }
  return true;
}

uint64_t Epochs::operations() const {
  uint64_t sum = 0;
  for (const Slot& slot : slots_) sum += slot.operations.load(std::memory_order_relaxed);
  return sum;
}

}  // namespace lunar::kv
