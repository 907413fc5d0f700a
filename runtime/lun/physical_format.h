// SPDX-License-Identifier: Apache-2.0
// On-media format of a physical LUN, version 1. Little-endian.
//
//   0            4 KiB ...                              data_offset                            backup_offset
//   │ Superblock │ front image A │ front image B │ ...  │ extent 0 │ extent 1 │ ... │ pad     │ back A │ back B │ Superblock │
//   └────────────┴───────────────┴───────────────┴──────┴──────────┴──────────┴─────┴─────────┴────────┴────────┴────────────┘
//
// Superblock: the geometry, written at format and never changed. A second copy in the last 4 KiB of the device.
// Image: all that changes (which LUNs there are, which extent is whose) as one piece: header, entry table, extent table, with a
// sequence number, one checksum over everything, and the checksum of the image before it. A change makes a new image (sequence
// N + 1) and writes it to slot (N + 1) % 2 in front, flush, then to the same slot in the back, flush; only then it is acknowledged.
//
// At rest all four slots are *in form*: N twice, N - 1 twice. Why every crash leaves it whole: at most one slot is being written
// at any moment, so at most one is out of form (torn, or still N - 1 where N + 1 is due); the other three hold N (twice) and
// N - 1, or N + 1 once, N twice: the highest valid sequence is the answer, and never less than what was acknowledged. Whoever
// takes the metadata lock puts the one slot in form again (flush first: what he read may not be on the medium yet) before
// he writes anything else. Two out of form cannot come from a crash: refused (-EBADMSG), as the newest change might be among
// them. So are two copies of one sequence that differ, and an image that does not name its predecessor: nothing of ours
// writes these. A valid checksum over nonsense (image_sound()) counts as damage.
//
// An image may become visible before it is acknowledged; so whatever must hold for it (zeros in extents given to somebody) is
// written and flushed before it, and what is freed is discarded only after it.
//
// What may change in this format. Each image carries three sets of *feature bits*: whoever begins to use something that this header
// does not describe sets its bit in the same change. Who reads an image with a bit he does not know
//   compatible    uses it, and keeps what he does not understand (reserved bytes, flags) of entries he leaves alone
//   read-only     may look (list, info, check, read), and changes nothing, not even to mend it: -EROFS
//   incompatible  refuses it: -EPROTONOSUPPORT
// No bit is known yet. Without unknown bits all that is reserved is 0, and anything else is damage. Bits are of the image, not of the superblock,
// as that never changes: a geometry that differs has another version there. Readers before feature bits take an image that has one
// for damaged beyond its copies ("a checksum is wrong"), refuse it and change nothing, --repair included; images without are theirs, too.
//
// An entry's *type* says what lies in its extents. One that is not known is no damage: its LUN is listed, keeps its extents and may be
// removed, and nothing else. Readers before types take an entry that has one for damage ("an entry with unknown content").
//
// Format writes: zeros over what was there when that was to go, images 1 and 2 (both empty), flush, primary superblock, flush,
// backup superblock, flush. So a blank head means that nothing was there (or somebody erased it, then the backup is there: refused).
#pragma once
#include <cstddef>
#include <cstdint>

namespace lunar::media {

constexpr char kSuperMagic[16] = "LunarPhysLUN\r\n\x1a";
constexpr uint32_t kVersion = 1;
constexpr uint32_t kBlockBytes = 4096;

struct Superblock {
  char magic[16];
  uint32_t version;
  uint32_t header_bytes;         // sizeof(Superblock)
  uint8_t uuid[16];              // of this physical LUN
  uint64_t device_bytes;         // when it was formatted; the device may not be smaller
  uint64_t extent_bytes;         // power of two, 1 MiB or more (64 KiB or more on devices below 64 MiB)
  uint64_t extent_count;
  uint64_t image_bytes;          // of one slot, multiple of 4096
  uint64_t front_offset;         // of front image A; B follows
  uint64_t data_offset;          // of extent 0; multiple of 64 KiB, of 1 MiB where extents are larger
  uint64_t back_offset;          // of back image A; B follows
  uint64_t created_s;
  uint32_t entry_count;          // slots of the entry table
  uint32_t reserved0;
  uint8_t reserved[4096 - 120];
  uint64_t checksum;             // XXH3 of the bytes before it
};
static_assert(sizeof(Superblock) == 4096);
static_assert(offsetof(Superblock, uuid) == 24 && offsetof(Superblock, device_bytes) == 40);
static_assert(offsetof(Superblock, reserved) == 112 && offsetof(Superblock, checksum) == 4088);

struct ImageHeader {
  char magic[8];                 // "LunImage"
  uint32_t version;
  uint32_t header_bytes;         // sizeof(ImageHeader)
  uint8_t uuid[16];              // of the physical LUN: an image of a former format is not ours
  uint64_t sequence;             // 1 and 2 at format; its parity is its slot
  uint64_t body_bytes;           // entry table and extent table
  uint64_t body_checksum;        // XXH3 of them
  uint64_t previous;             // `checksum` of the image before it (of image 1: 0)
  uint64_t super_checksum;       // of the superblock it was written under: no other geometry fits it
  uint64_t features_compatible;
  uint64_t features_read_only;
  uint64_t features_incompatible;
  uint8_t reserved[24];
  uint64_t checksum;             // XXH3 of the header before it
};
static_assert(sizeof(ImageHeader) == 128);
static_assert(offsetof(ImageHeader, sequence) == 32 && offsetof(ImageHeader, previous) == 56);
static_assert(offsetof(ImageHeader, features_compatible) == 72 && offsetof(ImageHeader, checksum) == 120);
constexpr char kImageMagic[8] = {'L', 'u', 'n', 'I', 'm', 'a', 'g', 'e'};

// Those this version knows.
constexpr uint64_t kFeaturesCompatible = 0, kFeaturesReadOnly = 0, kFeaturesIncompatible = 0;

enum EntryFlags : uint32_t { kEntryUsed = 1, kEntryScratch = 2 };

struct LunEntry {
  uint32_t flags;                // EntryFlags; 0: free, then all else is 0
  uint32_t cipher_id;
  char name[32];                 // NUL-terminated, zero-filled; empty: scratch
  uint8_t uuid[16];
  uint64_t size_bytes;           // <= extents * extent_bytes
  uint64_t extents;              // how many of the extent table are its
  uint64_t created_s;
  uint8_t key_check[16];         // of the cipher: what a wrong key is seen by
  uint32_t type;                 // LunType (physical_lun.h)
  uint8_t reserved[28];
};
static_assert(sizeof(LunEntry) == 128 && offsetof(LunEntry, type) == 96);
static_assert(offsetof(LunEntry, uuid) == 40 && offsetof(LunEntry, size_bytes) == 56 && offsetof(LunEntry, key_check) == 80);

// Extent table: one a physical extent.
struct ExtentOwner {
  uint32_t lun;                  // entry index + 1; 0: free
  uint32_t position;             // which of that LUN's extents it is
};
static_assert(sizeof(ExtentOwner) == 8);

}  // namespace lunar::media
