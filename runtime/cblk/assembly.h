// SPDX-License-Identifier: Apache-2.0
// A command of a group that consists of commands of its chunks, one a chunk at most.
// Threading: part_done is called by whoever harvests a part, under that chunk's lock; the last one finishes the whole.
#pragma once
#include "cblk/chunk.h"

namespace lunar::cblk {

class Assembly {
 public:
  // A part moved so many blocks, or failed with -errno.
  void part_done(int64_t blocks) {
    if (blocks < 0) {
      int64_t none = 0;
      error_.compare_exchange_strong(none, blocks, std::memory_order_relaxed);   // the first one is told
    } else {
      blocks_.fetch_add(blocks, std::memory_order_relaxed);
    }
    if (left_.fetch_sub(1, std::memory_order_acq_rel) == 1) whole_done();
  }

 protected:
  ~Assembly() = default;
  virtual void whole_done() = 0;
  std::atomic<uint32_t> left_{0};     // parts
  std::atomic<int64_t> blocks_{0};
  std::atomic<int64_t> error_{0};
};

}  // namespace lunar::cblk
