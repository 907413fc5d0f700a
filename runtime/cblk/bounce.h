// SPDX-License-Identifier: Apache-2.0
// Bounce buffers: for I/O that may outlive its call (chunk.h: time limit), and for callers' buffers that the device
// cannot take.
//
// Idea: most need a block or a few; these come from pieces of two sizes that the chunk keeps (a bit a piece, taken by
// one atomic operation; their memory is mapped at the first request and touched at first use). A larger one, up to
// 2 MiB, gets a run of units of a slab, which is a huge page: one piece of memory to the device. A virtual disk moves
// that more than twice as fast as 512 pages, so the copy is paid for. A huge page is used whole, so all chunks together
// have no more than 16 MiB of slabs. What is larger, or one too many, gets a mapping of its own, of a power of two; one
// of each size is kept for the next.
// Threading: any. Takes no lock, allocates nothing but those mappings.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace lunar::cblk {

struct Bounce {
  char* memory = nullptr;  // nullptr: none
  uint32_t bytes = 0;
  int32_t piece = -1;  // the piece; behind all pieces, the first unit; -1: a mapping
};

class BouncePool {
 public:
  static constexpr size_t kUnitBytes = 64 * 1024;  // of a slab, and the larger pieces

  void open(uint32_t requests);  // how many are likely to be in use at one time
  void close();                  // pre: all given back
  // Page-aligned memory for `bytes` (16 MiB at most). 0 or -ENOMEM.
  [[nodiscard]] int take(size_t bytes, Bounce* out);
  void give(Bounce* bounce);  // nothing to give is fine
  // The pieces of a block that are taken first, for a ring to register; nullptr: none. Registered memory is pinned and
  // counts as locked: so only in a process without a limit on that, where rings need none of it, and 16 MiB for all
  // chunks together.
  char* window(size_t* bytes);
  void forget_in_child();

 private:
  static constexpr unsigned kSmallMost = 8192 + 64, kMiddleMost = 192;  // 12 MiB of these
  static constexpr unsigned kSizes = 9;                                 // 64 KiB .. 16 MiB
  static constexpr unsigned kSlabs = 6, kUnits = 32;
  struct Slab {
    std::atomic<char*> memory{nullptr};
    std::atomic<uint64_t> taken{0};  // a bit a unit
  };
  size_t pool_bytes() const;
  int32_t take_piece(uint32_t from, uint32_t to);
  bool take_units(size_t bytes, Bounce* out);
  char* memory();
  static char* memory_of(Slab* slab);

  std::atomic<char*> memory_{nullptr};  // small pieces of a block, then middle ones of a unit
  uint32_t small_ = 0, pieces_ = 0;     // how many are small, and all; multiples of 64
  std::atomic<size_t> window_{0};       // bytes of all windows that are this one's
  std::atomic<uint64_t> taken_[(kSmallMost + kMiddleMost) / 64] = {};
  Slab slabs_[kSlabs];  // 12 MiB
  std::atomic<char*> spare_[kSizes] = {};
};

}  // namespace lunar::cblk
