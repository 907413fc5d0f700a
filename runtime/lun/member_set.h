// SPDX-License-Identifier: Apache-2.0
// Assembles the members of a stripe by their labels (raid/member_label.h).
// Threading: blocking; one thread at a time per set. Not for the fault path.
#pragma once
#include "base/error.h"
#include "lun/raid/member_label.h"
#include "lun/volume/physical_lun.h"
#include "superpipe/device.h"

namespace lunar {

struct MemberSet {
  unsigned count = 0;
  Device* device[kLabelMembersMax] = {};
  MemberLabel label[kLabelMembersMax] = {};  // as read
};
// Reads the labels of all members, and checks that they form this set in this order. `format` as
// for PhysicalLun::open; nothing is written unless all members may be formatted. 0, or -errno with
// a line that names the member.
[[nodiscard]] int label_assemble(const char* uri, MemberSet* set, Format format, ErrorText* why);

}  // namespace lunar
