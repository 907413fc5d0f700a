// SPDX-License-Identifier: Apache-2.0
// From Commands to NVMe commands: a namespace's geometry, splitting a Command into NVMe commands, the meaning of
// statuses.
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
  uint64_t zeroes_bytes_max = 0;          // of one WRITE ZEROES; 0: not known, piece_bytes_max is safe
  bool write_zeroes = false;              // kDiscard is carried out
  bool deallocate_zeroed = false;         // WRITE ZEROES may give the blocks back (DEAC)
  bool deallocate = false;                // DATASET MANAGEMENT
  bool volatile_cache = false;            // writes may stay in it; FUA passes it
  // not torn by a power failure, at multiples of the length: a power of two (nvme_atomic_bytes)
  uint64_t atomic_bytes = 0;
  bool read_only = false;  // as it was opened: root's commands are not stopped by the kernel
};

// From Identify Namespace and Identify Controller data (4096 bytes each), as the NVMe specification lays them out. 0,
// or -ENOTSUP with a reason in `reason` (metadata, odd block size).
[[nodiscard]] int nvme_geometry(const uint8_t* name_space, const uint8_t* controller, NvmeGeometry* out,
                                const char** reason);

// What of geometry.atomic_bytes is left where a Command is one piece, data_offset bytes in.
uint64_t nvme_atomic_bytes(const NvmeGeometry& geometry, uint64_t data_offset);

// How far a Command has come. A piece is one NVMe command.
struct NvmeProgress {
  uint32_t part = 0;   // index into iov of the first byte not done
  uint64_t skip = 0;   // bytes of that part that are done
  uint64_t done = 0;   // bytes
  uint64_t piece = 0;  // bytes of the piece under way
};

// 0 when `command` may be sent; a result it has without the device: -errno (-EINVAL crooked or not atomic as asked,
// -ENOSPC a write beyond the end, -EBADF opened read-only), or kNothingToRead.
constexpr int kNothingToRead = 1;
[[nodiscard]] int nvme_check(const NvmeGeometry& geometry, uint64_t data_offset, const Command& command);
// The piece at `progress` (whose `piece` is set). pre: nvme_check gave 0 and the command is not finished.
void nvme_piece(const NvmeGeometry& geometry, uint64_t data_offset, const Command& command, NvmeProgress* progress,
                sys::NvmeCommand* out);
// The piece under way succeeded: true when the command is finished.
bool nvme_advance(const Command& command, NvmeProgress* progress);
// -errno for what a failed piece answered: a negative errno, or an NVMe status. Tells it in one log line.
int nvme_failure(const char* name, const Command& command, const NvmeProgress& progress, int answer);

}  // namespace lunar
