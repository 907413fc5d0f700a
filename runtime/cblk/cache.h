// SPDX-License-Identifier: Apache-2.0
// The read cache of a chunk (CFLSH_BLK_CACHE_SIZE): recently read blocks, write-through.
//
//   set = hash(block) ──► { lock, writers begun / ended, 4 ways: block number, 4096 bytes }
//
// Coherence: a write announces its blocks *before* it goes to the device (they leave the cache) and
// again after. A read that missed may fill a set only if no write was in progress in that set when
// the read began, and none has begun since.
// Threading: any; a short spin lock per set. Allocates at open only.
#pragma once
#include <cstddef>
#include <cstdint>

#include "sys/thread.h"

namespace lunar::cblk {

class Cache {
 public:
  // A longer read bypasses the cache, so that it does not displace all other blocks.
  static constexpr unsigned kFillBlocksMax = 8;

  [[nodiscard]] int open(uint64_t blocks);  // 0: no cache; 0 or -ENOMEM
  void close();
  bool active() const { return sets_ != nullptr; }

  // All blocks or none. True: `to` is filled; false: it is unchanged.
  bool read(uint64_t block, size_t count, char* to);
  // Fills in `stamps`, which a read that missed passes to fill(). It has room for kFillBlocksMax.
  void begin_read(uint64_t block, size_t count, uint64_t* stamps);
  void fill(uint64_t block, size_t count, const char* from, const uint64_t* stamps);
  void begin_write(uint64_t block, size_t count);
  void end_write(uint64_t block, size_t count);
  // Removes blocks from the cache.
  // pre: no I/O on them is in progress
  void drop(uint64_t block, uint64_t count);
  void forget_in_child();  // forgets the writes and locks of the parent's threads

 private:
  static constexpr unsigned kWays = 4;
  static constexpr uint64_t kNever = UINT64_MAX;  // a stamp that fills nothing
  struct Set {
    sys::SpinLock lock;
    uint8_t next = 0;               // the way to replace next
    uint64_t begun = 0, ended = 0;  // writes
    uint64_t blocks[kWays] = {};    // block number + 1; 0: empty
  };
  Set& set_of(uint64_t block, char** ways);

  Set* sets_ = nullptr;
  char* data_ = nullptr;  // kWays blocks per set
  uint64_t count_ = 0;    // number of sets
  size_t mapping_bytes_ = 0;
};

}  // namespace lunar::cblk
