// SPDX-License-Identifier: Apache-2.0
// A context of a virtual LUN: see virtual_context.h.
// Threading: the owner's. May not: allocate after create, take a lock.
#include "lun/volume/virtual_context.h"

#include <errno.h>

#include <algorithm>
#include <bit>
#include <new>

#include "lun/volume/iovec_slices.h"
#include "sys/arena.h"
#include "sys/thread.h"

namespace lunar {
namespace {

constexpr uint64_t kWatchFlag = uint64_t{1} << 63;
constexpr unsigned kDepthMax = 4096, kVectorsMax = 256;
// The longest sleep of await() while pieces wait for room in the base.
constexpr int64_t kStalledNs = 100'000;
// The slices of a split, enough for a command of 16 MiB over extents of 64 KiB.
constexpr uint32_t kSliceRoom = 2 * kVectorsMax + 2;

constexpr uint64_t low_bits(unsigned n) { return n == 64 ? ~uint64_t{0} : (uint64_t{1} << n) - 1; }

}  // namespace

int VirtualContext::create(Device* base, ExtentMap* map, const ContextOptions& options,
                           VirtualContext** out) {
  if (options.depth == 0 || options.depth > kDepthMax) return -EINVAL;
  const unsigned depth = options.depth, splits = std::min(depth, kSplitsMax);
  size_t bytes = 0;
  const auto part = [&](size_t size) {
    const size_t at = bytes;
    bytes += round_up(size, 64);
    return at;
  };
  part(sizeof(VirtualContext));
  const size_t entries = part(depth * sizeof(InFlight)), stack = part(depth * sizeof(uint16_t)),
               ready = part(depth * sizeof(uint16_t));
  const size_t splits_at = part(splits * sizeof(Split)),
               slices = part(splits * kSliceRoom * sizeof(iovec));
  bytes = round_up(bytes, 4096);
  auto* memory = static_cast<char*>(map_private(bytes, ForkPolicy::kInherit));
  if (!memory) return -ENOMEM;
  auto* context = new (memory) VirtualContext;
  context->device_ = base;
  context->map_ = map;
  context->depth_ = depth;
  context->mapping_bytes_ = bytes;
  context->entries_ = reinterpret_cast<InFlight*>(memory + entries);
  context->free_entries_ = reinterpret_cast<uint16_t*>(memory + stack);
  context->ready_ = reinterpret_cast<uint16_t*>(memory + ready);
  context->splits_ = reinterpret_cast<Split*>(memory + splits_at);
  context->free_splits_ = low_bits(splits);
  for (unsigned i = 0; i < depth; ++i)
    context->free_entries_[i] = static_cast<uint16_t>(depth - 1 - i);
  for (unsigned i = 0; i < splits; ++i)
    context->splits_[i].slices = reinterpret_cast<iovec*>(memory + slices) + i * kSliceRoom;
  ContextOptions wanted = options;
  wanted.depth = std::min(depth + splits, kDepthMax);
  const int status = base->attach(wanted, &context->base_);
  if (status < 0)
    unmap_private(memory, bytes);
  else
    *out = context;
  return status;
}

void VirtualContext::release() {
  drain();
  device_->detach(base_);
  unmap_private(this, mapping_bytes_);
}

uint16_t VirtualContext::open_entry(const Command& command, uint64_t length, unsigned phase) {
  const uint16_t index = free_entries_[depth_ - in_flight_ - 1];
  ++in_flight_;
  entries_[index] = {command.tag, command.offset.value,        length, 0,
                     command.iov, command.iov_count,           0,      kNone,
                     command.op,  static_cast<uint8_t>(phase), false,  command.fua};
  return index;
}

// Answers a command that does not go to the base. Its response waits in the ready ring.
void VirtualContext::answer(const Command& command, int64_t result) {
  const uint16_t index = open_entry(command, 0, map_->phases().enter(&phase_count_));
  entries_[index].result = result;
  entries_[index].finished = true;
  make_ready(index);
}

void VirtualContext::make_ready(uint16_t index) {
  const unsigned count = ready_count_.load(std::memory_order_relaxed);
  ready_[(ready_first_ + count) % depth_] = index;
  ready_count_.store(count + 1, std::memory_order_release);
}

// 0, with the bytes that the command moves in *length; otherwise the error for its response.
int VirtualContext::examine(const Command& command, uint64_t* length) const {
  *length = command.length;
  if (command.op == Op::kFlush) return 0;
  if (command.op != Op::kDiscard) {
    if (!command.iov || command.iov_count == 0 || command.iov_count > kVectorsMax) return -EINVAL;
    *length = vector_bytes(command.iov, command.iov_count);
  }
  const uint64_t align = device_->io_align();
  return command.offset.value % align || *length % align ? -EINVAL : 0;
}

// Opens the entry of a command that goes to the base. *out: the whole command, if it is not split.
VirtualContext::Start VirtualContext::start(const Command& command, uint64_t length, Command* out) {
  const unsigned phase = map_->phases().enter(&phase_count_);
  *out = command;
  const bool flush = command.op == Op::kFlush;
  const uint64_t limit = map_->limit(), offset = command.offset.value;
  if (!flush && (offset > limit || length > limit - offset || length == 0)) {
    sys::Phases::leave(&phase_count_, phase);
    return length == 0 && offset <= limit ? Start::kNothing : Start::kOutside;
  }
  uint64_t run = length;
  if (!flush) out->offset = DeviceOffset{map_->run(offset, length, &run)};
  const bool split = run < length;
  if (split && !free_splits_) {
    sys::Phases::leave(&phase_count_, phase);
    return Start::kFull;
  }
  const uint16_t index = open_entry(command, length, phase);
  InFlight& entry = entries_[index];
  out->tag = index;
  if (!split) {
    entry.finished = true;
    entry.pieces = 1;
    return Start::kWhole;
  }
  const auto slot = static_cast<unsigned>(std::countr_zero(free_splits_));
  free_splits_ &= ~(uint64_t{1} << slot);
  pumping_ |= uint64_t{1} << slot;
  entry.split = static_cast<uint16_t>(slot);
  Split& pieces = splits_[slot];
  pieces = {0, 0, 0, index, pieces.slices, 0};
  return Start::kSplit;
}

void VirtualContext::close_entry(uint16_t index) {
  InFlight& entry = entries_[index];
  if (entry.split != kNone) free_splits_ |= uint64_t{1} << entry.split;
  sys::Phases::leave(&phase_count_, entry.phase);
  free_entries_[depth_ - in_flight_] = index;
  --in_flight_;
}

int VirtualContext::submit(const Command* commands, unsigned n) {
  Command batch[kBatch];
  unsigned queued = 0, taken = 0;
  int status = 0;
  bool full = false;
  const auto hand_on = [&] {
    if (queued == 0) return;
    status = base_->submit(batch, queued);
    const unsigned done = status < 0 ? 0 : static_cast<unsigned>(status);
    full |= done < queued;
    // Commands that the base did not accept are forgotten.
    for (unsigned i = queued; i > done; --i) close_entry(static_cast<uint16_t>(batch[i - 1].tag));
    taken += done;
    queued = 0;
  };
  pump();
  for (unsigned i = 0; i < n && !full; ++i) {
    if (in_flight_ == depth_) break;
    uint64_t length = 0;
    const int fault = examine(commands[i], &length);
    const Start started = fault < 0 ? Start::kOutside : start(commands[i], length, &batch[queued]);
    if (started == Start::kFull) break;
    if (started == Start::kWhole) {
      if (++queued == kBatch) hand_on();
      continue;
    }
    // The accepted commands must be a prefix, so queued commands are submitted before this one.
    const uint16_t split =
        started == Start::kSplit ? static_cast<uint16_t>(batch[queued].tag) : kNone;
    hand_on();
    if (full) {
      if (split != kNone) {
        pumping_ &= ~(uint64_t{1} << entries_[split].split);
        close_entry(split);
      }
      break;
    }
    if (split != kNone)
      (void)pump_split(entries_[split].split);
    else
      answer(commands[i], started == Start::kNothing ? 0 : -EINVAL);
    ++taken;
  }
  hand_on();
  stalled_.store(pumping_ != 0, std::memory_order_relaxed);
  if (taken || n == 0) return static_cast<int>(taken);
  return status < 0 ? status : -EAGAIN;
}

// Makes the next piece of a split, up to the end of a run. False: all its slices are in use.
bool VirtualContext::next_piece(Split& split, Command* out) {
  const InFlight& entry = entries_[split.entry];
  if (entry.pieces == 0) split.used = 0;
  uint64_t run = 0;
  out->op = entry.op;
  out->tag = split.entry;
  out->fua = entry.fua;
  out->offset = DeviceOffset{map_->run(entry.offset + split.done, entry.length - split.done, &run)};
  out->length = run;
  if (entry.op == Op::kDiscard) {
    split.done += run;
    return true;
  }
  uint32_t room = kSliceRoom - split.used, at = split.iov_at;
  uint64_t within = split.iov_done;
  iovec* slices = split.slices + split.used;
  // Tried again when pieces in flight are complete.
  if (vector_slice(entry.iov, entry.iov_count, &at, &within, run, slices, &room) < run)
    return false;
  out->iov = slices;
  out->iov_count = room;
  split.used += room;
  split.iov_at = at;
  split.iov_done = within;
  split.done += run;
  return true;
}

// Submits the pieces of a split to the base. False: the base accepts no more.
bool VirtualContext::pump_split(unsigned index) {
  Split& split = splits_[index];
  InFlight& entry = entries_[split.entry];
  while (!entry.finished) {
    const Split before = split;
    Command piece;
    if (!next_piece(split, &piece)) return true;
    const int status = base_->submit(&piece, 1);
    if (status == 1) {
      ++entry.pieces;
      entry.finished = split.done == entry.length;
      continue;
    }
    split = before;
    if (base_->in_flight() != 0) return false;
    // The base accepts nothing although it is idle.
    if (entry.result >= 0) entry.result = status < 0 ? status : -EIO;
    entry.finished = true;
    make_ready(split.entry);
  }
  pumping_ &= ~(uint64_t{1} << index);
  return true;
}

void VirtualContext::pump() {
  for (uint64_t left = pumping_; left; left &= left - 1) {
    if (!pump_split(static_cast<unsigned>(std::countr_zero(left)))) return;
  }
}

void VirtualContext::finish(uint16_t index, Response* out) {
  const InFlight& entry = entries_[index];
  *out = {entry.tag, entry.result};
  close_entry(index);
}

// Takes responses of the base. Returns the responses of commands that are complete.
unsigned VirtualContext::settle(const Response* from, unsigned n, Response* out) {
  unsigned taken = 0;
  for (unsigned i = 0; i < n; ++i) {
    if (from[i].tag & kWatchFlag) {
      Watch& watch = watches_[from[i].tag & ~kWatchFlag];
      watch.armed = false;
      --watching_;
      out[taken++] = {watch.tag, from[i].result};
      continue;
    }
    const auto index = static_cast<uint16_t>(from[i].tag);
    InFlight& entry = entries_[index];
    --entry.pieces;
    if (from[i].result < 0) {
      if (entry.result >= 0) entry.result = from[i].result;
      // Drops its other pieces.
      if (!entry.finished) pumping_ &= ~(uint64_t{1} << entry.split);
      entry.finished = true;
    } else if (entry.result >= 0) {
      entry.result += from[i].result;
    }
    if (entry.finished && entry.pieces == 0) finish(index, &out[taken++]);
  }
  return taken;
}

unsigned VirtualContext::take_ready(Response* out, unsigned max) {
  unsigned taken = 0;
  while (taken < max && ready_count_.load(std::memory_order_relaxed)) {
    const uint16_t index = ready_[ready_first_];
    ready_first_ = (ready_first_ + 1) % depth_;
    ready_count_.fetch_sub(1, std::memory_order_relaxed);
    finish(index, &out[taken++]);
  }
  return taken;
}

int VirtualContext::reap(Response* out, unsigned max) {
  if (pumping_) pump();
  unsigned taken = take_ready(out, max);
  Response from[kBatch];
  while (taken < max) {
    const unsigned room = std::min(max - taken, kBatch);
    const int n = base_->reap(from, room);
    if (n < 0) return taken ? static_cast<int>(taken) : n;
    taken += settle(from, static_cast<unsigned>(n), out + taken);
    if (pumping_) pump();
    if (static_cast<unsigned>(n) < room) break;
  }
  stalled_.store(pumping_ != 0, std::memory_order_relaxed);
  return static_cast<int>(taken);
}

int VirtualContext::wait(Response* out, unsigned max, int64_t timeout_ns) {
  if (max == 0) return 0;
  const sys::TimeLimit limit(timeout_ns);
  Response from[kBatch];
  for (bool first = true;; first = false) {
    if (pumping_) pump();
    unsigned taken = take_ready(out, max);
    if (taken || (in_flight_ == 0 && watching_ == 0)) return static_cast<int>(taken);
    const int64_t left = limit.left();
    if (left == 0 && !first) return 0;
    const int n = base_->wait(from, std::min(max, kBatch), left);
    if (n < 0) return n;
    taken = settle(from, static_cast<unsigned>(n), out);
    if (pumping_) pump();
    if (taken || (n == 0 && timeout_ns >= 0)) return static_cast<int>(taken);
  }
}

int VirtualContext::watch(int fd, uint64_t tag) {
  unsigned free = WatchSet::kMax;
  for (unsigned i = 0; i < WatchSet::kMax; ++i) {
    if (!watches_[i].armed) {
      free = i;
    } else if (watches_[i].fd == fd) {
      watches_[i].tag = tag;
      return 0;
    }
  }
  if (free == WatchSet::kMax) return -EBUSY;
  const int status = base_->watch(fd, kWatchFlag | free);
  if (status < 0) return status;
  watches_[free] = {tag, fd, true};
  ++watching_;
  return 0;
}

// Pieces that wait for room in the base have no completion of their own. So await() returns early,
// and the caller submits them.
int VirtualContext::await(int64_t timeout_ns) {
  if (ready_count_.load(std::memory_order_acquire)) return 0;
  if (!stalled_.load(std::memory_order_relaxed)) return base_->await(timeout_ns);
  const int status = base_->await(timeout_ns < 0 ? kStalledNs : std::min(timeout_ns, kStalledNs));
  return status == -ETIME && timeout_ns != 0 ? 0 : status;
}

void VirtualContext::wakeups(Wakeups* out) {
  if (ready_count_.load(std::memory_order_acquire)) out->look_at(0);
  if (stalled_.load(std::memory_order_relaxed)) out->look_at(sys::now_ns() + kStalledNs);
  base_->wakeups(out);
}

}  // namespace lunar
