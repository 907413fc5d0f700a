// SPDX-License-Identifier: Apache-2.0
// The common part of devices over several: see composite_context.h.
// Threading: adopt and close on one thread; the rest from any. Not for the fault path.
#include <errno.h>
#include <string.h>

#include <algorithm>

#include "lun/raid/composite_context.h"
#include "superpipe/device_memory.h"

namespace lunar {

void CompositeDevice::adopt(const char* name, Device* const* members, unsigned count) {
  name_ = name;
  count_ = count;
  for (unsigned i = 0; i < count; ++i) {
    member_[i] = members[i];
    if (members[i] && members[i]->io_align() > io_align_) io_align_ = members[i]->io_align();
  }
}

int CompositeDevice::check(const Command& command, uint64_t* bytes) const {
  uint64_t length = 0;
  switch (command.op) {
    case Op::kFlush:
      *bytes = 0;
      return 0;
    case Op::kDiscard:
      length = command.length;
      break;
    case Op::kRead:
    case Op::kWrite:
      if (command.iov_count > kCompositeVectorMax) return -EINVAL;
      for (uint32_t i = 0; i < command.iov_count; ++i) {
        if (command.iov[i].iov_len % io_align_ != 0 ||
            command.iov[i].iov_len > kCompositeCommandMax)
          return -EINVAL;
        length += command.iov[i].iov_len;
      }
      if (length > kCompositeCommandMax) return -EINVAL;
      break;
  }
  const uint64_t at = command.offset.value;
  if (at % io_align_ != 0 || length % io_align_ != 0 || at > size_bytes_ ||
      length > size_bytes_ - at)
    return -EINVAL;
  *bytes = length;
  return 0;
}

int CompositeDevice::attach(const ContextOptions& options, Context** out) {
  CompositeContext* context = nullptr;
  const int status = CompositeContext::create(this, options, &context);
  return attached(status, context, out);
}

void CompositeDevice::close() {
  check_detached();
  for (unsigned i = 0; i < count_; ++i) {
    device_close(member_[i]);
    member_[i] = nullptr;
  }
  device_free(this);
}

void CompositeDevice::forget() {
  for (unsigned i = 0; i < count_; ++i)
    if (member_[i]) member_[i]->forget();
  device_free(this);
}

Capabilities CompositeDevice::capabilities() const {
  Capabilities out;
  out.discard = out.window = out.polled = out.instant = true;
  out.transfer_bytes_max = kCompositeCommandMax;
  out.fua = Fua::kFree;
  for (unsigned i = 0; i < count_; ++i) {
    if (!member_[i]) continue;
    const Capabilities one = member_[i]->capabilities();
    out.discard &= one.discard;
    out.window &= one.window;
    out.polled &= one.polled;
    out.instant &= one.instant;
    out.persistent &= one.persistent;
    out.fua = std::max(out.fua, one.fua);  // the most expensive
    if (one.transfer_bytes_max < out.transfer_bytes_max)
      out.transfer_bytes_max = one.transfer_bytes_max;
    if (one.memory_align > out.memory_align) out.memory_align = one.memory_align;
  }
  return out;
}

unsigned CompositeDevice::fd_count() const {
  unsigned n = 0;
  for (unsigned i = 0; i < count_; ++i) n += member_[i] ? member_[i]->fd_count() : 0;
  return n;
}

Device* CompositeDevice::descriptor(unsigned i, unsigned* inner) const {
  for (unsigned m = 0; m < count_; ++m) {
    const unsigned n = member_[m] ? member_[m]->fd_count() : 0;
    if (i < n) {
      *inner = i;
      return member_[m];
    }
    i -= n;
  }
  return nullptr;
}

unsigned CompositeDevice::lock_count() const {
  for (unsigned m = 0; m < count_; ++m) {
    if (member_[m] && member_[m]->fd_count()) return member_[m]->lock_count();
  }
  return 0;
}

int CompositeDevice::fd(unsigned i) const {
  unsigned inner = 0;
  Device* device = descriptor(i, &inner);
  return device ? device->fd(inner) : -1;
}

void CompositeDevice::reopen(unsigned i, int fd) {
  unsigned inner = 0;
  if (Device* device = descriptor(i, &inner)) device->reopen(inner, fd);
}

int CompositeDevice::share_lock(unsigned i, int fd) {
  unsigned inner = 0;
  Device* device = descriptor(i, &inner);
  return device ? device->share_lock(inner, fd) : -EINVAL;
}

}  // namespace lunar
