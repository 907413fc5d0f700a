// SPDX-License-Identifier: Apache-2.0
// A whole NVMe namespace by its character device, nvme:/dev/ngXnY: NVMe commands through io_uring,
// without the block layer (no page cache, no partitions, no file systems; the layer above knows the
// content).
//
//   kRead, kWrite   READ, WRITE, in pieces that the controller accepts, one after the other; fua is
//                   the FUA bit of each. atomic within AWUPF (of the namespace: NAWUPF and its
//                   boundary), in one piece
//   kFlush          FLUSH
//   kDiscard        WRITE ZEROES, which also frees the blocks if deallocated ones read as zeros
//                   (DEAC). Not DATASET MANAGEMENT: that is a hint, and a controller may keep the
//                   old data
//   release()       DATASET MANAGEMENT, deallocate
//
// A writable open first checks for users of the same namespace through the block layer (mounted,
// swap, a partition in use), and claims its block devices (ownership.h).
// Threading: does not change after open, except the descriptor (reopen), which is atomic.
#pragma once
#include <atomic>

#include "superpipe/node_device.h"
#include "superpipe/nvme/nvme_command.h"
#include "superpipe/ring/call_context.h"

struct stat;

namespace lunar {

class NvmeDevice final : public NodeDevice {
 public:
  [[nodiscard]] static int open(const char* uri, const DeviceOptions& options, Device** out,
                                ErrorText* why);
  [[nodiscard]] int attach(const ContextOptions& options, Context** out) override;
  [[nodiscard]] int reserve(DeviceOffset offset, uint64_t length) override;
  void release(DeviceOffset offset, uint64_t length) override;
  [[nodiscard]] int64_t transfer(const Command& command) override;
  uint32_t io_align() const override { return 1u << geometry_.block_shift; }
  Capabilities capabilities() const override;
  const char* kind() const override { return "nvme"; }
  void close() override;

  const NvmeGeometry& geometry() const { return geometry_; }

 private:
  int open_path(const char* path, const DeviceOptions& options, ErrorText* why);
  int identify(const char* path, ErrorText* why);
  void limit_as_block_device(uint64_t rdev);
  int take_as_scratch(const char* path, ErrorText* why);

  CallPool calls_;  // used if rings carry no NVMe commands
  NvmeGeometry geometry_;
  char block_path_[64] = {};                 // of the same namespace; "": there is none
  mutable std::atomic<uint32_t> probed_{0};  // cached capabilities(): see there
};

}  // namespace lunar
