// SPDX-License-Identifier: Apache-2.0
// The synchronous context: see sync_context.h.
// Threading: the owner's. May not: allocate after create, take a lock.
#include "superpipe/ring/sync_context.h"

#include <errno.h>
#include <poll.h>

#include <new>

#include "sys/arena.h"
#include "sys/file.h"
#include "sys/thread.h"

namespace lunar {
namespace {

constexpr unsigned kDepthMax = 4096;

}  // namespace

int serve_watches(WatchSet* watches, Response* out, unsigned max, int64_t timeout_ns) {
  int fds[WatchSet::kMax];
  unsigned index_of[WatchSet::kMax], count = 0;
  for (unsigned i = 0; i < WatchSet::kMax; ++i) {
    if (watches->watches[i].state == WatchSet::State::kFree) continue;
    index_of[count] = i;
    fds[count++] = watches->watches[i].fd;
  }
  uint64_t ready = 0;
  const int status = sys::poll_readable(fds, count, timeout_ns, &ready);
  if (status < 0) return status;
  unsigned taken = 0;
  for (unsigned i = 0; i < count && taken < max; ++i) {
    if (!(ready >> i & 1)) continue;
    out[taken++] = {watches->watches[index_of[i]].tag, POLLIN};
    watches->fired(index_of[i]);
  }
  return static_cast<int>(taken);
}

int SyncContext::create(const JoinedFiles& files, const ContextOptions& options,
                        OwnedContext** out) {
  if (options.depth == 0 || options.depth > kDepthMax) return -EINVAL;
  const size_t head = round_up(sizeof(SyncContext), 64);
  const size_t bytes = head + options.depth * sizeof(Response);
  auto* memory = static_cast<char*>(map_private(bytes, ForkPolicy::kInherit));
  if (!memory) return -ENOMEM;
  auto* context = new (memory) SyncContext;
  context->files_ = files;
  context->depth_ = options.depth;
  context->done_ = reinterpret_cast<Response*>(memory + head);
  context->mapping_bytes_ = bytes;
  *out = context;
  return 0;
}

int SyncContext::create(Device* device, const ContextOptions& options, OwnedContext** out) {
  const int status = create(JoinedFiles{}, options, out);
  if (status == 0) static_cast<SyncContext*>(*out)->device_ = device;
  return status;
}

void SyncContext::release() { unmap_private(this, mapping_bytes_); }

int64_t transfer_on(int fd, const JoinedFiles::Place& place, const Command& command) {
  const uint64_t at = place.data_offset + command.offset.value;
  const auto parts = static_cast<int>(command.iov_count);
  int64_t result = -EINVAL;
  do {
    switch (command.op) {
      case Op::kRead:
        result = sys::readv_at(fd, command.iov, parts, at);
        break;
      case Op::kWrite:
        result = sys::writev_at(fd, command.iov, parts, at, command.fua ? RWF_DSYNC : 0);
        break;
      case Op::kDiscard:  // the range must read as zeros, so a block device is punched as well
        result = place.keeps_space()
                     ? sys::zero_range(fd, at, command.length)
                     : sys::punch_hole(fd, at,
                                       place.discard_length(command.offset.value, command.length));
        break;
      case Op::kFlush:
        result = sys::sync_data(fd);
        break;
    }
  } while (result == -EINTR);
  return result;
}

int SyncContext::submit(const Command* commands, unsigned n) {
  unsigned taken = 0;
  for (; taken < n && count_ < depth_; ++taken) {
    const uint64_t start = commands[taken].op == Op::kRead ? sys::now_ns() : 0;
    const int64_t result =
        device_ ? device_->transfer(commands[taken]) : transfer_on(files_, commands[taken]);
    if (start) latency_.add(sys::now_ns() - start);
    done_[(first_ + count_) % depth_] = {commands[taken].tag, result};
    ++count_;
  }
  return taken || n == 0 ? static_cast<int>(taken) : -EAGAIN;
}

int SyncContext::reap(Response* out, unsigned max) {
  unsigned taken = 0;
  while (taken < max && count_) {
    out[taken++] = done_[first_];
    first_ = (first_ + 1) % depth_;
    --count_;
  }
  if (taken < max && watches_.used) {
    const int n = serve_watches(&watches_, out + taken, max - taken, 0);
    if (n > 0) taken += static_cast<unsigned>(n);
  }
  return static_cast<int>(taken);
}

int SyncContext::wait(Response* out, unsigned max, int64_t timeout_ns) {
  const int taken = reap(out, max);
  if (taken != 0 || max == 0 || watches_.used == 0) return taken;
  return serve_watches(&watches_, out, max, timeout_ns);
}

}  // namespace lunar
