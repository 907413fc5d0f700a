// SPDX-License-Identifier: Apache-2.0
// SCSI commands by SG_IO: see scsi.h.
// Threading: any; blocks. Not for the fault path.
#include "sys/scsi.h"

#include <errno.h>
#include <scsi/sg.h>
#include <stdint.h>
#include <sys/ioctl.h>

namespace lunar::sys {

int scsi_synchronize_cache(int fd) {
  constexpr uint8_t kSynchronizeCache10 = 0x35, kIllegalRequest = 5, kInvalidCommand = 0x20;
  constexpr unsigned kTimeoutMs = 60'000;  // what the kernel gives a disk for it
  uint8_t command[10] = {kSynchronizeCache10}, sense[32] = {};
  sg_io_hdr_t io = {};
  io.interface_id = 'S';
  io.dxfer_direction = SG_DXFER_NONE;
  io.cmdp = command;
  io.cmd_len = sizeof command;
  io.sbp = sense;
  io.mx_sb_len = sizeof sense;
  io.timeout = kTimeoutMs;
  int result;
  do result = ioctl(fd, SG_IO, &io);
  while (result != 0 && errno == EINTR);
  if (result != 0) return -errno;
  if ((io.info & SG_INFO_OK_MASK) == SG_INFO_OK) return 0;
  // The positions of key and code depend on the format of the sense data.
  const bool descriptor = (sense[0] & 0x7f) >= 0x72;
  const uint8_t key = (descriptor ? sense[1] : sense[2]) & 0x0f,
                code = descriptor ? sense[2] : sense[12];
  return io.sb_len_wr > 0 && key == kIllegalRequest && code == kInvalidCommand ? 0 : -EIO;
}

}  // namespace lunar::sys
