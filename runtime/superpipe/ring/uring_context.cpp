// SPDX-License-Identifier: Apache-2.0
// Files and block devices by io_uring: see uring_context.h.
// May not: allocate after create, take a lock.
#include "superpipe/ring/uring_context.h"

#include <errno.h>

#include <new>

#include "superpipe/ring/sync_context.h"
#include "sys/arena.h"

namespace lunar {
int UringContext::create(const JoinedFiles& files, const ContextOptions& options,
                         OwnedContext** out) {
  static_assert(JoinedFiles::kMax <= kFilesMax);
  if (options.depth == 0 || options.depth > kDepthMax) return -EINVAL;
  const size_t head = round_up(sizeof(UringContext), 64),
               bytes = mapping_bytes(head, options.depth);
  auto* memory = static_cast<char*>(map_private(bytes, ForkPolicy::kInherit));
  if (!memory) return -ENOMEM;
  auto* context = new (memory) UringContext;
  for (unsigned i = 0; i < files.count; ++i) context->place_[i] = files.place[i];
  const int status = context->start(memory, head, files.files, files.count, options, false);
  if (status < 0) {
    unmap_private(memory, bytes);
    return status;
  }
  *out = context;
  return 0;
}

bool UringContext::queue(const Command& command, uint32_t index) {
  const int file = command.file;
  const uint64_t at = place_[file].data_offset + command.offset.value;
  switch (command.op) {
    case Op::kRead:
    case Op::kWrite: {
      const bool read = command.op == Op::kRead;
      const int flags = !read && command.fua ? RWF_DSYNC : 0;
      bool fixed = window_registered();
      if (command.iov_count == 1) {
        void* buffer = command.iov->iov_base;
        const auto bytes = static_cast<unsigned>(command.iov->iov_len);
        const int window = fixed && in_window(*command.iov) ? 0 : -1;
        return read ? ring_.queue_read(file, true, buffer, bytes, at, window, index)
                    : ring_.queue_write(file, true, buffer, bytes, at, window, index, flags);
      }
      fixed = fixed && ring_.fixed_vectors();
      for (uint32_t i = 0; fixed && i < command.iov_count; ++i) fixed = in_window(command.iov[i]);
      const int window = fixed ? 0 : -1;
      return read ? ring_.queue_readv(file, true, command.iov, command.iov_count, at, window, index)
                  : ring_.queue_writev(file, true, command.iov, command.iov_count, at, window,
                                       index, flags);
    }
    case Op::kDiscard:
      return ring_.queue_discard(file, true, at,
                                 place_[file].discard_length(command.offset.value, command.length),
                                 place_[file].keeps_space(), index);
    case Op::kFlush:
      return ring_.queue_fsync(file, true, index);
  }
  return false;
}

}  // namespace lunar
