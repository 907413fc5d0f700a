// SPDX-License-Identifier: Apache-2.0
// On-media label of a member of a stripe, version 1. Little-endian.
//
//   0         4 KiB    8 KiB     12 KiB          1 MiB = data_offset
//   │ label A │ -      │ label B │ -             │ data ...
//
// The two copies say the same. They are written one after the other with a flush between, so a crash tears at most one
// of them. The index in a member's label must be its place in the URI.
//
// Members of mirrors, which earlier versions had, carry the same label with another type: refused by a line that says
// what to do. Fields that only mirrors used are reserved.
//
// Threading: blocking; by one thread at a time a set. Not for the fault path.
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

// Whether 4096 bytes are a sound label; nothing in them is trusted before. 0; -ENODEV: no label; -EPROTONOSUPPORT:
// another version; -EOPNOTSUPP: of a mirror; -EBADMSG: a label, but damaged or with impossible fields.
[[nodiscard]] int label_parse(const void* bytes, MemberLabel* out);
// The first sound copy of a device. 0 or as label_parse (-EBADMSG only when neither is sound), or what reading gave.
[[nodiscard]] int label_read(Device* device, MemberLabel* out);
// Seals it and writes both copies, durable at return. 0 or -errno.
[[nodiscard]] int label_write(Device* device, MemberLabel* label);

// raw_io(), tried three times.
[[nodiscard]] int label_io(Device* device, Op op, uint64_t offset, void* buffer, size_t bytes);
// The refusal of a member of a mirror: -EOPNOTSUPP.
int refuse_mirror(const char* uri, const char* member, ErrorText* why);

}  // namespace lunar
