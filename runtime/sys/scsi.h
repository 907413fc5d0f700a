// SPDX-License-Identifier: Apache-2.0
// A SCSI command through a node of the sg driver. Threading: any; blocks.
#pragma once

namespace lunar::sys {

// Makes everything that the disk has acknowledged durable (SYNCHRONIZE CACHE, all of it). Returns 0
// also for a disk that does not know the command, because it has no volatile cache. 0, -EIO when
// the disk reports an error, or -errno.
[[nodiscard]] int scsi_synchronize_cache(int fd);

}  // namespace lunar::sys
