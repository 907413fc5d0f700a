// SPDX-License-Identifier: Apache-2.0
// Bounce buffers: see bounce.h.
// Threading: any; lock-free.
#include "cblk/bounce.h"

#include <errno.h>

#include <algorithm>
#include <bit>

#include "base/units.h"
#include "sys/arena.h"
#include "sys/mem.h"

namespace lunar::cblk {
namespace {

constexpr size_t kSmallBytes = 4096;
constexpr size_t kWindowBytes = 1024 * kKiB;  // 256 at a time

// The most bytes of windows, and of slabs, for all chunks of the process.
constexpr size_t kWindowsMost = 16 * kMiB, kSlabsMost = 16 * kMiB;
std::atomic<size_t> windows{0}, slabs{0};

bool reserve(std::atomic<size_t>* all, size_t bytes, size_t most) {
  if (all->fetch_add(bytes, std::memory_order_relaxed) + bytes <= most) return true;
  all->fetch_sub(bytes, std::memory_order_relaxed);
  return false;
}

unsigned size_class(size_t bytes) {
  return bytes <= BouncePool::kUnitBytes
             ? 0
             : static_cast<unsigned>(std::bit_width((bytes - 1) / BouncePool::kUnitBytes));
}
size_t class_bytes(unsigned size) { return BouncePool::kUnitBytes << size; }

// A mask with one bit for each unit that `bytes` takes.
uint64_t units_of(size_t bytes) {
  return (uint64_t{1} << (bytes + BouncePool::kUnitBytes - 1) / BouncePool::kUnitBytes) - 1;
}

}  // namespace

void BouncePool::open(uint32_t requests) {
  small_ = static_cast<uint32_t>(round_up(requests, 64)) + 64;  // 64 for blocking I/O
  pieces_ = small_ + std::min<uint32_t>(small_, kMiddleMost);
}

size_t BouncePool::pool_bytes() const {
  return small_ * kSmallBytes + (pieces_ - small_) * kUnitBytes;
}

void BouncePool::close() {
  char* memory = memory_.load(std::memory_order_relaxed);
  if (memory) unmap_private(memory, pool_bytes());
  memory_.store(nullptr, std::memory_order_relaxed);
  for (Slab& slab : slabs_) {
    char* huge = slab.memory.exchange(nullptr);
    if (!huge) continue;
    unmap_private(huge, kHugeBytes);
    slabs.fetch_sub(kHugeBytes, std::memory_order_relaxed);
  }
  windows.fetch_sub(window_.exchange(0, std::memory_order_relaxed), std::memory_order_relaxed);
  for (unsigned i = 0; i < kSizes; ++i) {
    if (char* spare = spare_[i].exchange(nullptr)) unmap_private(spare, class_bytes(i));
  }
}

char* BouncePool::memory() {
  char* known = memory_.load(std::memory_order_acquire);
  if (known) return known;
  const size_t bytes = pool_bytes();
  // A child does not use the pieces, and without kWipe the kernel would copy pinned pages at fork.
  auto* fresh = static_cast<char*>(map_private(bytes, ForkPolicy::kWipe));
  if (!fresh || memory_.compare_exchange_strong(known, fresh, std::memory_order_acq_rel))
    return fresh;
  unmap_private(fresh, bytes);  // another thread was faster
  return known;
}

char* BouncePool::window(size_t* bytes) {
  *bytes = window_.load(std::memory_order_relaxed);
  if (*bytes == 0) {
    if (!sys::may_lock_memory()) return nullptr;
    const size_t want = std::min(small_ * kSmallBytes, kWindowBytes);
    if (!reserve(&windows, want, kWindowsMost)) return nullptr;
    window_.store(*bytes = want, std::memory_order_relaxed);
  }
  return memory();
}

char* BouncePool::memory_of(Slab* slab) {
  char* known = slab->memory.load(std::memory_order_acquire);
  if (known) return known;
  if (!reserve(&slabs, kHugeBytes, kSlabsMost)) return nullptr;
  auto* fresh = static_cast<char*>(map_private_huge(kHugeBytes, ForkPolicy::kWipe));
  if (fresh && slab->memory.compare_exchange_strong(known, fresh, std::memory_order_acq_rel))
    return fresh;
  if (fresh) unmap_private(fresh, kHugeBytes);  // another thread was faster
  slabs.fetch_sub(kHugeBytes, std::memory_order_relaxed);
  return known;
}

// Takes a piece of [from, to). Returns its number, or -1.
int32_t BouncePool::take_piece(uint32_t from, uint32_t to) {
  for (uint32_t word = from / 64; word < to / 64; ++word) {
    uint64_t taken = taken_[word].load(std::memory_order_relaxed);
    while (~taken) {
      const int bit = std::countr_one(taken);
      if (taken_[word].compare_exchange_weak(taken, taken | uint64_t{1} << bit,
                                             std::memory_order_acquire))
        return static_cast<int32_t>(word * 64) + bit;
    }
  }
  return -1;
}

// Takes a run of units in the first slab that has one. False: no slab has one.
bool BouncePool::take_units(size_t bytes, Bounce* out) {
  static_assert(kUnits * kUnitBytes == kHugeBytes);
  const uint64_t wanted = units_of(bytes);
  for (uint32_t i = 0; i < kSlabs; ++i) {
    Slab& slab = slabs_[i];
    char* memory = memory_of(&slab);
    if (!memory) return false;
    uint64_t taken = slab.taken.load(std::memory_order_relaxed);
    for (uint32_t at = 0; wanted << at >> kUnits == 0;) {
      if (taken & wanted << at) {
        ++at;
      } else if (slab.taken.compare_exchange_weak(taken, taken | wanted << at,
                                                  std::memory_order_acquire)) {
        *out = {memory + at * kUnitBytes, static_cast<uint32_t>(bytes),
                static_cast<int32_t>(pieces_ + i * kUnits + at)};
        return true;
      }
    }
  }
  return false;
}

int BouncePool::take(size_t bytes, Bounce* out) {
  const bool small = bytes <= kSmallBytes;
  if (bytes <= kUnitBytes) {
    char* pool = memory();
    if (!pool) return -ENOMEM;
    const int32_t piece = small ? take_piece(0, small_) : take_piece(small_, pieces_);
    if (piece >= 0) {
      const auto at = static_cast<size_t>(piece);
      *out = {pool + (small ? at * kSmallBytes : small_ * kSmallBytes + (at - small_) * kUnitBytes),
              static_cast<uint32_t>(bytes), piece};
      return 0;
    }
  } else if (bytes <= kHugeBytes && take_units(bytes, out)) {
    return 0;
  }
  const unsigned size = size_class(bytes);
  if (size >= kSizes) return -ENOMEM;
  char* memory = spare_[size].exchange(nullptr, std::memory_order_acquire);
  if (!memory) {
    const auto map = class_bytes(size) > kHugeBytes ? map_private_huge : map_private;
    memory = static_cast<char*>(map(class_bytes(size), ForkPolicy::kInherit));
  }
  if (!memory) return -ENOMEM;
  (void)taken_[0].load(std::memory_order_acquire);  // see give()
  *out = {memory, static_cast<uint32_t>(bytes), -1};
  return 0;
}

void BouncePool::give(Bounce* bounce) {
  if (!bounce->memory) return;
  if (bounce->piece >= static_cast<int32_t>(pieces_)) {
    const uint32_t unit = static_cast<uint32_t>(bounce->piece) - pieces_;
    slabs_[unit / kUnits].taken.fetch_and(~(units_of(bounce->bytes) << unit % kUnits),
                                          std::memory_order_release);
  } else if (bounce->piece >= 0) {
    const auto piece = static_cast<uint32_t>(bounce->piece);
    taken_[piece / 64].fetch_and(~(uint64_t{1} << piece % 64), std::memory_order_release);
  } else {
    const unsigned size = size_class(bounce->bytes);
    char* none = nullptr;
    if (!spare_[size].compare_exchange_strong(none, bounce->memory, std::memory_order_release,
                                              std::memory_order_relaxed)) {
      // The kernel orders this use before the next use of the address; TSan cannot know that.
      taken_[0].fetch_or(0, std::memory_order_release);
      unmap_private(bounce->memory, class_bytes(size));
    }
  }
  *bounce = {};
}

void BouncePool::forget_in_child() {
  for (std::atomic<uint64_t>& word : taken_) word.store(0, std::memory_order_relaxed);
  for (Slab& slab : slabs_) slab.taken.store(0, std::memory_order_relaxed);
}

}  // namespace lunar::cblk
