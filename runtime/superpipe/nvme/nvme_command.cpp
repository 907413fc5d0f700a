// SPDX-License-Identifier: Apache-2.0
// See nvme_command.h. Offsets and values are those of the NVMe Base and NVM Command Set
// specifications.
#include "superpipe/nvme/nvme_command.h"

#include <errno.h>
#include <string.h>

#include <algorithm>

#include "sys/log.h"

namespace lunar {
namespace {

enum : uint8_t { kFlush = 0x00, kWrite = 0x01, kRead = 0x02, kWriteZeroes = 0x08 };
constexpr uint32_t kDeallocateBit = 1u << 25;  // DEAC, command dword 12 of WRITE ZEROES
constexpr uint32_t kFuaBit = 1u << 30;         // FUA, command dword 12 of READ and WRITE
constexpr uint64_t kBlocksMax = 65536;         // the count is 16 bits, from 0
constexpr unsigned kMdtsUnitShift = 12;        // the smallest memory page; larger ones are not used
constexpr uint32_t kPieceMax = 1u << 20;       // if the controller names no limit

template <class T>
T field(const uint8_t* data, size_t at) {
  T value;
  memcpy(&value, data + at, sizeof value);
  return value;
}

int errno_of(unsigned status) {
  const unsigned type = status >> 8 & 7, code = status & 0xff;
  if (type == 0) {
    switch (code) {
      case 0x01:
        return -EOPNOTSUPP;  // invalid opcode
      case 0x02:
        return -EINVAL;  // invalid field
      case 0x0b:
        return -ENODEV;  // invalid namespace
      case 0x15:
        return -EACCES;  // operation denied
      case 0x20:
        return -EROFS;  // namespace is write protected
      case 0x80:
        return -EINVAL;  // LBA out of range
      case 0x81:
        return -ENOSPC;  // capacity exceeded
      case 0x83:
        return -EBUSY;  // reservation conflict
      default:
        return -EIO;
    }
  }
  if (type == 1 && code == 0x82) return -EROFS;                   // write to a read-only range
  if (type == 2 && code >= 0x82 && code <= 0x84) return -EILSEQ;  // end-to-end protection
  if (type == 2 && code == 0x86) return -EACCES;
  return -EIO;
}

}  // namespace

int nvme_geometry(const uint8_t* name_space, const uint8_t* controller, NvmeGeometry* out,
                  const char** reason) {
  const uint8_t flbas = name_space[26];
  const unsigned format = (flbas & 15u) | (flbas >> 1 & 0x30u);
  const uint8_t* lba_format = name_space + 128 + 4 * format;
  *reason = nullptr;
  if (field<uint16_t>(lba_format, 0) != 0)
    *reason = "its blocks carry metadata; format it without (nvme format --ms=0)";
  else if (lba_format[2] < 9 || lba_format[2] > 12)
    *reason = "its blocks are neither 512 to 4096 bytes; format it so (nvme format --lbaf=N)";
  if (*reason) return -ENOTSUP;
  out->block_shift = lba_format[2];
  out->blocks = field<uint64_t>(name_space, 0);
  const uint8_t transfer_shift = controller[77];
  out->piece_bytes_max = transfer_shift == 0 || transfer_shift > 8
                             ? kPieceMax
                             : 1u << (kMdtsUnitShift + transfer_shift);
  const auto optional = field<uint16_t>(controller, 520);
  out->deallocate = (optional & 4) != 0;
  out->write_zeroes = (optional & 8) != 0;
  out->volatile_cache = (controller[525] & 1) != 0;
  const uint8_t deallocated = name_space[33];
  out->deallocate_zeroed = (deallocated & 7) == 1 && (deallocated & 8) != 0;
  return 0;
}

int nvme_check(const NvmeGeometry& geometry, uint64_t data_offset, const Command& command) {
  if (command.op == Op::kFlush) return 0;
  if (geometry.read_only && command.op != Op::kRead) return -EBADF;
  if (command.op == Op::kDiscard && !geometry.write_zeroes) return -EOPNOTSUPP;
  const uint64_t mask = (uint64_t{1} << geometry.block_shift) - 1,
                 size = (geometry.blocks << geometry.block_shift) - data_offset;
  const uint64_t bytes = command_bytes(command), at = command.offset.value;
  if ((at & mask) || bytes == 0) return -EINVAL;
  if (command.op == Op::kDiscard) {
    if (command.length & mask) return -EINVAL;
  } else {
    for (uint32_t i = 0; i < command.iov_count; ++i) {
      if (command.iov[i].iov_len & mask) return -EINVAL;
    }
  }
  if (at <= size && bytes <= size - at) return 0;
  if (command.op == Op::kRead) return at >= size ? kNothingToRead : -EINVAL;
  return command.op == Op::kWrite ? -ENOSPC : -EINVAL;
}

void nvme_piece(const NvmeGeometry& geometry, uint64_t data_offset, const Command& command,
                NvmeProgress* progress, sys::NvmeCommand* out) {
  *out = {};
  out->nsid = geometry.nsid;
  progress->piece = 0;
  switch (command.op) {
    case Op::kFlush:
      out->opcode = kFlush;
      return;
    case Op::kDiscard: {
      const uint64_t left = command.length - progress->done,
                     limit = kBlocksMax << geometry.block_shift;
      const uint64_t taken =
          geometry.zeroes_bytes_max ? geometry.zeroes_bytes_max : geometry.piece_bytes_max;
      const uint64_t most = round_down(std::min(taken, limit), uint64_t{1} << geometry.block_shift);
      out->opcode = kWriteZeroes;
      out->cdw12 = geometry.deallocate_zeroed ? kDeallocateBit : 0;
      progress->piece = std::min(left, most);
      break;
    }
    case Op::kRead:
    case Op::kWrite: {
      out->opcode = command.op == Op::kRead ? kRead : kWrite;
      out->cdw12 = command.op == Op::kWrite && command.fua ? kFuaBit : 0;
      const uint64_t most = geometry.piece_bytes_max;
      const iovec& first = command.iov[progress->part];
      out->data = static_cast<const char*>(first.iov_base) + progress->skip;
      // A piece takes whole parts as long as they fit. A part that is larger than a piece is sent
      // alone, in pieces.
      uint32_t parts = 0;
      for (uint32_t i = progress->part;
           progress->skip == 0 && i < command.iov_count && parts < geometry.piece_parts_max; ++i) {
        if (command.iov[i].iov_len > most - progress->piece) break;
        progress->piece += command.iov[i].iov_len;
        ++parts;
      }
      if (parts == 0) {
        const uint64_t left = first.iov_len - progress->skip;
        progress->piece = std::min(left, most);
      }
      out->vector = parts > 1;
      out->data_bytes = static_cast<uint32_t>(progress->piece);
      if (out->vector) {
        out->data = command.iov + progress->part;
        out->data_bytes = parts;
      }
      break;
    }
  }
  const uint64_t block =
      (data_offset + command.offset.value + progress->done) >> geometry.block_shift;
  out->cdw10 = static_cast<uint32_t>(block);
  out->cdw11 = static_cast<uint32_t>(block >> 32);
  out->cdw12 |= static_cast<uint32_t>((progress->piece >> geometry.block_shift) - 1);
}

bool nvme_advance(const Command& command, NvmeProgress* progress) {
  progress->done += progress->piece;
  if (command.op == Op::kFlush) return true;
  if (command.op == Op::kDiscard) return progress->done >= command.length;
  progress->skip += progress->piece;
  while (progress->part < command.iov_count &&
         progress->skip >= command.iov[progress->part].iov_len)
    progress->skip -= command.iov[progress->part++].iov_len;
  return progress->part >= command.iov_count;
}

int nvme_failure(const char* name, const Command& command, const NvmeProgress& progress,
                 int answer) {
  static constexpr const char* kNames[] = {"read", "write", "discard", "flush"};
  const char* what = kNames[static_cast<unsigned>(command.op)];
  const auto at = static_cast<unsigned long long>(command.offset.value + progress.done);
  // -EINTR: the controller was reset or removed, and the command is lost.
  const int err = answer > 0         ? errno_of(static_cast<unsigned>(answer))
                  : answer == -EINTR ? -EIO
                                     : answer;
  if (answer > 0)
    LUNAR_LOG_LIMITED(log_warning, 20,
                      "LUN %s: %s at byte %llu failed: NVMe status type %u, code 0x%x (%s)", name,
                      what, at, static_cast<unsigned>(answer) >> 8 & 7,
                      static_cast<unsigned>(answer) & 0xff, errno_name(err));
  else
    LUNAR_LOG_LIMITED(log_warning, 20, "LUN %s: %s at byte %llu failed: %s", name, what, at,
                      errno_name(answer));
  return err;
}

}  // namespace lunar
