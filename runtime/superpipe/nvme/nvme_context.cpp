// SPDX-License-Identifier: Apache-2.0
// See nvme_context.h.
// May not: allocate after create, take a lock.
#include "superpipe/nvme/nvme_context.h"

#include <errno.h>

#include <new>

#include "sys/arena.h"

namespace lunar {

int NvmeContext::create(const DeviceFiles& files, const NvmeGeometry* geometry,
                        uint64_t data_offset, const char* name, const ContextOptions& options,
                        OwnedContext** out) {
  if (options.depth == 0 || options.depth > kDepthMax) return -ERANGE;
  const size_t object = round_up(sizeof(NvmeContext), 64);
  const size_t head = round_up(object + options.depth * sizeof(Piece), 64),
               bytes = mapping_bytes(head, options.depth);
  auto* memory = static_cast<char*>(map_private(bytes, ForkPolicy::kInherit));
  if (!memory) return -ENOMEM;
  auto* context = new (memory) NvmeContext;
  context->geometry_ = geometry;
  context->name_ = name;
  context->data_offset_ = data_offset;
  context->pieces_ = reinterpret_cast<Piece*>(memory + object);
  const DeviceFiles* const one = &files;
  const int status = context->start(memory, head, &one, 1, options, true);
  if (status < 0) {
    unmap_private(memory, bytes);
    return status;
  }
  *out = context;
  return 0;
}

bool NvmeContext::send(uint32_t index) {
  Piece& piece = pieces_[index];
  if (piece.check != 0) return ring_.queue_nop(index);
  sys::NvmeCommand command;
  nvme_piece(*geometry_, data_offset_, piece.command, &piece.progress, &command);
  piece.fixed = command.data && !command.vector &&
                in_window({const_cast<void*>(command.data), command.data_bytes});
  return ring_.queue_nvme(0, true, command, piece.fixed ? 0 : -1, index);
}

bool NvmeContext::queue(const Command& command, uint32_t index) {
  pieces_[index] = {command, {}, nvme_check(*geometry_, data_offset_, command), false};
  return send(index);
}

bool NvmeContext::finish(uint32_t index, int32_t completed, int64_t* result) {
  Piece& piece = pieces_[index];
  if (piece.check != 0) {
    *result = piece.check == kNothingToRead ? 0 : piece.check;
    return true;
  }
  // The kernel does not accept registered buffers for NVMe commands: go on without them.
  const bool refused =
      piece.fixed && !fixed_works_ && (completed == -EINVAL || completed == -EOPNOTSUPP);
  if (refused) {
    drop_window();
  } else if (completed != 0) {
    *result = nvme_failure(name_, piece.command, piece.progress, completed);
    return true;
  } else {
    fixed_works_ |= piece.fixed;
    if (nvme_advance(piece.command, &piece.progress)) {
      *result = piece.command.op == Op::kRead || piece.command.op == Op::kWrite
                    ? static_cast<int64_t>(piece.progress.done)
                    : 0;
      return true;
    }
  }
  if (send(index)) return false;  // the ring has an entry for every command
  *result = -EIO;
  return true;
}

}  // namespace lunar
