// SPDX-License-Identifier: Apache-2.0
// On-media format of a persistent key/value store, version 2. Little-endian.
//
//   0            4 KiB    8 KiB    60 KiB       64 KiB                        back_offset
//   │ Superblock │ root A │ root B │ Superblock │ segment 0 │ segment 1 │ ... │ root A │ root B │
//
// Superblock: the geometry, in two copies; written when the store is created, and changed only
// where it grows (grow.cpp). Root: where the saved state begins, an atomic image in two copies
// (lun/volume/atomic_image.h says why it survives any crash).
//
// The saved state is everything else: the content of each segment, and the index. It lies in
// segments of the log that form a chain. A link begins with a StateLink, and all but the last are
// full (link_room). The bytes of the links, one after the other, are:
//
//   SegmentEntry × segment_count, uint64_t n, UnreferencedPieces × n, then for each shard:
//   ShardHeader, and of both of its indexes, that of pairs and that of pieces, for each bucket
//   (chain included):
//   uint64_t n, n entries as in index.h. The number of a bucket & (2^bits - 1), and the tag, are
//   the known bits of an entry's hash; bits: index_bits, kPieceBits.
//
// Behind the bytes of a link, from the next block on: the parity block, which is the exclusive or
// of all blocks of the link, and then a uint64_t checksum for each of these blocks, seeded by the
// numbers of link and block and the life. (Both are of the link with zeros for StateLink::checksum
// and behind its bytes.) So if the link's checksum is wrong, it is known which blocks are sound,
// and a single damaged block can be computed.
//
// Space that a saved state refers to is not overwritten before a younger state is durable. So a
// crash leaves the last state and all that it refers to. Segments are as record_log.h describes
// them: records with checksums seeded by place and life. A life is a number that no other use of
// any segment of this store has, in any run of a program; each open begins with a random one.
//
// The log to replay. With feature kFeatureLog a store holds more than the saved state: the log
// continues where the root says. It is a sequence of batches. Each is a piece of one segment that
// begins at a block (in segment 0 after its first unit) with a record of type kMark that holds a
// BatchHeader, continues with records, and is padded to a block by another kMark (where the next
// batch of the segment begins). Batches are numbered, without gaps. Those of a commit are written
// in any order, and no later batch is begun before they are durable. So at the place of number n
// there is
//   batch n: its number and all of its checksums are right;
//   or the end: no later batch has durable >= n;
//   or damage: a later batch has.
// A segment's headers, and the root, name the two segments after it, so later batches are found
// even if n is damaged. Behind a longer gap they are found because the log takes free segments in
// ascending order, around the end. Replay applies the records in order; each names the record that
// it replaces (record.h). Space that the saved state or the log after it refers to is not
// overwritten before a younger state is durable. Each open that begins a log gives it a random
// number, so remains of a former log are never taken for a batch of this one.
//
// A value of whole blocks lies on blocks behind its record (record.h: RecordNotes::kBody;
// record_log.h). No scan reads it as a record: a mark before the values says how long they are.
//
// Extensions of the format have feature bits in the root (lun/volume/image_format.h): kFeatureLog.
// Version 1 had large pairs in segments of their own.
#pragma once
#include <cstddef>
#include <cstdint>

#include "lun/volume/physical_lun.h"

namespace lunar::kv::media {

inline constexpr auto& kSuperMagic = kStoreMagic;
constexpr char kRootMagic[8] = {'L', 'u', 'n', 'K', 'V', 'r', 't', 0};
constexpr uint32_t kVersion = 2;
constexpr unsigned kPieceBits = 2;
constexpr uint64_t kFeatureLog = 1;
constexpr uint64_t kBlockBytes = 4096, kHeadBytes = 64 * 1024, kTailBytes = 64 * 1024;
constexpr uint64_t kSecondSuperAt = kHeadBytes - kBlockBytes, kFrontRootsAt = kBlockBytes;
static_assert(kStoreMagicAt[0] == 0 && kStoreMagicAt[1] == kSecondSuperAt);

struct Superblock {
  char magic[16];
  uint32_t version;
  uint32_t header_bytes;  // sizeof(Superblock)
  uint8_t uuid[16];
  uint64_t device_bytes;  // bytes that the store takes, from the start of the device
  uint64_t back_offset;   // of the second copy of the root
  uint64_t segment_count;
  uint32_t segment_bits;  // log2 of a segment's bytes
  uint32_t shard_bits, index_bits;
  uint32_t reserved0;
  uint8_t reserved[32];
  uint64_t checksum;  // XXH3 of the bytes before it
};
static_assert(sizeof(Superblock) == 120 && offsetof(Superblock, checksum) == 112);

// The body of the root. All zeros: the store was never saved.
struct Root {
  uint64_t first;  // segment + 1 of the chain's first link; 0: there is none, the store is empty
  uint64_t life;   // of the chain
  uint64_t bytes;  // of the saved state
  uint64_t keys;
  // Of a log to replay, otherwise 0. The log continues at byte log_at of segment log_segments[0] -
  // 1, with batch number log_batch, and then in the other segments (0: not known).
  uint64_t log;
  uint64_t log_batch;
  uint32_t log_segments[3];
  uint32_t log_at;
};
static_assert(sizeof(Root) == 64);

struct BatchHeader {
  uint64_t log;      // Root::log
  uint64_t life;     // of the segment
  uint64_t number;   // of the batch, from 1 on
  uint64_t durable;  // all batches up to this number were durable before this was written
  uint32_t next[2];  // segments + 1 in which the log continues after this one
  // from the start of the header's record to the end of the last record that counts
  uint32_t bytes;
  uint32_t reserved;
};
static_assert(sizeof(BatchHeader) == 48);

struct StateLink {
  uint64_t checksum;  // of the rest of the link; seeded by its number and the life
  uint64_t next;      // segment + 1; 0: the last
  uint64_t bytes;     // of the saved state, after this header
};
static_assert(sizeof(StateLink) == 24);

// Bytes of the saved state in a full link.
constexpr uint64_t link_room(uint64_t segment_bytes) {
  const uint64_t sums = segment_bytes / kBlockBytes * sizeof(uint64_t);
  return segment_bytes - (sums + kBlockBytes - 1) / kBlockBytes * kBlockBytes - kBlockBytes -
         sizeof(StateLink);
}

enum class SegmentKind : uint32_t { kFree = 0, kRecords = 1 };  // kFree: also segments of the state
struct SegmentEntry {
  uint64_t life;
  uint32_t live;  // units
  uint32_t used;  // bytes
  SegmentKind kind;
  uint32_t reserved;
};
static_assert(sizeof(SegmentEntry) == 24);

// Unreferenced pieces of a large pair, whose head was not written yet, or was replaced or deleted.
// An open deletes them, and those that a replayed log leaves unreferenced.
struct UnreferencedPieces {
  uint64_t owner, id;  // record.h: PieceKey
  // All pieces have smaller numbers. After damage, further pieces may follow.
  uint64_t count;
};
static_assert(sizeof(UnreferencedPieces) == 24);

struct ShardHeader {
  uint64_t keys;
  uint64_t pair_bytes;
  uint64_t buckets;
  uint64_t pieces, piece_buckets;
};
static_assert(sizeof(ShardHeader) == 40);

}  // namespace lunar::kv::media
