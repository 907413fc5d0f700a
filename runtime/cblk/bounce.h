// SPDX-License-Identifier: Apache-2.0
// Bounce buffers: for I/O that may outlive its call (chunk.h: time limit), and for callers' buffers that the device
// cannot take.
//
// Idea: most need a block; these come from pieces that the chunk keeps (a bit a piece, taken by one atomic operation;
// their memory is mapped at the first request and touched at first use). Of several blocks, they get a run of units of
// a slab, which is a huge page: one piece of memory to the device. A virtual disk moves that more than twice as fast as
// 512 pages, so the copy is paid for. A larger one, or one too many, gets a mapping of its own, of a power of two; one
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
  static constexpr size_t kUnitBytes = 64 * 1024;

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
  static constexpr unsigned kWords = (8192 + 64) / 64, kSizes = 9;  // 64 KiB .. 16 MiB
  static constexpr unsigned kSlabs = 6, kUnits = 32;
  struct Slab {
    std::atomic<char*> memory{nullptr};
    std::atomic<uint64_t> taken{0};  // a bit a unit
  };
  int32_t take_piece();
  bool take_units(size_t bytes, Bounce* out);
  char* memory();
  static char* memory_of(Slab* slab);

  std::atomic<char*> memory_{nullptr};  // pieces of a block
  uint32_t pieces_ = 0;                 // a multiple of 64
  std::atomic<size_t> window_{0};       // bytes of all windows that are this one's
  std::atomic<uint64_t> taken_[kWords] = {};
  Slab slabs_[kSlabs];  // 12 MiB
  std::atomic<char*> spare_[kSizes] = {};
};

}  // namespace lunar::cblk
