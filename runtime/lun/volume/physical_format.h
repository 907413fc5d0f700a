// SPDX-License-Identifier: Apache-2.0
// On-media format of a physical LUN, version 1. Little-endian.
//
//   0            4 KiB ...         data_offset          backup_offset
//   │ Superblock │ front A │ front B │ extent 0 │ ... │ pad │ back A │ back B │ Superblock │
//   └────────────┴─────────┴─────────┴──────────┴─────┴─────┴────────┴────────┴────────────┘
//
// Superblock: the geometry, written at format and never changed, with a second copy in the last 4
// KiB of the device. Image: everything that changes (the LUNs, and the owner of each extent) in one
// piece: header, entry table, extent table. It is an atomic image in two copies (atomic_image.h
// says why it survives any crash): slots A and B before the data, and again after the data. An
// image with valid checksums but impossible content (image_sound()) counts as damaged.
//
// An image may become visible before it is acknowledged. So everything that it relies on (zeros in
// extents that it assigns) is written and flushed first, and freed extents are discarded only
// afterwards.
//
// Extensions of the format have feature bits in the images (image_format.h); there are none yet.
// The bits are in the image, because the superblock never changes; a different geometry has another
// version there. Versions of Lunar from before feature bits take an image that has one for damaged
// beyond its copies ("a checksum is wrong"); they refuse it and change nothing, even with --repair.
// They read images without feature bits.
//
// The *type* of an entry says what its extents contain. An unknown type is not damage: the LUN is
// listed, keeps its extents and can be removed, but not opened. Versions from before types take an
// entry that has one for damage ("an entry with unknown content").
//
// An exclusive open of the whole device *ends* a format on which nothing outlives its owners
// (PhysicalLun::end). It sets the magic of the primary superblock to kEndedMagic, keeps the rest of
// it, and flushes; writes zeros over the images and the backup superblock, and flushes; writes
// zeros over the primary superblock, and flushes. An open that finds the mark (after a kill in
// between) treats the device as blank, whatever is at its end, and formats it or continues to end
// it.
//
// Format writes zeros over old content that is to be overwritten, then images 1 and 2 (both empty),
// flush, primary superblock, flush, backup superblock, flush. So a blank head means that the device
// was never formatted (or that its head was erased; then the backup exists, and the device is
// refused).
#pragma once
#include <cstddef>
#include <cstdint>

#include "lun/volume/image_format.h"

namespace lunar::media {

constexpr char kSuperMagic[16] = "LunarPhysLUN\r\n\x1a";
constexpr char kEndedMagic[16] = "LunarPhysEnd\r\n\x1a";
constexpr uint32_t kVersion = 1;
constexpr uint32_t kBlockBytes = 4096;

struct Superblock {
  char magic[16];
  uint32_t version;
  uint32_t header_bytes;  // sizeof(Superblock)
  uint8_t uuid[16];       // of this physical LUN
  uint64_t device_bytes;  // at format; the device must not be smaller
  uint64_t extent_bytes;  // power of two, 1 MiB or more (64 KiB or more on devices below 64 MiB)
  uint64_t extent_count;
  uint64_t image_bytes;   // of one slot, multiple of 4096
  uint64_t front_offset;  // of front image A; B follows
  uint64_t data_offset;   // of extent 0; multiple of 64 KiB, or of 1 MiB if extents are larger
  uint64_t back_offset;   // of back image A; B follows
  uint64_t created_s;
  uint32_t entry_count;  // slots of the entry table
  uint32_t reserved0;
  uint8_t reserved[4096 - 120];
  uint64_t checksum;  // XXH3 of the bytes before it
};
static_assert(sizeof(Superblock) == 4096);
static_assert(offsetof(Superblock, uuid) == 24 && offsetof(Superblock, device_bytes) == 40);
static_assert(offsetof(Superblock, reserved) == 112 && offsetof(Superblock, checksum) == 4088);

// An image: image_format.h, with the superblock's checksum; its body is the entry table and the
// extent table.
constexpr char kImageMagic[8] = {'L', 'u', 'n', 'I', 'm', 'a', 'g', 'e'};

enum EntryFlags : uint32_t { kEntryUsed = 1, kEntryScratch = 2 };

struct LunEntry {
  uint32_t flags;      // EntryFlags; 0: free, then all else is 0
  uint32_t cipher_id;  // 0. Earlier versions could name a cipher: such a LUN is refused
  char name[32];       // NUL-terminated, zero-filled; empty: scratch
  uint8_t uuid[16];
  uint64_t size_bytes;  // <= extents * extent_bytes
  uint64_t extents;     // number of its extents in the extent table
  uint64_t created_s;
  uint8_t key_check[16];  // reserved: of the cipher of earlier versions
  uint32_t type;          // LunType (physical_lun.h)
  uint8_t reserved[28];
};
static_assert(sizeof(LunEntry) == 128 && offsetof(LunEntry, type) == 96);
static_assert(offsetof(LunEntry, uuid) == 40 && offsetof(LunEntry, size_bytes) == 56 &&
              offsetof(LunEntry, key_check) == 80);

// Extent table: one entry per physical extent.
struct ExtentOwner {
  uint32_t lun;       // entry index + 1; 0: free
  uint32_t position;  // index among that LUN's extents
};
static_assert(sizeof(ExtentOwner) == 8);

}  // namespace lunar::media
