// SPDX-License-Identifier: Apache-2.0
// Blocking I/O of a chunk: on the caller's thread, with no lock; by a lane where it has a time limit, else with no ring
// either.
// Threading: any, any number at once. Allocates nothing (a bounce buffer may be a mapping, a lane more is attached).
#include <errno.h>
#include <string.h>

#include "cblk/wait.h"

namespace lunar::cblk {

namespace {

// The first `bytes` of the caller's memory, wherever it lies, into a buffer of ours or out of it.
void copy(const Io& io, char* ours, size_t bytes, bool out) {
  const iovec whole = {io.buffer, bytes};
  for (const iovec* part = io.parts ? io.parts : &whole; bytes; ++part) {
    const size_t here = part->iov_len < bytes ? part->iov_len : bytes;
    memcpy(out ? part->iov_base : ours, out ? ours : part->iov_base, here);
    ours += here;
    bytes -= here;
  }
}

}  // namespace

// Without a limit: bytes moved, or -errno. buffer: the caller's, or one of ours in its place.
int64_t Chunk::move(const Io& io, char* buffer) {
  const bool vector = io.parts && buffer == io.buffer;
  if (io.meanwhile) {  // the device's blocking call leaves no time for it
    Bounce direct;
    direct.memory = buffer;
    bool lost = false;
    Transfer transfer;
    transfer.op = io.op;
    transfer.block = static_cast<uint64_t>(io.lba);
    transfer.blocks = io.blocks;
    transfer.deadline_ns = kForever;
    transfer.parts = vector ? io.parts : nullptr;
    transfer.part_count = io.part_count;
    transfer.meanwhile = io.meanwhile;
    return lanes_.run(transfer, &direct, &lost);
  }
  iovec part = {buffer, io.blocks * kBlockBytes};
  ::lunar::Command command;
  command.op = io.op;
  command.offset = DeviceOffset{static_cast<uint64_t>(io.lba) * kBlockBytes};
  command.iov = vector ? io.parts : &part;
  command.iov_count = vector ? io.part_count : 1;
  command.length = part.iov_len;
  return device_->transfer(command);
}

// Under a limit, by a lane; through its own memory where `bounce` is none.
int64_t Chunk::move_by_lane(const Io& io, Bounce* bounce, bool* lost) {
  Transfer transfer;
  transfer.op = io.op;
  transfer.block = static_cast<uint64_t>(io.lba);
  transfer.blocks = io.blocks;
  transfer.deadline_ns = io.deadline_ns;
  transfer.meanwhile = io.meanwhile;
  if (!io.deadline_ns) transfer.deadline_ns = deadline_of_a_new_one(&transfer.left_ns);
  if (io.op != Op::kDiscard && !bounce->memory) {
    transfer.buffer = io.parts ? static_cast<char*>(io.parts->iov_base) : io.buffer;
    transfer.stamps = io.stamps.known ? io.stamps.of : nullptr;
  }
  int64_t moved = -ETIMEDOUT;
  if (!blocked_by_late(io) || wait_for_lost(io, &transfer) == 0) moved = lanes_.run(transfer, bounce, lost);
  if (moved == -ETIMEDOUT) add(counters_.timeouts);
  return moved;
}

// Through a buffer of ours.
int64_t Chunk::move_bounced(const Io& io, bool* lost) {
  Bounce bounce;
  const size_t bytes = io.blocks * kBlockBytes;
  if (timeout_ns_ != 0 && (io.blocks == 1 || io.op == Op::kDiscard)) return move_by_lane(io, &bounce, lost);
  if (const int status = bounces_.take(bytes, &bounce); status < 0) return status;
  if (io.op == Op::kWrite) copy(io, bounce.memory, bytes, false);
  const int64_t moved = timeout_ns_ != 0 ? move_by_lane(io, &bounce, lost) : move(io, bounce.memory);
  if (io.op == Op::kRead && moved > 0) copy(io, bounce.memory, static_cast<size_t>(moved), true);
  if (io.stamps.known && moved == static_cast<int64_t>(bytes))
    cache_.fill(static_cast<uint64_t>(io.lba), io.blocks, bounce.memory, io.stamps.of);
  bounces_.give(&bounce);
  return moved;
}

int64_t Chunk::transfer(Io* io) {
  const bool read = io->op == Op::kRead;
  // Seen as under way before the size is looked at: a shrinking set_size lowers it first and then waits for these. Only
  // a virtual chunk shrinks.
  struct Under {
    Under(Chunk& c, Gauge& g) : chunk(c), gauge(g), phase(c.virtual_ ? c.phases_.enter(&c.phase_count_) : 0) {
      gauge.enter();
    }
    ~Under() {
      gauge.leave();
      if (chunk.virtual_) sys::Phases::leave(&chunk.phase_count_, phase);
    }
    Chunk& chunk;
    Gauge& gauge;
    const unsigned phase;
  } under(*this, read ? counters_.act_reads : counters_.act_writes);
  if (const int status = check(*io); status < 0) return status;
  if (io->blocks == 0) return 0;
  const auto block = static_cast<uint64_t>(io->lba);
  if (cache_.active()) {
    if (read && cache_.read(block, io->blocks, io->buffer)) {
      add(counters_.cache_hits);
      add(counters_.reads);
      add(counters_.blocks_read, io->blocks);
      return static_cast<int64_t>(io->blocks);
    }
    io->stamps.known = read && io->blocks <= Cache::kFillBlocksMax;
    if (io->stamps.known)
      cache_.begin_read(block, io->blocks, io->stamps.of);
    else if (!read)
      cache_.begin_write(block, io->blocks);
  }
  // The cache is filled from a buffer of ours: the caller may change its own at any time.
  const bool bounced = timeout_ns_ != 0 || io->stamps.known ||
                       (io->op != Op::kDiscard && reinterpret_cast<uintptr_t>(io->buffer) % buffer_align_ != 0);
  bool lost = false;
  const int64_t bytes = bounced ? move_bounced(*io, &lost) : move(*io, io->buffer);
  if (cache_.active() && !read && !lost) cache_.end_write(block, io->blocks);

  int64_t blocks = bytes < 0 ? bytes : bytes / static_cast<int64_t>(kBlockBytes);
  if (io->op == Op::kDiscard && bytes == 0) blocks = static_cast<int64_t>(io->blocks);
  if (io->op == Op::kDiscard && bytes == -EOPNOTSUPP) blocks = -EPROTONOSUPPORT;
  // 0: the device ends before its size
  if (blocks == 0 || (is_our_answer(blocks) && !(bounced && blocks == -ETIMEDOUT))) blocks = -EIO;
  if (blocks < 0) {
    add(counters_.errors);
    return blocks;
  }
  add(read ? counters_.reads : counters_.writes);
  if (io->op != Op::kDiscard)
    add(read ? counters_.blocks_read : counters_.blocks_written, static_cast<uint64_t>(blocks));
  return blocks;
}

}  // namespace lunar::cblk
