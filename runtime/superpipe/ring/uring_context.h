// SPDX-License-Identifier: Apache-2.0
// A context on one file or block device, or on several, by io_uring: see ring_context.h. Reads and
// writes whose memory is in the owner's registered window pin no pages (vectors too, from Linux
// 6.15 on).
// Threading: as RingContext.
#pragma once
#include "superpipe/ring/ring_context.h"

namespace lunar {

class UringContext final : public RingContext {
 public:
  // 0 or -errno.
  [[nodiscard]] static int create(const JoinedFiles& files, const ContextOptions& options,
                                  OwnedContext** out);

 private:
  UringContext() = default;
  bool queue(const Command& command, uint32_t index) override;

  JoinedFiles::Place place_[JoinedFiles::kMax];
};

}  // namespace lunar
