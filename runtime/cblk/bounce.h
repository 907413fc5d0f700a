// SPDX-License-Identifier: Apache-2.0
// Aligned stand-ins for buffers that the device cannot take as they are.
//
// Idea: most are a block or a few; those come from a few pieces that the chunk keeps (a bit a piece, taken by one atomic
// operation; their memory is touched when first used). A larger one, or one too many, is a mapping of its own.
// Threading: any. Takes no lock, allocates nothing but that mapping.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace lunar::cblk {

struct Bounce {
  char* memory = nullptr;   // nullptr: none
  size_t bytes = 0;
  int piece = -1;           // -1: a mapping
};

class BouncePool {
 public:
  static constexpr unsigned kPieces = 16;
  static constexpr size_t kPieceBytes = 64 * 1024;
  static constexpr size_t kBytes = kPieces * kPieceBytes;

  [[nodiscard]] int open();            // 0 or -ENOMEM
  void close();                        // pre: all given back
  // Page-aligned memory for `bytes`. 0 or -ENOMEM.
  [[nodiscard]] int take(size_t bytes, Bounce* out);
  void give(Bounce* bounce);           // nothing to give is fine
  void forget_in_child() { taken_.store(0, std::memory_order_relaxed); }

 private:
  char* memory_ = nullptr;
  std::atomic<uint32_t> taken_{0};
};

}  // namespace lunar::cblk
