// SPDX-License-Identifier: Apache-2.0
// A context on mapped memory: an I/O is a copy, made by the first thread that takes it. See
// delegate_context.h.
#pragma once
#include "superpipe/ring/delegate_context.h"

namespace lunar {

class PmemDevice;

class PmemContext final : public DelegateContext {
 public:
  [[nodiscard]] static int create(PmemDevice* device, const ContextOptions& options,
                                  OwnedContext** out);

 private:
  explicit PmemContext(PmemDevice* device) : DelegateContext({true, 8, 20'000}), device_(device) {}
  int64_t carry_out(const Command& command, bool foreign) override;
  bool delegates(uint64_t bytes) override;

  PmemDevice* const device_;
};

}  // namespace lunar
