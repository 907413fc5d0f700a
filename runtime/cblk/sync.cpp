// SPDX-License-Identifier: Apache-2.0
// Blocking I/O of a chunk, on the caller's thread and without a lock: by a lane if it has a time
// limit, otherwise by Device::transfer.
// Threading: any number of threads at once. Allocates nothing (but may map a bounce buffer, or
// attach another lane).
#include <errno.h>
#include <string.h>

#include <algorithm>

#include "cblk/wait.h"

namespace lunar::cblk {

namespace {

// Copies the first `bytes` of the caller's memory, wherever it lies, to a buffer of the library, or
// back.
void copy(const Io& io, char* ours, size_t bytes, bool out) {
  const iovec whole = {io.buffer, bytes};
  for (const iovec* part = io.parts ? io.parts : &whole; bytes; ++part) {
    const size_t here = std::min(part->iov_len, bytes);
    memcpy(out ? part->iov_base : ours, out ? ours : part->iov_base, here);
    ours += here;
    bytes -= here;
  }
}

}  // namespace

// An I/O counts as in progress from before the check of the size on: a shrinking set_size first
// lowers the size, then waits for such I/O. Only a virtual chunk shrinks.
void Chunk::enter(Blocking* one) {
  one->phase = virtual_ ? phases_.enter(&phase_count_) : 0;
  (one->io.op == Op::kRead ? counters_.act_reads : counters_.act_writes).enter();
}

void Chunk::leave(Blocking* one) {
  (one->io.op == Op::kRead ? counters_.act_reads : counters_.act_writes).leave();
  if (virtual_) sys::Phases::leave(&phase_count_, one->phase);
}

// Begins an I/O with a lane, in the lane's own memory if `bounce` has none. 0 or -errno.
int Chunk::begin_by_lane(Blocking* one) {
  const Io& io = one->io;
  Transfer transfer;
  transfer.op = io.op;
  transfer.block = static_cast<uint64_t>(io.lba);
  transfer.blocks = io.blocks;
  if (timeout_ns_ == 0) {  // the caller's memory
    transfer.deadline_ns = kForever;
    if (!one->bounce.memory) {
      transfer.parts = io.parts;
      transfer.part_count = io.part_count;
    }
    Bounce direct = one->bounce;
    if (!direct.memory) direct.memory = io.buffer;
    return lanes_.begin(transfer, &direct, io.may_wait, io.overlaps, &one->underway);
  }
  transfer.deadline_ns = io.deadline_ns;
  if (!io.deadline_ns) transfer.deadline_ns = deadline_of_a_new_one(&transfer.left_ns);
  if (io.op != Op::kDiscard && !one->bounce.memory) {
    transfer.buffer = io.parts ? static_cast<char*>(io.parts->iov_base) : io.buffer;
    transfer.stamps = io.stamps.known ? io.stamps.of : nullptr;
  }
  int status = blocked_by_late(io) ? wait_for_lost(io, &transfer) : 0;
  if (status == 0)
    status = lanes_.begin(transfer, &one->bounce, io.may_wait, io.overlaps, &one->underway);
  if (status == -ETIMEDOUT) add(counters_.timeouts);
  return status;
}

// Carries out an I/O without a time limit that overlaps with no other. Bytes moved, or -errno.
int64_t Chunk::move(const Blocking& one) {
  const Io& io = one.io;
  char* buffer = one.bounce.memory ? one.bounce.memory : io.buffer;
  const bool vector = io.parts && !one.bounce.memory;
  iovec part = {buffer, io.blocks * kBlockBytes};
  return device_->transfer(command_for(io.op, static_cast<uint64_t>(io.lba),
                                       vector ? io.parts : &part, vector ? io.part_count : 1,
                                       part.iov_len));
}

// Starts an I/O. Sets one->bytes unless a lane carries it out.
int Chunk::start(Blocking* one) {
  Io& io = one->io;
  const size_t bytes = io.blocks * kBlockBytes;
  // The cache is filled from a buffer of the library, because the caller may change its own.
  const bool bounced =
      timeout_ns_ != 0 || io.stamps.known ||
      (io.op != Op::kDiscard && reinterpret_cast<uintptr_t>(io.buffer) % buffer_align_ != 0);
  const bool by_own_block = timeout_ns_ != 0 && (io.blocks == 1 || io.op == Op::kDiscard);
  if (bounced && !by_own_block) {
    if (const int status = bounces_.take(bytes, &one->bounce); status < 0) return status;
    if (io.op == Op::kWrite) copy(io, one->bounce.memory, bytes, false);
  }
  if (timeout_ns_ != 0 || io.overlaps) return begin_by_lane(one);
  one->bytes = move(*one);
  return 0;
}

bool Chunk::begin(Blocking* one) {
  Io& io = one->io;
  const bool read = io.op == Op::kRead;
  enter(one);
  one->state = Blocking::kAnswered;
  one->blocks = check(io);
  if (one->blocks < 0 || io.blocks == 0) return true;
  const auto block = static_cast<uint64_t>(io.lba);
  if (cache_.active()) {
    if (read && cache_.read(block, io.blocks, io.buffer)) {
      add(counters_.cache_hits);
      add(counters_.reads);
      add(counters_.blocks_read, io.blocks);
      one->blocks = static_cast<int64_t>(io.blocks);
      return true;
    }
    io.stamps.known = read && io.blocks <= Cache::kFillBlocksMax;
    if (io.stamps.known)
      cache_.begin_read(block, io.blocks, io.stamps.of);
    else if (!read)
      cache_.begin_write(block, io.blocks);
  }
  one->state = Blocking::kStarted;
  const int status = start(one);
  if (status < 0) one->bytes = status;
  if (status != -EAGAIN || io.may_wait) return true;
  bounces_.give(&one->bounce);
  if (cache_.active() && !read) cache_.end_write(block, io.blocks);
  leave(one);
  return false;
}

int64_t Chunk::end(Blocking* one) {
  const int64_t blocks = one->state == Blocking::kStarted ? finish_blocking(one) : one->blocks;
  leave(one);
  return blocks;
}

int64_t Chunk::finish_blocking(Blocking* one) {
  const Io& io = one->io;
  const bool read = io.op == Op::kRead, by_lane = one->underway.lane != Underway::kNone;
  const auto block = static_cast<uint64_t>(io.lba);
  bool lost = false;
  int64_t bytes = one->bytes;
  if (by_lane) {
    Bounce direct;
    bytes = lanes_.end(&one->underway, timeout_ns_ != 0 ? &one->bounce : &direct, &lost);
    if (bytes == -ETIMEDOUT) add(counters_.timeouts);
  }
  if (one->bounce.memory) {
    if (read && bytes > 0) copy(io, one->bounce.memory, static_cast<size_t>(bytes), true);
    if (io.stamps.known && bytes == static_cast<int64_t>(io.blocks * kBlockBytes))
      cache_.fill(block, io.blocks, one->bounce.memory, io.stamps.of);
    bounces_.give(&one->bounce);
  }
  if (cache_.active() && !read && !lost) cache_.end_write(block, io.blocks);

  int64_t blocks = bytes < 0 ? bytes : bytes / static_cast<int64_t>(kBlockBytes);
  if (io.op == Op::kDiscard && bytes == 0) blocks = static_cast<int64_t>(io.blocks);
  if (io.op == Op::kDiscard && bytes == -EOPNOTSUPP) blocks = -EPROTONOSUPPORT;
  // 0: the device ends before its size. Under a time limit, ETIMEDOUT is the library's own result.
  if (blocks == 0 || (is_our_answer(blocks) && !(timeout_ns_ != 0 && blocks == -ETIMEDOUT)))
    blocks = -EIO;
  if (blocks < 0) {
    add(counters_.errors);
    return blocks;
  }
  add(read ? counters_.reads : counters_.writes);
  if (io.op != Op::kDiscard)
    add(read ? counters_.blocks_read : counters_.blocks_written, static_cast<uint64_t>(blocks));
  return blocks;
}

int64_t Chunk::transfer(Io* io) {
  Blocking one(*io);
  (void)begin(&one);
  return end(&one);
}

}  // namespace lunar::cblk
