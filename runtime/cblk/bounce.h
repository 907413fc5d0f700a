// SPDX-License-Identifier: Apache-2.0
// Bounce buffers: for I/O that may outlive its call (chunk.h: time limit), and for callers' buffers that the device
// cannot take.
//
// Idea: most need a block or a few; these come from pieces of two sizes that the chunk keeps (a bit a piece, taken by
// one atomic operation; their memory is mapped at the first request and touched at first use). A larger one, or one too
// many, gets a mapping of its own, of a power of two; one of each size is kept for the next.
// Threading: any. Takes no lock, allocates nothing but those mappings.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace lunar::cblk {

struct Bounce {
  char* memory = nullptr;  // nullptr: none
  uint32_t bytes = 0;
  int32_t piece = -1;  // -1: a mapping
};

class BouncePool {
 public:
  static constexpr size_t kMiddleBytes = 64 * 1024;

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
  int32_t take_piece(uint32_t from, uint32_t to);
  char* memory();

  std::atomic<char*> memory_{nullptr};  // small pieces of a block, then middle ones
  uint32_t small_ = 0, middle_ = 0;     // pieces; multiples of 64
  std::atomic<size_t> window_{0};       // bytes of all windows that are this one's
  std::atomic<uint64_t> taken_[kWords + 4] = {};
  std::atomic<char*> spare_[kSizes] = {};
};

}  // namespace lunar::cblk
