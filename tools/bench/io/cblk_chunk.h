// SPDX-License-Identifier: Apache-2.0
// A bench's backing device as a chunk of the block library (libcflsh_block), while the bench also holds it as a scratch
// LUN.
// Threading: one thread. May not be used by runtime/ (it allocates).
#pragma once
#include <fcntl.h>
#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <stdexcept>

#include "capiblock.h"
#include "tools/bench/io/bench_backing.h"

namespace lunar::tools {

class CblkChunk {
 public:
  static constexpr size_t kBlock = 4096;
  // pre: !backing.path().empty(). Forced: the reservation that stands in the way is the bench's own. Throws
  // std::runtime_error.
  CblkChunk(const BenchBacking& backing, unsigned requests) : first_block_(backing.path_offset() / kBlock) {
    id_ = cblk_open(backing.uri().c_str(), static_cast<int>(requests), O_RDWR, 0, CBLK_OPN_FORCED_RESERVE);
    if (id_ == NULL_CHUNK_ID)
      throw std::runtime_error(fmt::format("cblk_open of {}: {}", backing.uri(), strerror(errno)));
  }
  ~CblkChunk() { (void)cblk_close(id_, 0); }
  CblkChunk(const CblkChunk&) = delete;
  CblkChunk& operator=(const CblkChunk&) = delete;

  chunk_id_t id() const { return id_; }
  cflash_offset_t block_at(uint64_t offset) const {
    return static_cast<cflash_offset_t>(first_block_ + offset / kBlock);
  }
  // Blocking. Bytes, or -errno.
  int64_t transfer(bool write, void* buffer, uint64_t offset, size_t bytes) const {
    const int blocks = write ? cblk_write(id_, buffer, block_at(offset), bytes / kBlock, 0)
                             : cblk_read(id_, buffer, block_at(offset), bytes / kBlock, 0);
    return blocks < 0 ? -errno : blocks * static_cast<int64_t>(kBlock);
  }

 private:
  uint64_t first_block_;
  chunk_id_t id_ = NULL_CHUNK_ID;
};

}  // namespace lunar::tools
