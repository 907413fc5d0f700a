// SPDX-License-Identifier: Apache-2.0
// A context on an NVMe namespace: NVMe commands as entries of a ring (IORING_OP_URING_CMD), without
// the block layer. A command that is larger than the controller accepts is sent in pieces, one
// after the other. See ring_context.h. Threading: as RingContext.
#pragma once
#include "superpipe/nvme/nvme_command.h"
#include "superpipe/ring/ring_context.h"

namespace lunar {

class NvmeContext final : public RingContext {
 public:
  // geometry, name: belong to the device and outlive the context. 0 or -errno (-EINVAL, -ENOSYS:
  // rings do not carry NVMe commands).
  [[nodiscard]] static int create(const DeviceFiles& files, const NvmeGeometry* geometry,
                                  uint64_t data_offset, const char* name,
                                  const ContextOptions& options, OwnedContext** out);

 private:
  struct Piece {
    Command command;
    NvmeProgress progress;
    int check;   // result of nvme_check
    bool fixed;  // sent with the registered window
  };
  NvmeContext() = default;
  bool queue(const Command& command, uint32_t index) override;
  bool finish(uint32_t index, int32_t completed, int64_t* result) override;
  bool send(uint32_t index);

  const NvmeGeometry* geometry_ = nullptr;
  const char* name_ = nullptr;
  Piece* pieces_ = nullptr;  // indexed by in-flight command
  uint64_t data_offset_ = 0;
  bool fixed_works_ = false;  // a command with the window succeeded (needs Linux 6.1)
};

}  // namespace lunar
