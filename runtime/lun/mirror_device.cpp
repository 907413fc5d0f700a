// SPDX-License-Identifier: Apache-2.0
// The mirror's data path: see mirror_device.h. Copying: mirror_resync.cpp.
// Threading: as every device. start and child_done may not allocate or block; finish blocks after a failed write.
#include "lun/mirror_device.h"

#include <errno.h>
#include <limits.h>
#include <string.h>
#include <unistd.h>

#include "base/arena.h"
#include "base/format.h"
#include "base/log.h"

namespace lunar {
namespace {

constexpr uint64_t kRescueNs = 1'000'000'000;
constexpr uint64_t kBlockedNs = 50'000;

bool is_data(Op op) { return op == Op::kRead || op == Op::kWrite; }

Command on_member(const Command& command) {
  Command out = command;
  if (command.op != Op::kFlush) out.offset = DeviceOffset{kMemberDataOffset + command.offset.value};
  return out;
}

// Nothing was done to the medium.
bool refusal(int64_t error) { return error == -EINVAL || error == -EOPNOTSUPP || error == -EROFS || error == -EBADF; }

alignas(4096) constexpr char kZeros[64 * kKiB] = {};
constexpr uint32_t kZeroParts = 16;   // 1 MiB a write

}  // namespace

int MirrorDevice::open(const char* name, MemberSet* set, const char* const* uris, uint32_t missing, Format format, bool read_only,
                       Device** out, ErrorText* why) {
  auto* device = arena_new<MirrorDevice>();
  int status = device ? 0 : why->set(-ENOMEM, "LUN %s: out of memory", name);
  if (status == 0) status = device->state_.open(name, set, missing, format, read_only, why);
  if (status < 0) {
    for (Device*& member : set->device) {
      device_close(member);
      member = nullptr;
    }
    return status;
  }
  status = device->adopt(name, set->device, set->count);
  device->pid_ = static_cast<int>(getpid());
  device->read_only_ = read_only;
  device->size_bytes_ = device->state_.data_bytes();
  device->discard_ = device->capabilities().discard;
  for (unsigned i = 0; i < set->count; ++i) device->uri_[i] = uris[i];
  if (status == 0 && !read_only) {
    device->buffer_ = static_cast<char*>(map_private(2 * kMirrorRegionBytes, ForkPolicy::kDontFork));
    if (!device->buffer_) status = -ENOMEM;
    if (status == 0) {
      sys::ThreadSpec spec;
      spec.name = "lunar-mirror";
      spec.run = serve;
      spec.argument = device;
      spec.program_files = true;   // reopen() names descriptors of the program's table
      status = sys::thread_start(spec, &device->thread_);
      device->thread_runs_ = status == 0;
    }
  }
  if (status < 0) {
    device->close();
    return why->set(status, "LUN %s: cannot start its service thread: %s", name, errno_text(status));
  }
  *out = device;
  return 0;
}

void MirrorDevice::close() {
  if (thread_runs_ && static_cast<int>(getpid()) == pid_) {
    stop_.store(true, std::memory_order_seq_cst);
    MirrorShared& shared = state_.shared();
    shared.change.fetch_add(1, std::memory_order_seq_cst);
    sys::futex_wake(&shared.change, INT_MAX, true);
    sys::thread_join(thread_);
    thread_runs_ = false;
  }
  const uint64_t slot = transfer_slot_.load(std::memory_order_relaxed);
  if (slot && slot >> 32 == static_cast<uint64_t>(getpid())) state_.free_slot(static_cast<int>(slot & UINT32_MAX) - 1);
  if (buffer_ && static_cast<int>(getpid()) == pid_) unmap_private(buffer_, 2 * kMirrorRegionBytes);
  buffer_ = nullptr;
  state_.close();
  FanDevice::close();
}

int MirrorDevice::hold(unsigned i, int fd) {
  const int status = MirrorState::hold(fd);
  return status < 0 ? status : FanDevice::hold(i, fd);
}

int MirrorDevice::attached(FanContext* context) {
  if (read_only_) return 0;
  const int slot = state_.claim_slot();
  if (slot < 0) return -EMFILE;
  context->set_number(static_cast<uint32_t>(slot));
  return 0;
}

void MirrorDevice::detaching(FanContext* context) {
  if (!read_only_) state_.free_slot(static_cast<int>(context->number()));
}

uint32_t MirrorDevice::writable() const { return ((1u << count_) - 1) & ~state_.mask(CopyState::kFailed); }

unsigned MirrorDevice::reader(uint32_t tried) const {
  const uint32_t states = state_.states();
  uint32_t present = 0;
  for (unsigned i = 0; i < count_; ++i) present |= member_[i] ? 1u << i : 0;
  uint32_t left = state_.mask_of(states, CopyState::kInSync) & present & ~tried;
  if (left == 0) left = state_.mask_of(states, CopyState::kUnsure) & present & ~tried;
  return left ? static_cast<unsigned>(__builtin_ctz(left)) : count_;
}

int MirrorDevice::start(FanContext* context, FanParent* parent) {
  Command& command = parent->command;
  const int status = check(command, &parent->bytes);
  if (status < 0) return status;
  if (!context->room(count_, 0)) return -EAGAIN;
  if (command.op == Op::kRead) {
    if (parent->bytes == 0) return 0;
    const unsigned member = reader(0);
    if (member == count_) return -EIO;
    state_.counters(member).ios.fetch_add(1, std::memory_order_relaxed);
    context->add(parent, member, on_member(command), parent->bytes);
    return 0;
  }
  if (read_only_) return command.op == Op::kFlush ? 0 : -EROFS;
  if (command.op == Op::kDiscard && !discard_) return -EOPNOTSUPP;
  if (command.op != Op::kFlush) {
    if (parent->bytes == 0) return 0;
    if (!state_.begin_write(static_cast<int>(context->number()), command.offset.value, parent->bytes)) {
      const uint64_t now = sys::now_ns();
      if (parent->since_ns == 0) parent->since_ns = now;
      if (now - parent->since_ns > kRescueNs) {
        parent->since_ns = now;
        state_.rescue();
      }
      return -EBUSY;
    }
    parent->held = true;
  }
  const uint32_t targets = writable();   // read after begin_write: see mirror_state.h
  for (unsigned i = 0; i < count_; ++i) {
    if (!(targets >> i & 1)) continue;
    state_.counters(i).ios.fetch_add(1, std::memory_order_relaxed);
    context->add(parent, i, on_member(command), is_data(command.op) ? parent->bytes : 0);
  }
  return 0;
}

bool MirrorDevice::child_done(FanContext* context, FanParent* parent, FanChild* child, int64_t result) {
  const uint32_t bit = 1u << child->member;
  const bool good = result >= 0 && static_cast<uint64_t>(result) >= child->bytes;
  if (!good) state_.counters(child->member).errors.fetch_add(1, std::memory_order_relaxed);
  if (parent->command.op == Op::kRead) {
    parent->tried |= bit;
    parent->result = result;
    if (good) {
      if (parent->bad) want_repair(parent->bad, parent->command.offset.value, parent->bytes);
      return false;
    }
    parent->bad |= bit;
    const unsigned next = reader(parent->tried);
    if (next == count_) return false;
    state_.counters(child->member).failovers.fetch_add(1, std::memory_order_relaxed);
    state_.counters(next).ios.fetch_add(1, std::memory_order_relaxed);
    context->resend(child, next);
    return true;
  }
  Outcome outcome = {parent->good, parent->bad, parent->tried, parent->result};   // `tried` has those that refused
  outcome.add(bit, good, result);
  parent->good = outcome.good;
  parent->bad = outcome.bad;
  parent->tried = outcome.refused;
  parent->result = outcome.error;
  return false;
}

void MirrorDevice::Outcome::add(uint32_t bit, bool took, int64_t result) {
  if (took) {
    good |= bit;
    return;
  }
  const int64_t one = result < 0 ? result : -EIO;
  bad |= bit;
  if (refusal(one)) refused |= bit;
  if (error == 0 || !refusal(one)) error = one;
}

// What a member that cannot discard does instead. Blocks.
bool MirrorDevice::write_zeros(unsigned member, uint64_t offset, uint64_t length) {
  iovec parts[kZeroParts];
  for (uint64_t done = 0; done < length;) {
    Command command;
    command.op = Op::kWrite;
    command.offset = DeviceOffset{kMemberDataOffset + offset + done};
    command.iov = parts;
    uint64_t bytes = 0;
    for (uint64_t left; command.iov_count < kZeroParts && (left = length - done - bytes) != 0; ++command.iov_count) {
      const uint64_t part = left < sizeof kZeros ? left : sizeof kZeros;
      parts[command.iov_count] = {const_cast<char*>(kZeros), part};
      bytes += part;
    }
    if (!member_[member] || member_[member]->transfer(command) != static_cast<int64_t>(bytes)) return false;
    done += bytes;
  }
  return true;
}

// The answer to a write or flush that all have answered. Blocks when one failed.
int64_t MirrorDevice::settle_write(const Command& command, uint64_t length, Outcome outcome) {
  auto [good, bad, refused, error] = outcome;
  const int64_t bytes = is_data(command.op) ? static_cast<int64_t>(length) : 0;
  for (unsigned i = 0; command.op == Op::kDiscard && good && i < count_; ++i) {
    const uint32_t bit = 1u << i;
    if (!(refused & bit) || !write_zeros(i, command.offset.value, length)) continue;
    good |= bit;
    bad &= ~bit;
  }
  if (bad == 0 && good) return bytes;
  if (good && state_.fail(bad, good) == 0) return bytes;
  // Nobody in sync has it: an error, and from now on what the preferred one holds there is what counts.
  const unsigned preferred = reader(0);
  const uint32_t others = (good | bad) & ~(1u << preferred);
  if (preferred < count_ && others && (good || !refusal(error))) (void)state_.fail(others, 1u << preferred);
  if (command.op == Op::kDiscard && good == 0 && refusal(error)) return -EOPNOTSUPP;
  return error ? error : -EIO;
}

void MirrorDevice::finish(FanContext* context, FanParent* parent) {
  const Command& command = parent->command;
  if (command.op == Op::kRead) return;
  if (read_only_ || (command.op != Op::kFlush && parent->bytes == 0)) return;
  parent->result = settle_write(command, parent->bytes, {parent->good, parent->bad, parent->tried, parent->result});
  if (parent->held) state_.end_write(static_cast<int>(context->number()), command.offset.value, parent->bytes);
  parent->held = false;
}

// ---- the blocking way ----

// This process' slot for transfers; a forked child takes one of its own.
int MirrorDevice::transfer_slot() {
  const auto pid = static_cast<uint64_t>(getpid());
  for (;;) {
    uint64_t held = transfer_slot_.load(std::memory_order_acquire);
    if (held >> 32 == pid) return static_cast<int>(held & UINT32_MAX) - 1;
    const int slot = state_.claim_slot();
    if (slot < 0) return -1;
    if (transfer_slot_.compare_exchange_strong(held, pid << 32 | static_cast<uint64_t>(slot + 1), std::memory_order_acq_rel)) return slot;
    state_.free_slot(slot);
  }
}

int64_t MirrorDevice::read_now(const Command& command, uint64_t bytes) {
  uint32_t tried = 0;
  int64_t result = -EIO;
  for (unsigned member; (member = reader(tried)) < count_; tried |= 1u << member) {
    state_.counters(member).ios.fetch_add(1, std::memory_order_relaxed);
    if (tried) state_.counters(__builtin_ctz(tried)).failovers.fetch_add(1, std::memory_order_relaxed);
    result = member_[member]->transfer(on_member(command));
    if (result >= 0 && static_cast<uint64_t>(result) == bytes) {
      if (tried) want_repair(tried, command.offset.value, bytes);
      return result;
    }
    state_.counters(member).errors.fetch_add(1, std::memory_order_relaxed);
  }
  return result;
}

int64_t MirrorDevice::write_now(const Command& command, uint64_t bytes) {
  int slot = -1;
  if (command.op != Op::kFlush) {
    slot = transfer_slot();
    if (slot < 0) return -EMFILE;
    for (uint64_t start = 0; !state_.begin_write(slot, command.offset.value, bytes);) {
      const uint64_t now = sys::now_ns();
      if (start == 0) start = now;
      if (now - start > kRescueNs) {
        start = now;
        state_.rescue();
      }
      sys::sleep_ns(kBlockedNs);
    }
  }
  const uint32_t targets = writable();
  Outcome outcome;
  for (unsigned i = 0; i < count_; ++i) {
    if (!(targets >> i & 1)) continue;
    state_.counters(i).ios.fetch_add(1, std::memory_order_relaxed);
    const int64_t one = member_[i] ? member_[i]->transfer(on_member(command)) : -ENXIO;
    const bool good = one >= 0 && (!is_data(command.op) || static_cast<uint64_t>(one) == bytes);
    outcome.add(1u << i, good, one);
    if (!good) state_.counters(i).errors.fetch_add(1, std::memory_order_relaxed);
  }
  const int64_t result = settle_write(command, bytes, outcome);
  if (slot >= 0) state_.end_write(slot, command.offset.value, bytes);
  return result;
}

int64_t MirrorDevice::transfer(const Command& command) {
  uint64_t bytes = 0;
  const int status = check(command, &bytes);
  if (status < 0) return status;
  if (command.op == Op::kRead) return bytes ? read_now(command, bytes) : 0;
  if (read_only_) return command.op == Op::kFlush ? 0 : -EROFS;
  if (command.op == Op::kDiscard && !discard_) return -EOPNOTSUPP;
  if (command.op != Op::kFlush && bytes == 0) return 0;
  return write_now(command, bytes);
}

int MirrorDevice::reserve(DeviceOffset offset, uint64_t length) {
  if (offset.value > size_bytes_ || length > size_bytes_ - offset.value) return -ENOSPC;
  const uint32_t targets = writable();
  for (unsigned i = 0; i < count_; ++i) {
    if (!(targets >> i & 1) || !member_[i]) continue;
    const int status = member_[i]->reserve(DeviceOffset{kMemberDataOffset + offset.value}, length);
    if (status < 0) return status;
  }
  return 0;
}

void MirrorDevice::release(DeviceOffset offset, uint64_t length) {
  if (!discard_) return;   // a member that gives zeros and one that does not would differ
  Command command;
  command.op = Op::kDiscard;
  command.offset = offset;
  command.length = length;
  (void)transfer(command);
}

void MirrorDevice::describe(unsigned member, PathInfo* out) const {
  const MirrorCounters& one = const_cast<MirrorState&>(state_).counters(member);
  switch (state_.state(member)) {
    case CopyState::kInSync: out->status = "Enabled"; break;
    case CopyState::kStale:
    case CopyState::kUnsure: out->status = "Stale"; break;
    case CopyState::kFailed: out->status = member_[member] ? "Failed" : "Missing"; break;
  }
  out->primary = reader(0) == member;
  out->ios = one.ios.load(std::memory_order_relaxed);
  out->errors = one.errors.load(std::memory_order_relaxed);
  out->failovers = one.failovers.load(std::memory_order_relaxed);
  path_named(out, uri_[member]);
}

}  // namespace lunar
