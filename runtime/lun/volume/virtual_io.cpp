// SPDX-License-Identifier: Apache-2.0
// The data path of a virtual LUN: attach, detach and transfer(). See virtual_lun.h.
// Threading: transfer from any thread, without a lock. May not: allocate in transfer.
#include <errno.h>

#include "lun/volume/iovec_slices.h"
#include "lun/volume/virtual_impl.h"

namespace lunar {
namespace {

constexpr unsigned kVectorsMax = 256;

unsigned shared_count() {
  static std::atomic<unsigned> next{0};
  static constinit thread_local unsigned mine = UINT32_MAX;
  if (mine == UINT32_MAX) mine = next.fetch_add(1, std::memory_order_relaxed);
  return mine % ExtentMap::kSharedCounts;
}

}  // namespace

int VirtualLunImpl::attach(const ContextOptions& options, Context** out) {
  VirtualContext* context = nullptr;
  const int status = VirtualContext::create(base_, &map_, options, &context);
  if (status < 0) return status;
  know_process();
  list_.lock();
  context->next = contexts_;
  contexts_ = context;
  list_.unlock();
  context_count_.fetch_add(1, std::memory_order_relaxed);
  *out = context;
  return 0;
}

void VirtualLunImpl::detach(Context* context) {
  auto* mine = static_cast<VirtualContext*>(context);
  mine->settle_all();
  know_process();
  list_.lock();
  VirtualContext** link = &contexts_;
  while (*link && *link != mine) link = &(*link)->next;
  if (*link) *link = mine->next;
  list_.unlock();
  mine->release();
  context_count_.fetch_sub(1, std::memory_order_release);
}

// Carries out each run by a command of its own. Returns the bytes moved, up to the first short
// command; or the first error.
int64_t VirtualLunImpl::transfer_pieces(const Command& command, uint64_t length) {
  uint32_t at = 0;
  uint64_t within = 0, moved = 0;
  for (uint64_t done = 0; done < length;) {
    uint64_t run = 0;
    Command piece = command;
    piece.offset = DeviceOffset{map_.run(command.offset.value + done, length - done, &run)};
    piece.length = run;
    iovec slices[kVectorsMax];
    if (run < length && command.op != Op::kDiscard) {
      uint32_t room = kVectorsMax;
      run = vector_slice(command.iov, command.iov_count, &at, &within, run, slices, &room);
      piece.iov = slices;
      piece.iov_count = room;
    }
    const int64_t result = base_->transfer(piece);
    if (result < 0) return result;
    moved += static_cast<uint64_t>(result);
    if (command.op != Op::kDiscard && static_cast<uint64_t>(result) < run) break;
    done += run;
  }
  return static_cast<int64_t>(moved);
}

int64_t VirtualLunImpl::transfer(const Command& command) {
  if (command.op == Op::kFlush) return base_->transfer(command);
  uint64_t length = command.length;
  if (command.op != Op::kDiscard) {
    if (!command.iov || command.iov_count == 0 || command.iov_count > kVectorsMax) return -EINVAL;
    length = vector_bytes(command.iov, command.iov_count);
  }
  const uint64_t offset = command.offset.value;
  if (offset % io_align() || length % io_align()) return -EINVAL;
  sys::PhaseCount* count = &shared_[shared_count()];
  const unsigned phase = map_.phases().enter(count);
  const uint64_t limit = map_.limit();
  int64_t result = -EINVAL;
  if (offset <= limit && length <= limit - offset) result = transfer_pieces(command, length);
  sys::Phases::leave(count, phase);
  return result;
}

}  // namespace lunar
