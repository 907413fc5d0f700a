// SPDX-License-Identifier: Apache-2.0
// On-media label of a member of a stripe, version 1. Little-endian.
//
//   0         4 KiB    8 KiB     12 KiB          1 MiB = data_offset
//   │ label A │ -      │ label B │ -             │ data ...
//
// The two copies are equal. They are written one after the other with a flush in between, so a
// crash tears at most one of them. The index in a member's label must be its place in the URI.
//
// Members of mirrors, which earlier versions had, carry the same label with another type. They are
// refused with a line that says what to do. Fields that only mirrors used are reserved.
//
// Threading: blocking; one thread at a time per set. Not for the fault path.
#pragma once
#include <cstddef>
#include <cstdint>

#include "base/error.h"
#include "superpipe/device.h"

namespace lunar {

constexpr uint64_t kMemberDataOffset = 1024 * 1024;
constexpr uint64_t kLabelCopyOffset[2] = {0, 8192};
constexpr unsigned kLabelMembersMax = 8;
constexpr char kLabelMagic[16] = "LunarMember";
constexpr uint32_t kLabelVersion = 1;

enum class SetType : uint32_t { kStripe = 1, kFormerMirror = 2 };

struct MemberLabel {
  char magic[16];  // kLabelMagic
  uint32_t version;
  uint32_t header_bytes;  // sizeof(MemberLabel)
  uint8_t set_uuid[16];
  uint32_t type;         // SetType
  uint32_t index;        // of this member
  uint32_t count;        // members of the set
  uint32_t reserved0;    // 0
  uint64_t chunk_bytes;  // kStripeChunkBytes
  uint64_t data_offset;  // kMemberDataOffset
  uint64_t data_bytes;   // of a member, from data_offset
  uint64_t reserved1;    // 1: earlier versions refuse 0
  uint64_t reserved2;    // 0
  uint64_t created_s;
  uint8_t reserved[4096 - 112];  // 0
  uint64_t checksum;             // XXH3 of the bytes before it
};
static_assert(sizeof(MemberLabel) == 4096);
static_assert(offsetof(MemberLabel, set_uuid) == 24 && offsetof(MemberLabel, type) == 40);
static_assert(offsetof(MemberLabel, chunk_bytes) == 56 && offsetof(MemberLabel, reserved1) == 80);
static_assert(offsetof(MemberLabel, reserved) == 104 && offsetof(MemberLabel, checksum) == 4088);

// Parses 4096 bytes as a label; nothing in them is trusted before. 0; -ENODEV: no label;
// -EPROTONOSUPPORT: another version; -EOPNOTSUPP: of a mirror; -EBADMSG: a label, but damaged or
// with impossible fields.
[[nodiscard]] int label_parse(const void* bytes, MemberLabel* out);
// Reads the first sound copy of a device's label. 0 or as for label_parse (-EBADMSG only if neither
// copy is sound), or the error of the read.
[[nodiscard]] int label_read(Device* device, MemberLabel* out);
// Sets the checksum and writes both copies, which are durable at return. 0 or -errno.
[[nodiscard]] int label_write(Device* device, MemberLabel* label);

// raw_io(), tried three times.
[[nodiscard]] int label_io(Device* device, Op op, uint64_t offset, void* buffer, size_t bytes);
// Fills *why for a member of a mirror, and returns -EOPNOTSUPP.
int refuse_mirror(const char* uri, const char* member, ErrorText* why);

}  // namespace lunar
