// SPDX-License-Identifier: Apache-2.0
// Translates Commands to NVMe commands: the geometry of a namespace, splitting a Command into NVMe
// commands, the meaning of statuses.
// Threading: no state. No allocation; for the data path.
#pragma once
#include "base/units.h"
#include "superpipe/device.h"
#include "sys/nvme.h"

namespace lunar {

struct NvmeGeometry {
  uint32_t nsid = 0;
  uint32_t block_shift = 9;
  uint64_t blocks = 0;
  uint32_t piece_bytes_max = 128 * 1024;  // of one NVMe command; a multiple of 4096
  uint32_t piece_parts_max = 32;          // buffers of one command
  uint64_t zeroes_bytes_max = 0;   // of one WRITE ZEROES; 0: not known, piece_bytes_max is safe
  bool write_zeroes = false;       // kDiscard works
  bool deallocate_zeroed = false;  // WRITE ZEROES may give the blocks back (DEAC)
  bool deallocate = false;         // DATASET MANAGEMENT
  bool volatile_cache = false;     // writes may stay in the cache; FUA bypasses it
  bool read_only = false;          // opened read-only: the kernel would not stop root's commands
};

// From Identify Namespace and Identify Controller data (4096 bytes each), as the NVMe specification
// lays them out. 0, or -ENOTSUP with a reason in `reason` (metadata, odd block size).
[[nodiscard]] int nvme_geometry(const uint8_t* name_space, const uint8_t* controller,
                                NvmeGeometry* out, const char** reason);

// The progress of a Command. A piece is one NVMe command.
struct NvmeProgress {
  uint32_t part = 0;   // index into iov of the first byte not done
  uint64_t skip = 0;   // bytes of that part that are done
  uint64_t done = 0;   // bytes
  uint64_t piece = 0;  // bytes of the piece in progress
};

// 0: `command` may be sent. Otherwise a result without the device: -errno (-EINVAL: not aligned;
// -ENOSPC: a write beyond the end; -EBADF: opened read-only), or kNothingToRead.
constexpr int kNothingToRead = 1;
[[nodiscard]] int nvme_check(const NvmeGeometry& geometry, uint64_t data_offset,
                             const Command& command);
// Makes the piece at `progress`, and sets its `piece`. pre: nvme_check returned 0 and the command
// is not finished.
void nvme_piece(const NvmeGeometry& geometry, uint64_t data_offset, const Command& command,
                NvmeProgress* progress, sys::NvmeCommand* out);
// Called when the piece in progress has succeeded. Returns true if the command is finished.
bool nvme_advance(const Command& command, NvmeProgress* progress);
// The -errno for the answer to a failed piece: a negative errno, or an NVMe status. Logs it in one
// line.
int nvme_failure(const char* name, const Command& command, const NvmeProgress& progress,
                 int answer);

}  // namespace lunar
