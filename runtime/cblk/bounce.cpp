// SPDX-License-Identifier: Apache-2.0
// Bounce buffers: see bounce.h.
// Threading: any; lock-free.
#include "cblk/bounce.h"

#include <errno.h>

#include "base/arena.h"
#include "base/units.h"

namespace lunar::cblk {

int BouncePool::open() {
  memory_ = static_cast<char*>(map_private(kBytes, ForkPolicy::kInherit));
  return memory_ ? 0 : -ENOMEM;
}

void BouncePool::close() {
  if (memory_) unmap_private(memory_, kBytes);
  memory_ = nullptr;
}

int BouncePool::take(size_t bytes, Bounce* out) {
  if (bytes <= kPieceBytes) {
    uint32_t taken = taken_.load(std::memory_order_relaxed);
    while (static_cast<uint16_t>(~taken) != 0) {
      const int piece = __builtin_ctz(~taken);
      if (!taken_.compare_exchange_weak(taken, taken | 1u << piece, std::memory_order_acquire)) continue;
      *out = {memory_ + static_cast<size_t>(piece) * kPieceBytes, bytes, piece};
      return 0;
    }
  }
  auto* memory = static_cast<char*>(map_private(round_up(bytes, kPieceBytes), ForkPolicy::kInherit));
  if (!memory) return -ENOMEM;
  (void)taken_.load(std::memory_order_acquire);   // see give()
  *out = {memory, bytes, -1};
  return 0;
}

void BouncePool::give(Bounce* bounce) {
  if (!bounce->memory) return;
  if (bounce->piece >= 0) taken_.fetch_and(~(1u << bounce->piece), std::memory_order_release);
  else taken_.fetch_or(0, std::memory_order_release);   // the kernel orders this use before the next of the address; TSan cannot know
  if (bounce->piece < 0) unmap_private(bounce->memory, round_up(bounce->bytes, kPieceBytes));
  *bounce = {};
}

}  // namespace lunar::cblk
