// SPDX-License-Identifier: Apache-2.0
// A store whose saved state is damaged, read from the state's sound parts and the records
// themselves.
//
// Each block of the state has a checksum of its own, seeded by the state's life. So only blocks of
// this state count, and only as they were written. A single damaged block of a part is computed
// from the others.
//
// A record is current if its index entry (tag | address) is a word of a sound block, so buckets and
// shards are not parsed. Other records are dead, or their entries are damaged. While keys are
// missing (Root::keys), the newest record of each key that has no current one is taken and marked
// doubtful: it may be an older value, or a pair that was deleted. Damaged blocks only decide
// between records whose order is not known.
//
// Checksums are seeded by the life of a segment. If the state's entry of the segment is damaged,
// the life is guessed (close to that of a neighbour), or taken from a batch's header. A sound
// record proves it. If only a header has it, another store may have left the segment in this place.
// Its records then count only if a word names one of them.
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

// What a sweep reports on a rebuilt store.
struct Rebuilt {
  bool any = false;
  GrowingArray<uint64_t> parts;     // damaged parts of the state: segment + 1; 0: not found
  GrowingArray<uint64_t> doubtful;  // addresses, in order
  uint64_t not_certain = 0;         // pairs that the state counts, without those that are certain
  uint64_t settled = 0;             //   of these, replaced or deleted in the log behind it
  void close() {
    parts.close();
    doubtful.close();
  }
};

// Fills the log's segments and the index as loading the state would. 0; -ENOMEM, or -errno.
// pre: both are empty
[[nodiscard]] int rebuild(Store& store, const media::Root& root, Rebuilt* out);

}  // namespace lunar::kv
