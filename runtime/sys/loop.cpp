// SPDX-License-Identifier: Apache-2.0
// Loop devices: see loop.h.
#include "sys/loop.h"

#include <errno.h>
#include <linux/loop.h>
#include <sys/ioctl.h>
#include <sys/sysmacros.h>

namespace lunar::sys {
namespace {

// Converts the kernel's 64-bit device number: the major number is in bits 8 to 19, the minor number
// in the other bits.
uint64_t as_dev(uint64_t huge) {
  return makedev(static_cast<unsigned>(huge >> 8 & 0xfff),
                 static_cast<unsigned>((huge & 0xff) | (huge >> 12 & 0xfffff00)));
}

}  // namespace

int loop_status(int fd, LoopStatus* out) {
  loop_info64 info = {};
  if (ioctl(fd, LOOP_GET_STATUS64, &info) != 0) return -errno;
  *out = {as_dev(info.lo_device), info.lo_inode, info.lo_rdevice ? as_dev(info.lo_rdevice) : 0,
          info.lo_offset, info.lo_sizelimit};
  return 0;
}

}  // namespace lunar::sys
