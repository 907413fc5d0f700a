// SPDX-License-Identifier: Apache-2.0
// On-media format of an atomic image (atomic_image.h): a header, followed by the body that it
// describes. Little-endian.
//
// What may change in a format made of images: each image has three sets of *feature bits*. A change
// that starts to use something beyond the format sets its bit. A reader that does not know a bit of
// the set
//   compatible    uses the image, and preserves unknown content (reserved bytes, flags) in the
//                 parts that it does not change
//   read-only     may read, but changes nothing, not even to repair it: -EROFS
//   incompatible  refuses it: -EPROTONOSUPPORT
// If there are no unknown bits, all reserved fields are 0; any other value is damage.
#pragma once
#include <cstddef>
#include <cstdint>

namespace lunar::media {

struct ImageHeader {
  char magic[8];  // of the kind of table
  uint32_t version;
  uint32_t header_bytes;   // sizeof(ImageHeader)
  uint8_t uuid[16];        // of what it belongs to; tells images of a former format apart
  uint64_t sequence;       // 1 and 2 at format; its parity is its slot
  uint64_t body_bytes;     // after the header
  uint64_t body_checksum;  // XXH3 of the body
  uint64_t previous;       // `checksum` of the image before it (of image 1: 0)
  // of the superblock (or whatever never changes) under which it was written: it fits no other
  // geometry
  uint64_t super_checksum;
  uint64_t features_compatible;
  uint64_t features_read_only;
  uint64_t features_incompatible;
  uint8_t reserved[24];
  uint64_t checksum;  // XXH3 of the header before it
};
static_assert(sizeof(ImageHeader) == 128);
static_assert(offsetof(ImageHeader, sequence) == 32 && offsetof(ImageHeader, previous) == 56);
static_assert(offsetof(ImageHeader, features_compatible) == 72 &&
              offsetof(ImageHeader, checksum) == 120);

}  // namespace lunar::media
