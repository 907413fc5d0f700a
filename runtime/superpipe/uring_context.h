// SPDX-License-Identifier: Apache-2.0
// A context on a file or block device by io_uring: see ring_context.h. Reads and writes whose memory lies in the owner's
// registered window pin nothing (vectors too, from Linux 6.15 on).
// Threading: as RingContext.
#pragma once
#include "superpipe/ring_context.h"

namespace lunar {

class UringContext final : public RingContext {
 public:
  // fd: the device's file, O_DIRECT. data_offset: where the device's offset 0 lies in it. keep: a discard leaves
  // the file its space. iopoll: the device was probed to
  // complete polled I/O (not for shared contexts: await could not sleep). sector: what the disk never tears. 0 or -errno.
  [[nodiscard]] static int create(const DeviceFiles& files, uint64_t data_offset, bool keep, const ContextOptions& options, OwnedContext** out,
                                  bool iopoll = false, uint32_t sector = 512);

 private:
  UringContext() = default;
  bool queue(const Command& command, uint32_t index) override;

  uint64_t data_offset_ = 0;
  bool keep_ = false;
  uint32_t sector_ = 512;
};

}  // namespace lunar
