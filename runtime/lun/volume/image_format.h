// SPDX-License-Identifier: Apache-2.0
// On-media format of an atomic image (atomic_image.h): a header, followed by the body that it
// describes. Little-endian.
//
// Extensions of a format made of images: the first change that uses an extension sets its *feature
// bit*. A reader refuses an image with a bit that it does not know (-EPROTONOSUPPORT). Reserved
// fields are 0; any other value is damage.
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
  uint64_t reserved[2];
  uint64_t features;
  uint8_t reserved_end[24];
  uint64_t checksum;  // XXH3 of the header before it
};
static_assert(sizeof(ImageHeader) == 128);
static_assert(offsetof(ImageHeader, sequence) == 32 && offsetof(ImageHeader, previous) == 56);
static_assert(offsetof(ImageHeader, features) == 88 && offsetof(ImageHeader, checksum) == 120);

}  // namespace lunar::media
