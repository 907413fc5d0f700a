// SPDX-License-Identifier: Apache-2.0
// Opens the devices that callers of the block library name, by means of lun/.
// Threading: any, blocking. Not for the data path.
#pragma once
#include <cstddef>

#include "lun/volume/virtual_lun.h"
#include "superpipe/device.h"

namespace lunar::cblk {

constexpr unsigned kDevicesMax = 8;  // of a RAID 0 or of paths
constexpr size_t kPathBytes = 4096;

// Opens the whole device, as kWhole, kAlone, kForced or kFurther (superpipe/ownership.h). Lunar's
// format is removed from it if nothing on it outlives its owners (lun/compose.h: physical_end). If
// it has named LUNs or LUNs with owners, or is a member of a stripe, the call fails with -EBUSY.
// kForced, kFurther and read-only opens leave the device as it is and do not fail for that reason.
[[nodiscard]] int open_whole(const char* path, bool read_only, Claim claim, Device** out,
                             ErrorText* why);
// Creates a virtual LUN of size 0, which ends with its last owner. A blank device is formatted
// first; meanwhile other opens wait (10 s at most).
[[nodiscard]] int open_virtual(const char* path, VirtualLun** out, ErrorText* why);
// Converts d1:d2:.. to "paths:d1;d2;..", for CBLK_OPN_MPIO_FO. 0, -EINVAL, -ENAMETOOLONG.
[[nodiscard]] int paths_uri(const char* path, char* out, size_t size);

// Paths to the device, fail-overs so far, and which path is the primary one.
struct Ways {
  unsigned count = 1;
  unsigned primary = 0;
  uint64_t fail_overs = 0;
};
Ways ways_to(Device* device);

// Splits d1:d2:.. at its colons. A device may be
//   a path without a colon           /dev/sdb
//   SCHEME:REST, REST without one    file:/data/x   sim:64m   pmem:/dev/pmem0
//   either of these in parentheses, which may contain colons: (paths:file:/a;file:/b)
// Copies each into out[i] (without its parentheses). Returns how many, or -EINVAL (none, more than
// `max`, one of them empty, a parenthesis that is not closed), -ENAMETOOLONG.
[[nodiscard]] int split_devices(const char* path, char (*out)[kPathBytes], unsigned max);

}  // namespace lunar::cblk
