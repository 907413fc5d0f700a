// SPDX-License-Identifier: Apache-2.0
// Blocking I/O of a chunk: on the caller's thread, with no lock and no ring.
// Threading: any, any number at once. Allocates nothing (a bounce buffer may be a mapping).
#include <errno.h>
#include <string.h>

#include "cblk/chunk.h"

namespace lunar::cblk {

// Bytes moved, or -errno.
int64_t Chunk::move(const Io& io) {
  iovec part = {io.buffer, io.blocks * kBlockBytes};
  ::lunar::Command command;
  command.op = io.op;
  command.offset = DeviceOffset{static_cast<uint64_t>(io.lba) * kBlockBytes};
  command.iov = io.parts ? io.parts : &part;
  command.iov_count = io.parts ? io.part_count : 1;
  command.length = part.iov_len;
  return device_->transfer(command);
}

// In pieces through one aligned buffer.
int64_t Chunk::move_bounced(const Io& io) {
  constexpr size_t kPieceBlocks = BouncePool::kPieceBytes / kBlockBytes;
  Bounce bounce;
  Io piece = io;
  int status = bounces_.take((io.blocks < kPieceBlocks ? io.blocks : kPieceBlocks) * kBlockBytes, &bounce);
  if (status < 0) return status;
  piece.buffer = bounce.memory;
  int64_t moved = 0;
  for (size_t done = 0; done < io.blocks; done += piece.blocks) {
    piece.lba = io.lba + static_cast<int64_t>(done);
    piece.blocks = io.blocks - done < kPieceBlocks ? io.blocks - done : kPieceBlocks;
    char* place = io.buffer + done * kBlockBytes;
    const size_t bytes = piece.blocks * kBlockBytes;
    if (io.op == Op::kWrite) memcpy(piece.buffer, place, bytes);
    const int64_t now = move(piece);
    if (now > 0 && io.op == Op::kRead) memcpy(place, piece.buffer, static_cast<size_t>(now));
    if (now <= 0) {
      if (moved == 0) moved = now;   // what came before counts
      break;
    }
    moved += now;
    if (static_cast<size_t>(now) < bytes) break;
  }
  bounces_.give(&bounce);
  return moved;
}

int64_t Chunk::transfer(Io* io) {
  const bool read = io->op == Op::kRead;
  // Seen as under way before the size is looked at: a shrinking set_size lowers it first and then waits for these.
  struct Under {
    explicit Under(Gauge& g) : gauge(g) { gauge.enter(); }
    ~Under() { gauge.leave(); }
    Gauge& gauge;
  } under(read ? counters_.act_reads : counters_.act_writes);
  if (const int status = check(*io); status < 0) return status;
  if (io->blocks == 0) return 0;
  const auto block = static_cast<uint64_t>(io->lba);
  bool fill = false;
  if (cache_.active()) {
    if (read && cache_.read(block, io->blocks, io->buffer)) {
      add(counters_.cache_hits);
      add(counters_.reads);
      add(counters_.blocks_read, io->blocks);
      return static_cast<int64_t>(io->blocks);
    }
    fill = read && io->blocks <= Cache::kFillBlocksMax;
    if (fill) cache_.begin_read(block, io->blocks, io->stamps);
    else if (!read) cache_.begin_write(block, io->blocks);
  }
  const bool bounced = io->op != Op::kDiscard && reinterpret_cast<uintptr_t>(io->buffer) % buffer_align_ != 0;
  const int64_t bytes = bounced ? move_bounced(*io) : move(*io);
  if (fill && bytes == static_cast<int64_t>(io->blocks * kBlockBytes)) cache_.fill(block, io->blocks, io->buffer, io->stamps);
  if (cache_.active() && !read) cache_.end_write(block, io->blocks);

  int64_t blocks = bytes < 0 ? bytes : bytes / static_cast<int64_t>(kBlockBytes);
  if (io->op == Op::kDiscard && bytes == 0) blocks = static_cast<int64_t>(io->blocks);
  if (io->op == Op::kDiscard && bytes == -EOPNOTSUPP) blocks = -EPROTONOSUPPORT;
  if (blocks == 0 || is_our_answer(blocks)) blocks = -EIO;   // 0: the medium ends before its size
  if (blocks < 0) {
    add(counters_.errors);
    return blocks;
  }
  add(read ? counters_.reads : counters_.writes);
  if (io->op != Op::kDiscard) add(read ? counters_.blocks_read : counters_.blocks_written, static_cast<uint64_t>(blocks));
  return blocks;
}

}  // namespace lunar::cblk
