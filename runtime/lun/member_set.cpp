// SPDX-License-Identifier: Apache-2.0
// Sets of members: see member_set.h.
// Threading: blocking, one thread a set. Allocates through map_private. Not for the fault path.
#include "lun/member_set.h"

#include <errno.h>
#include <string.h>
#include <time.h>

#include "base/units.h"
#include "lun/raid/stripe_device.h"
#include "sys/arena.h"
#include "sys/file.h"

namespace lunar {
namespace {

constexpr uint64_t kProbeBytes = 64 * kKiB;  // of a head, or a tail

// Whether a member is blank: 1; 0: it holds something (`what`); -errno.
int member_blank(Device* device, char* what, size_t size) {
  DeviceContent content = DeviceContent::kForeign;
  const int status = device_content(device, &content, what, size);
  return status < 0 ? status : content == DeviceContent::kBlank || content == DeviceContent::kEnded;
}

int read_all(const char* uri, MemberSet* set, Format format, unsigned* blank, ErrorText* why) {
  for (unsigned i = 0; i < set->count; ++i) {
    Device* device = set->device[i];
    const int status = label_read(device, &set->label[i]);
    if (status == 0 || format == Format::kForce) continue;
    char what[64] = "";
    if (status == -ENODEV) {
      const int is_blank = member_blank(device, what, sizeof what);
      if (is_blank < 0)
        return why->set(is_blank, "LUN %s: cannot look at member %s: %s", uri, device->name(),
                        errno_text(is_blank));
      if (is_blank == 1) {
        ++*blank;
        continue;
      }
      return why->set(-EEXIST,
                      "LUN %s: member %s holds %s; erase it, or have it formatted by force", uri,
                      device->name(), what);
    }
    if (status == -EPROTONOSUPPORT)
      return why->set(
          status, "LUN %s: member %s has a label of another version; use the Lunar that wrote it",
          uri, device->name());
    if (status == -EBADMSG)
      return why->set(status,
                      "LUN %s: both labels of member %s are damaged; have the set formatted by "
                      "force, which loses what it holds",
                      uri, device->name());
    if (status == -EOPNOTSUPP) return refuse_mirror(uri, device->name(), why);
    return why->set(status, "LUN %s: cannot read member %s: %s", uri, device->name(),
                    errno_text(status));
  }
  return 0;
}

int format_all(const char* uri, MemberSet* set, ErrorText* why) {
  uint64_t smallest = UINT64_MAX;
  for (unsigned i = 0; i < set->count; ++i) {
    const uint64_t bytes = set->device[i]->size_bytes();
    if (bytes < kMemberDataOffset + kStripeChunkBytes)
      return why->set(-ENOSPC, "LUN %s: member %s is too small (%s); give 2 MiB or more", uri,
                      set->device[i]->name(), format_size(bytes).text);
    if (bytes < smallest) smallest = bytes;
  }
  MemberLabel fresh = {};
  memcpy(fresh.magic, kLabelMagic, sizeof kLabelMagic);
  fresh.version = kLabelVersion;
  fresh.header_bytes = sizeof(MemberLabel);
  fresh.type = static_cast<uint32_t>(SetType::kStripe);
  fresh.count = set->count;
  fresh.chunk_bytes = kStripeChunkBytes;
  fresh.data_offset = kMemberDataOffset;
  fresh.data_bytes = round_down(smallest - kMemberDataOffset, kStripeChunkBytes);
  fresh.reserved1 = 1;
  timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  fresh.created_s = static_cast<uint64_t>(now.tv_sec);
  int status = sys::random_bytes(fresh.set_uuid, sizeof fresh.set_uuid);
  if (status < 0)
    return why->set(status, "LUN %s: cannot make a uuid: %s", uri, errno_text(status));
  void* zeros = map_private(kProbeBytes, ForkPolicy::kDontFork);
  if (!zeros) return why->set(-ENOMEM, "LUN %s: out of memory", uri);
  const Device* at_fault = nullptr;
  for (unsigned i = 0; i < set->count && status == 0; ++i) {
    set->label[i] = fresh;
    set->label[i].index = i;
    // Erases the former content of the head, and a former format's head and tail in the set's data,
    // so that neither is found again.
    const uint64_t zeroed[] = {0, kMemberDataOffset,
                               kMemberDataOffset + fresh.data_bytes - kProbeBytes};
    for (uint64_t at : zeroed) {
      if (status == 0 && label_io(set->device[i], Op::kWrite, at, zeros, kProbeBytes) < 0)
        status = -EIO;
    }
    if (status == 0) status = label_write(set->device[i], &set->label[i]);
    if (status < 0) at_fault = set->device[i];
  }
  unmap_private(zeros, kProbeBytes);
  return status < 0 ? why->set(status, "LUN %s: cannot write the label of member %s: %s", uri,
                               at_fault->name(), errno_text(status))
                    : 0;
}

int check_member(const char* uri, const MemberSet& set, unsigned i, const MemberLabel& first,
                 ErrorText* why) {
  const MemberLabel& label = set.label[i];
  const char* name = set.device[i]->name();
  if (memcmp(label.set_uuid, first.set_uuid, sizeof label.set_uuid) != 0)
    return why->set(-EEXIST, "LUN %s: member %s belongs to another set; give the members of one",
                    uri, name);
  if (label.count != set.count)
    return why->set(-EINVAL,
                    "LUN %s: member %s is one of %u members, %u are given; give all of them", uri,
                    name, label.count, set.count);
  if (label.index != i)
    return why->set(
        -EINVAL,
        "LUN %s: member %s is number %u of the set and stands at place %u; give them in order", uri,
        name, label.index + 1, i + 1);
  if (label.data_bytes != first.data_bytes || label.chunk_bytes != first.chunk_bytes)
    return why->set(-EBADMSG,
                    "LUN %s: the label of member %s contradicts the others; check the members", uri,
                    name);
  if (set.device[i]->size_bytes() < label.data_offset + label.data_bytes)
    return why->set(-ENOSPC,
                    "LUN %s: member %s is smaller than when it was formatted (%s, %s needed)", uri,
                    name, format_size(set.device[i]->size_bytes()).text,
                    format_size(label.data_offset + label.data_bytes).text);
  return 0;
}

}  // namespace

int label_assemble(const char* uri, MemberSet* set, Format format, ErrorText* why) {
  unsigned blank = 0;
  int status = read_all(uri, set, format, &blank, why);
  if (status < 0) return status;
  if (format == Format::kForce) return format_all(uri, set, why);
  if (blank) {
    const char* example = "";
    for (unsigned i = 0; i < set->count; ++i)
      if (set->label[i].version == 0) example = set->device[i]->name();
    if (blank == set->count && format == Format::kIfBlank) return format_all(uri, set, why);
    if (blank == set->count)
      return why->set(-ENODEV, "LUN %s: the members are blank; have them formatted first", uri);
    return why->set(-EINVAL,
                    "LUN %s: member %s is blank and others are not; give the members of one set",
                    uri, example);
  }
  for (unsigned i = 0; i < set->count; ++i) {
    status = check_member(uri, *set, i, set->label[0], why);
    if (status < 0) return status;
  }
  return 0;
}

}  // namespace lunar
