// SPDX-License-Identifier: Apache-2.0
// A store whose saved state is damaged, read from the state's sound parts and the records
// themselves.
//
// Each block of the state has a checksum of its own, seeded by the state's life. So what a block
// says is of this state and as it was written, or it is not believed. A single damaged block of a
// part is computed from the others.
//
// A record is current if its index entry (tag | address) is a word of a sound block. So neither
// buckets nor shards need be parsed. Other records are dead, or those whose entries are damaged. So
// while keys are missing (Root::keys), the newest record of each key that has no current one is
// taken and marked doubtful: it may be an older value, or a pair that was deleted. Damaged blocks
// only decide between records whose order is not known.
//
// Checksums are seeded by the life of a segment. Where the state's word on it is damaged, it is
// guessed (close to that of a neighbour), or a batch's header has it. A sound record proves it. By
// a header alone it may be a segment that another store has left in this place: a record of it
// counts if a word names one there.
//
// Memory beyond dram_bytes: twice the state (some 20 bytes per key), 16 bytes per sound record and
// per key, 48 per large pair, 32 per segment; arrays are copied as they double.
// Threading: one thread, at open. Blocks for the device; allocates.
#pragma once
#include <cstdint>

#include "kv/growing_array.h"
#include "kv/record_log.h"
#include "kv/store_format.h"

namespace lunar::kv {

class Store;

// What a sweep reports of it.
struct Rebuilt {
  bool any = false;
  GrowingArray<uint64_t> parts;     // of the state, that are damaged: segment + 1; 0: not found
  GrowingArray<uint64_t> doubtful;  // addresses, in order
  // pairs that the state counts, but for those that certainly are its own
  uint64_t not_certain = 0;
  uint64_t settled = 0;  //   of these, replaced or deleted in the log behind it
  void close() {
    parts.close();
    doubtful.close();
  }
};

// Fills the log's segments and the index as loading the state would. Pre: both are empty. 0;
// -ENOMEM, or -errno.
[[nodiscard]] int rebuild(Store& store, const media::Root& root, Rebuilt* out);

}  // namespace lunar::kv
