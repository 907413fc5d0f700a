// SPDX-License-Identifier: Apache-2.0
// The stripe: see stripe_device.h.
// Threading: as every device. start, child_done and finish run on the data path: they may not
// allocate or block.
#include "lun/raid/stripe_device.h"

#include <errno.h>

#include <algorithm>

#include "base/host_guard.h"
#include "base/units.h"
#include "superpipe/device_memory.h"
#include "sys/thread.h"

namespace lunar {

int StripeDevice::create(const char* name, Device* const* members, unsigned count,
                         uint64_t data_offset, uint64_t member_bytes, Device** out, ErrorText* why,
                         uint64_t chunk_bytes) {
  const char* kept = nullptr;
  auto* device = device_new<StripeDevice>(name, &kept);
  const uint64_t each = round_down(member_bytes, chunk_bytes);
  int status = 0;
  if (!device)
    status = why->set(-ENOMEM, "LUN %s: out of memory", name);
  else if (each == 0)
    status = why->set(-ENOSPC,
                      "LUN %s: the smallest member has no room for a chunk of %s; give larger ones",
                      name, format_size(chunk_bytes).text);
  if (status < 0) {
    for (unsigned i = 0; i < count; ++i) device_close(members[i]);
    device_free(device);
    return status;
  }
  device->adopt(kept, members, count);
  device->data_offset_ = data_offset;
  device->chunk_bytes_ = chunk_bytes;
  device->size_bytes_ = each * count;
  device->growable_ = true;
  for (unsigned i = 0; i < count; ++i) device->growable_ &= members[i]->growable();
  *out = device;
  return 0;
}

void StripeDevice::piece_of(unsigned member, uint64_t offset, uint64_t length, uint64_t* at,
                            uint64_t* bytes) const {
  // The number of bytes of [0, x) that lie on the member.
  const auto before = [&](uint64_t x) {
    const uint64_t row = chunk_bytes_ * count_, whole = x / row * chunk_bytes_, rest = x % row;
    const uint64_t first = member * chunk_bytes_;
    return whole + (rest <= first ? 0 : std::min(rest - first, chunk_bytes_));
  };
  const uint64_t from = before(offset), to = before(offset + length);
  *at = data_offset_ + from;
  *bytes = to - from;
}

int StripeDevice::start(CompositeContext* context, CompositeParent* parent) {
  const Command& command = parent->command;
  const int status = check(command, &parent->bytes);
  if (status < 0) return status;
  const uint64_t at = command.offset.value, bytes = parent->bytes;
  if (command.op == Op::kFlush || command.op == Op::kDiscard) {
    if (!context->room(count_, 0)) return -EAGAIN;
    for (unsigned i = 0; i < count_; ++i) {
      Command child = command;
      uint64_t place = 0;
      if (command.op == Op::kDiscard) {
        piece_of(i, at, bytes, &place, &child.length);
        if (child.length == 0) continue;
        child.offset = DeviceOffset{place};
      }
      context->add(parent, i, child, 0);
    }
    return 0;
  }
  if (bytes == 0) return 0;
  const uint64_t chunk = at / chunk_bytes_, last = (at + bytes - 1) / chunk_bytes_;
  if (chunk == last) {  // the usual case, with the caller's own vector
    if (!context->room(1, 0)) return -EAGAIN;
    Command child = command;
    child.offset = DeviceOffset{data_offset_ + chunk / count_ * chunk_bytes_ + at % chunk_bytes_};
    context->add(parent, static_cast<unsigned>(chunk % count_), child, bytes);
    return 0;
  }
  const auto chunks = static_cast<unsigned>(last - chunk + 1);
  const unsigned most =
      std::min(chunks, count_) + (command.iov_count + chunks) / kCompositeVectorMax;
  if (!context->room(most, most)) return -EAGAIN;
  start_large(context, parent);
  return 0;
}

void StripeDevice::start_large(CompositeContext* context, CompositeParent* parent) {
  const Command& command = parent->command;
  CompositeChild* open[kCompositeMembersMax] = {};
  uint64_t at = command.offset.value;
  for (uint32_t i = 0; i < command.iov_count; ++i) {
    auto* base = static_cast<char*>(command.iov[i].iov_base);
    for (size_t left = command.iov[i].iov_len; left;) {
      const uint64_t chunk = at / chunk_bytes_, within = at % chunk_bytes_;
      const size_t part = std::min(left, chunk_bytes_ - within);
      const auto member = static_cast<unsigned>(chunk % count_);
      CompositeChild*& child = open[member];
      if (!child || child->command.iov_count == kCompositeVectorMax) {
        Command next = command;
        next.offset = DeviceOffset{data_offset_ + chunk / count_ * chunk_bytes_ + within};
        next.iov = nullptr;
        next.iov_count = 0;
        child = context->add(parent, member, next, 0);
      }
      context->append(child, base, part);
      base += part;
      at += part;
      left -= part;
    }
  }
}

bool StripeDevice::child_done(CompositeContext*, CompositeParent* parent, CompositeChild* child,
                              int64_t result) {
  if (result < 0)
    parent->result = result;
  else if (static_cast<uint64_t>(result) != child->bytes && parent->result == 0)
    parent->result = -EIO;  // a short count
  return false;
}

void StripeDevice::finish(CompositeContext*, CompositeParent* parent) {
  const bool data = parent->command.op == Op::kRead || parent->command.op == Op::kWrite;
  if (parent->result == 0 && data) parent->result = static_cast<int64_t>(parent->bytes);
}

// Carries out a command on one member after the other. pre: the command was checked.
int64_t StripeDevice::transfer_in_turn(const Command& command, uint64_t bytes) {
  if (command.op == Op::kFlush || command.op == Op::kDiscard) {
    int64_t result = 0;
    for (unsigned i = 0; i < count_; ++i) {
      Command child = command;
      uint64_t place = 0;
      if (command.op == Op::kDiscard) {
        piece_of(i, command.offset.value, bytes, &place, &child.length);
        if (child.length == 0) continue;
        child.offset = DeviceOffset{place};
      }
      const int64_t one = member_[i]->transfer(child);
      if (one < 0) result = one;
    }
    return result;
  }
  uint64_t at = command.offset.value;
  uint32_t entry = 0;
  size_t used = 0;  // of the entry
  uint64_t left = bytes;
  while (left != 0) {  // one chunk of the vector at a time
    const uint64_t chunk = at / chunk_bytes_, within = at % chunk_bytes_;
    iovec parts[16];
    uint32_t n = 0;
    uint64_t sum = 0;
    const uint64_t room = std::min(left, chunk_bytes_ - within);
    while (n < 16 && sum < room) {
      const iovec& from = command.iov[entry];
      const size_t part = std::min(from.iov_len - used, room - sum);
      if (part) parts[n++] = {static_cast<char*>(from.iov_base) + used, part};
      sum += part;
      used += part;
      if (used == from.iov_len) {
        ++entry;
        used = 0;
      }
    }
    Command child = command;
    child.offset = DeviceOffset{data_offset_ + chunk / count_ * chunk_bytes_ + within};
    child.iov = parts;
    child.iov_count = n;
    const int64_t one = member_[chunk % count_]->transfer(child);
    if (one < 0) return one;
    if (static_cast<uint64_t>(one) != sum) return -EIO;
    at += sum;
    left -= sum;
  }
  return static_cast<int64_t>(bytes);
}

// A command within one chunk goes to its member. A command that spans several goes to all of them
// at once, if a context is available. A thread that may serve a fault attaches no context.
int64_t StripeDevice::transfer(const Command& command) {
  uint64_t bytes = 0;
  const int status = check(command, &bytes);
  if (status < 0) return status;
  const bool data = command.op == Op::kRead || command.op == Op::kWrite;
  const uint64_t at = command.offset.value, chunk = at / chunk_bytes_, within = at % chunk_bytes_;
  if (data && bytes == 0) return 0;
  if (!data || bytes > chunk_bytes_ - within) {
    int64_t result = 0;
    if (!HostGuard::active() && !sys::in_service_thread() && pool_.transfer(this, command, &result))
      return result;
    return transfer_in_turn(command, bytes);
  }
  Command child = command;
  child.offset = DeviceOffset{data_offset_ + chunk / count_ * chunk_bytes_ + within};
  return member_[chunk % count_]->transfer(child);
}

void StripeDevice::close() {
  pool_.close(this);
  CompositeDevice::close();
}

void StripeDevice::forget() {
  pool_.close(this);  // its contexts belong to the parent
  CompositeDevice::forget();
}

int StripeDevice::reserve(DeviceOffset offset, uint64_t length) {
  if (offset.value > size_bytes_ || length > size_bytes_ - offset.value) return -ENOSPC;
  for (unsigned i = 0; i < count_; ++i) {
    uint64_t at = 0, bytes = 0;
    piece_of(i, offset.value, length, &at, &bytes);
    if (bytes == 0) continue;
    const int status = member_[i]->reserve(DeviceOffset{at}, bytes);
    if (status < 0) return status;
  }
  return 0;
}

void StripeDevice::release(DeviceOffset offset, uint64_t length) {
  if (offset.value > size_bytes_ || length > size_bytes_ - offset.value) return;
  for (unsigned i = 0; i < count_; ++i) {
    uint64_t at = 0, bytes = 0;
    piece_of(i, offset.value, length, &at, &bytes);
    if (bytes) member_[i]->release(DeviceOffset{at}, bytes);
  }
}

}  // namespace lunar
