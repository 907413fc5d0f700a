// SPDX-License-Identifier: Apache-2.0
// On-media format of a key/value store that is kept, version 1. Little-endian.
//
//   0            4 KiB    8 KiB           60 KiB       64 KiB                              back_offset
//   │ Superblock │ root A │ root B │ ...  │ Superblock │ segment 0 │ segment 1 │ ...       │ root A │ root B │
//
// Superblock: the geometry, written when the store is made and never changed; twice. Root: where the saved state begins,
// an atomic image in two copies (lun/volume/atomic_image.h says why every crash leaves it whole).
//
// The saved state is everything else: which segments hold what, and the index. It lies in segments of the log, a chain;
// each link begins with a StateLink. The bytes of the links, one behind the other:
//
//   SegmentEntry × segment_count, then for each shard: ShardHeader, then for each bucket of its index (chain included):
//   uint64_t n, n entries as in index.h. A bucket's number & (2^index_bits - 1) and the tag are what tells its hashes.
//
// What a saved state refers to is not written again before a younger one is durable. So a crash leaves the last one, and
// all that it refers to: nothing is replayed. Segments are as record_log.h describes them: records with checksums seeded
// by place and life. A life is a number that no other use of any segment of this store has, in any run of a program: it
// begins at random with each open.
//
// What may change in this format: feature bits of the root (lun/volume/image_format.h); none is known yet.
#pragma once
#include <cstddef>
#include <cstdint>

namespace lunar::kv::media {

constexpr char kSuperMagic[16] = "LunarKeyValue\r\n";
constexpr char kRootMagic[8] = {'L', 'u', 'n', 'K', 'V', 'r', 't', 0};
constexpr uint32_t kVersion = 1;
constexpr uint64_t kBlockBytes = 4096, kHeadBytes = 64 * 1024, kTailBytes = 64 * 1024;
constexpr uint64_t kSecondSuperAt = kHeadBytes - kBlockBytes, kFrontRootsAt = kBlockBytes;

struct Superblock {
  char magic[16];
  uint32_t version;
  uint32_t header_bytes;  // sizeof(Superblock)
  uint8_t uuid[16];
  uint64_t device_bytes;  // that the store takes, from the start of the device
  uint64_t back_offset;   // of the second copy of the root
  uint64_t segment_count;
  uint32_t segment_bits;  // log2 of a segment's bytes
  uint32_t shard_bits, index_bits;
  uint32_t reserved0;
  uint8_t reserved[32];
  uint64_t checksum;  // XXH3 of the bytes before it
};
static_assert(sizeof(Superblock) == 120 && offsetof(Superblock, checksum) == 112);

// The root's body. All 0: a store that was never saved.
struct Root {
  uint64_t first;  // segment + 1 of the chain's first link; 0: there is none, the store is empty
  uint64_t life;   // of the chain
  uint64_t bytes;  // of the saved state
  uint64_t keys;
  uint8_t reserved[32];
};
static_assert(sizeof(Root) == 64);

struct StateLink {
  uint64_t checksum;  // of what follows in the link, as of a part of a large pair: seeded by its number and the life
  uint64_t next;      // segment + 1; 0: the last
  uint64_t bytes;     // of the saved state, behind this header
};
static_assert(sizeof(StateLink) == 24);

enum class SegmentKind : uint32_t { kFree = 0, kRecords = 1, kRun = 2 };  // kFree: also what the state lies in
struct SegmentEntry {
  uint64_t life;
  uint32_t live;  // units
  uint32_t used;  // bytes
  SegmentKind kind;
  uint32_t reserved;
};
static_assert(sizeof(SegmentEntry) == 24);

struct ShardHeader {
  uint64_t keys;
  uint64_t pair_bytes;
  uint64_t buckets;
};
static_assert(sizeof(ShardHeader) == 24);

}  // namespace lunar::kv::media
