// SPDX-License-Identifier: Apache-2.0
// Labels of members: see member_label.h.
// Threading: blocking, one thread a set. Allocates through map_private. Not for the fault path.
#include "lun/raid/member_label.h"

#include <errno.h>
#include <string.h>

#include <initializer_list>

#include "base/units.h"
#include "base/xxh3.h"
#include "lun/raid/stripe_device.h"
#include "lun/raw_io.h"
#include "sys/arena.h"

namespace lunar {
namespace {

uint64_t checksum_of(const MemberLabel& label) {
  return XXH3_64bits(&label, offsetof(MemberLabel, checksum));
}

// A page-aligned buffer, for the duration of a call.
struct Scratch {
  char* base;
  size_t bytes;
  explicit Scratch(size_t size)
      : base(static_cast<char*>(map_private(size, ForkPolicy::kDontFork))), bytes(size) {}
  ~Scratch() {
    if (base) unmap_private(base, bytes);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
};

}  // namespace

int label_io(Device* device, Op op, uint64_t offset, void* buffer, size_t bytes) {
  int status = raw_io(device, op, offset, buffer, bytes);
  for (unsigned tries = 1; status < 0 && tries < 3; ++tries)
    status = raw_io(device, op, offset, buffer, bytes);
  return status;
}

int label_parse(const void* bytes, MemberLabel* out) {
  memcpy(out, bytes, sizeof *out);
  if (memcmp(out->magic, kLabelMagic, sizeof kLabelMagic) != 0) return -ENODEV;
  if (out->checksum != checksum_of(*out)) return -EBADMSG;
  if (out->version != kLabelVersion) return -EPROTONOSUPPORT;
  if (out->type == static_cast<uint32_t>(SetType::kFormerMirror)) return -EOPNOTSUPP;
  if (out->header_bytes != sizeof *out || out->type != static_cast<uint32_t>(SetType::kStripe) ||
      out->count < 2 || out->count > kLabelMembersMax || out->index >= out->count ||
      out->data_offset != kMemberDataOffset || out->data_bytes == 0 ||
      out->data_bytes % kStripeChunkBytes != 0 ||
      out->data_bytes > UINT64_MAX / 2 / kLabelMembersMax || out->chunk_bytes != kStripeChunkBytes)
    return -EBADMSG;
  return 0;
}

int label_read(Device* device, MemberLabel* out) {
  constexpr size_t kBytes = 16 * kKiB;
  if (device->size_bytes() < kBytes) return -ENODEV;
  Scratch head(kBytes);
  if (!head.base) return -ENOMEM;
  const int status = label_io(device, Op::kRead, 0, head.base, kBytes);
  if (status < 0) return status;
  MemberLabel other;
  const int a = label_parse(head.base + kLabelCopyOffset[0], out);
  const int b = label_parse(head.base + kLabelCopyOffset[1], &other);
  if (a == 0) return 0;
  if (b == 0) {
    *out = other;
    return 0;
  }
  for (const int told : {-EPROTONOSUPPORT, -EOPNOTSUPP}) {
    if (a == told || b == told) return told;
  }
  return a == -EBADMSG || b == -EBADMSG ? -EBADMSG : -ENODEV;
}

int label_write(Device* device, MemberLabel* label) {
  Scratch page(sizeof(MemberLabel));
  if (!page.base) return -ENOMEM;
  label->checksum = checksum_of(*label);
  memcpy(page.base, label, sizeof *label);
  for (uint64_t at : kLabelCopyOffset) {
    int status = label_io(device, Op::kWrite, at, page.base, sizeof(MemberLabel));
    if (status == 0) status = raw_flush(device);
    if (status < 0) return status;
  }
  return 0;
}

int refuse_mirror(const char* uri, const char* member, ErrorText* why) {
  return why->set(-EOPNOTSUPP,
                  "LUN %s: %s is a member of a mirror, which Lunar has no longer: mirror with "
                  "Linux md (mdadm) and give /dev/mdN. A member that was in sync has all data, "
                  "from 1 MiB on (losetup -r -o 1M makes a device of them)",
                  uri, member);
}

}  // namespace lunar
