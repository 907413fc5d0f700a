// SPDX-License-Identifier: Apache-2.0
// The saved state of a persistent store: reading and writing its parts. store_format.h describes
// the format. Threading: one thread. Blocks for the device.
#pragma once
#include "base/error.h"
#include "kv/growing_array.h"
#include "kv/record_log.h"
#include "kv/store_format.h"

namespace lunar::kv {

// A link in memory, with the parity and checksums that the format puts behind its bytes. Before
// seal(), StateLink::checksum is zero, and so are the bytes up to the end of the last block;
// repair() clears them.
struct LinkBlocks {
  char* link;
  uint64_t used, number, life;
  uint64_t count() const { return (used + media::kBlockBytes - 1) / media::kBlockBytes; }
  char* block(uint64_t i) const { return link + i * media::kBlockBytes; }  // count(): their parity
  char* sum(uint64_t i) const { return block(count() + 1) + i * sizeof(uint64_t); }
  void seal() const;                    // also StateLink::checksum
  [[nodiscard]] bool is_whole() const;  // StateLink has this length, and its checksum is right
  // Sets sound[i] to 1 or 0 for each block. A single block that is not sound is computed from the
  // others. Returns the number of sound blocks.
  [[nodiscard]] uint64_t repair(char* sound) const;

 private:
  uint64_t checksum() const;
  uint64_t sum_of(uint64_t i) const;
  bool is_sound(uint64_t i) const;
  void compute(uint64_t i) const;  // computes a block, or the parity, from all the others
  bool repair_only(uint64_t i) const;
};

// Appends to a chain of links, for which it takes segments of the log.
// pre: the caller has the cleaner's frame
class StateWriter {
 public:
  StateWriter(Log& log, uint64_t life) : log_(log), life_(life), frame_(log.cleaners_frame()) {}
  [[nodiscard]] int put(const void* data, uint64_t bytes);
  [[nodiscard]] int finish();  // writes the rest; does not flush
  uint64_t first() const { return first_; }
  uint64_t bytes() const { return bytes_; }

 private:
  int write_link(uint64_t next);
  Log& log_;
  const uint64_t life_;
  char* frame_;
  uint64_t first_ = 0, segment_ = 0, number_ = 0, fill_ = 0, bytes_ = 0;  // segments + 1
};

// Reads such a chain. -EBADMSG: it is damaged and cannot be repaired.
class StateReader {
 public:
  // repaired: gets the segment (+ 1) of each link that was repaired.
  StateReader(Log& log, const media::Root& root, GrowingArray<uint64_t>* repaired)
      : log_(log),
        life_(root.life),
        left_(root.bytes),
        frame_(log.cleaners_frame()),
        next_(root.first),
        repaired_(repaired) {}
  [[nodiscard]] int take(void* data, uint64_t bytes);
  bool at_end() const { return left_ == 0; }
  uint64_t left() const { return left_; }  // bytes
  // part: links begun so far. segment: the one of the last link, or where it should be.
  uint64_t part() const { return number_; }
  uint64_t segment() const { return segment_; }

 private:
  int read_link();
  bool is_whole() const;
  int repair();
  Log& log_;
  const uint64_t life_;
  uint64_t left_;
  char* frame_;
  uint64_t next_, segment_ = 0, number_ = 0, at_ = 0, end_ = 0;
  GrowingArray<uint64_t>* repaired_;
};

}  // namespace lunar::kv
