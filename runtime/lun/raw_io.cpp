// SPDX-License-Identifier: Apache-2.0
// See raw_io.h.
#include "lun/raw_io.h"

#include <errno.h>

#include <algorithm>

#include "base/units.h"
#include "sys/arena.h"

namespace lunar {
namespace {

constexpr uint64_t kPieceMax = kMiB;  // of one command

int move_all(Device* raw, Op op, bool fua, uint64_t offset, void* buffer, uint64_t bytes) {
  const uint64_t most = raw->capabilities().transfer_bytes_max, piece = std::min(most, kPieceMax);
  for (uint64_t done = 0; done < bytes;) {
    const iovec part = {static_cast<char*>(buffer) + done, std::min(bytes - done, piece)};
    Command command;
    command.op = op;
    command.offset = DeviceOffset{offset + done};
    command.iov = &part;
    command.iov_count = 1;
    command.fua = fua;
    const int64_t moved = raw->transfer(command);
    if (moved < 0) return static_cast<int>(moved);
    if (moved != static_cast<int64_t>(part.iov_len)) return -EIO;
    done += part.iov_len;
  }
  return 0;
}

}  // namespace

int raw_io(Device* raw, Op op, uint64_t offset, void* buffer, uint64_t bytes) {
  return move_all(raw, op, false, offset, buffer, bytes);
}

int raw_write_durable(Device* raw, uint64_t offset, const void* buffer, uint64_t bytes) {
  // If each fua is a flush, one flush after all pieces is cheaper.
  const bool fua = raw->capabilities().fua != Fua::kFlush || bytes <= kPieceMax;
  const int status = move_all(raw, Op::kWrite, fua, offset, const_cast<void*>(buffer), bytes);
  return status < 0 || fua ? status : raw_flush(raw);
}

int raw_flush(Device* raw) {
  Command command;
  command.op = Op::kFlush;
  const int64_t status = raw->transfer(command);
  return status < 0 ? static_cast<int>(status) : 0;
}

int raw_zero(Device* raw, uint64_t offset, uint64_t bytes) {
  if (raw->capabilities().discard) {
    Command command;
    command.op = Op::kDiscard;
    command.offset = DeviceOffset{offset};
    command.length = bytes;
    const int64_t status = raw->transfer(command);
    if (status != -EOPNOTSUPP && status != -EINVAL && status != -ENOSYS)
      return status < 0 ? static_cast<int>(status) : 0;
  }
  const uint64_t piece = std::min(bytes, kPieceMax);
  void* zeros = map_private(piece, ForkPolicy::kDontFork);
  if (!zeros) return -ENOMEM;
  int status = 0;
  for (uint64_t done = 0; done < bytes && status == 0; done += piece)
    status = raw_io(raw, Op::kWrite, offset + done, zeros, std::min(bytes - done, piece));
  unmap_private(zeros, piece);
  return status;
}

}  // namespace lunar
