// SPDX-License-Identifier: Apache-2.0
// The context on mapped memory: see pmem_context.h.
// May not: allocate after create, take a lock (but the pool's, for instructions), use a descriptor
// (but those watched).
#include "superpipe/pmem/pmem_context.h"

#include <errno.h>

#include <new>

#include "superpipe/pmem/pmem_device.h"
#include "sys/arena.h"

namespace lunar {

int PmemContext::create(PmemDevice* device, const ContextOptions& options, OwnedContext** out) {
  if (options.depth == 0 || options.depth > kDepthMax) return -EINVAL;
  const size_t head = round_up(sizeof(PmemContext), 64);
  auto* memory =
      static_cast<char*>(map_private(mapping_bytes(head, options.depth), ForkPolicy::kInherit));
  if (!memory) return -ENOMEM;
  auto* context = new (memory) PmemContext(device);
  context->start(memory, head, &device->pool(), options);
  *out = context;
  return 0;
}

int64_t PmemContext::carry_out(const Command& command, bool foreign) {
  return device_->carry_out(command, foreign);
}

bool PmemContext::delegates(uint64_t bytes) { return device_->delegates(bytes); }

}  // namespace lunar
