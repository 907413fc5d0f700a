// SPDX-License-Identifier: Apache-2.0
// Bounce buffers: for I/O that may outlive its call (chunk.h: time limit), and for callers' buffers
// that the device cannot use.
//
// Idea: most requests need one block or a few. These come from pieces of two sizes that the chunk
// keeps (one bit per piece, taken by one atomic operation; their memory is mapped at the first
// request and touched at first use). A larger request, up to 2 MiB, gets a run of units of a slab.
// A slab is a huge page, which is one piece of memory to the device: a virtual disk moves that more
// than twice as fast as 512 pages, which pays for the copy. A huge page is used whole, so all
// chunks together have at most 16 MiB of slabs. A request that is larger, or finds no room, gets
// its own mapping, rounded up to a power of two; one mapping of each size is kept for the next
// request.
// Threading: any. Takes no lock, allocates nothing but those mappings.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace lunar::cblk {

struct Bounce {
  char* memory = nullptr;  // nullptr: none
  uint32_t bytes = 0;
  int32_t piece = -1;  // index of the piece; beyond all pieces: of the first unit; -1: a mapping
};

class BouncePool {
 public:
  static constexpr size_t kUnitBytes = 64 * 1024;  // of a slab; also the size of the larger pieces

  void open(uint32_t requests);  // requests: how many are likely to be in use at a time
  void close();                  // pre: all buffers were given back
  // Page-aligned memory for `bytes` (16 MiB at most). 0 or -ENOMEM.
  [[nodiscard]] int take(size_t bytes, Bounce* out);
  void give(Bounce* bounce);  // may be given a Bounce without memory
  // The one-block pieces that are taken first, for a ring to register; nullptr: none. Registered
  // memory is pinned and counts as locked, so only a process without a limit on locked memory gets
  // a window (its rings then need none of that limit), and at most 16 MiB for all chunks together.
  char* window(size_t* bytes);
  void forget_in_child();

 private:
  static constexpr unsigned kSmallMost = 8192 + 64, kMiddleMost = 192;  // 12 MiB of these
  static constexpr unsigned kSizes = 9;                                 // 64 KiB .. 16 MiB
  static constexpr unsigned kSlabs = 6, kUnits = 32;
  struct Slab {
    std::atomic<char*> memory{nullptr};
    std::atomic<uint64_t> taken{0};  // one bit per unit
  };
  size_t pool_bytes() const;
  int32_t take_piece(uint32_t from, uint32_t to);
  bool take_units(size_t bytes, Bounce* out);
  char* memory();
  static char* memory_of(Slab* slab);

  std::atomic<char*> memory_{nullptr};  // small pieces of one block, then middle ones of one unit
  uint32_t small_ = 0, pieces_ = 0;     // number of small pieces, and of all; multiples of 64
  std::atomic<size_t> window_{0};       // this pool's share of the bytes of all windows
  std::atomic<uint64_t> taken_[(kSmallMost + kMiddleMost) / 64] = {};
  Slab slabs_[kSlabs];  // 12 MiB
  std::atomic<char*> spare_[kSizes] = {};
};

}  // namespace lunar::cblk
