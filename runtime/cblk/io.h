// SPDX-License-Identifier: Apache-2.0
// One I/O as the caller requested it, and how its outcome is reported.
#pragma once
#include <errno.h>
#include <string.h>
#include <sys/uio.h>

#include <atomic>
#include <cstdint>

#include "capiblock.h"
#include "cblk/bounce.h"
#include "cblk/cache.h"
#include "superpipe/device.h"

namespace lunar::cblk {

constexpr uint64_t kBlockBytes = CAPI_FLASH_BLOCK_SIZE;
constexpr uint64_t kForever = UINT64_MAX;  // a deadline

// The stamps of a read for the cache. Most reads have none, and then a copy costs nothing.
struct Stamps {
  Stamps() {}
  Stamps(const Stamps& other) { *this = other; }
  Stamps& operator=(const Stamps& other) {
    known = other.known;
    if (known) memcpy(of, other.of, sizeof of);
    return *this;
  }
  bool known = false;
  uint64_t of[Cache::kFillBlocksMax];  // set if `known`
};

struct Io {
  Op op = Op::kRead;
  char* buffer = nullptr;
  int64_t lba = 0;
  size_t blocks = 0;
  int user_tag = 0;
  bool has_user_tag = false;
  bool wait_for_command = false;
  // For wait_for_command: it waits as long as usual, but not beyond this time.
  uint64_t wait_deadline_ns = UINT64_MAX;
  uint64_t deadline_ns = 0;  // of a blocking I/O that is part of a call; 0: it has its own limit
  // Of a blocking read or write: the memory for the blocks, if it does not start at `buffer`.
  const iovec* parts = nullptr;
  uint32_t part_count = 0;
  // Of a blocking I/O that is part of a call. overlaps: it is submitted to the device before any
  // wait; may_wait: it may wait for a lane (not while others of the call are in progress).
  bool overlaps = false, may_wait = true;
  cblk_arw_status_t* status = nullptr;  // filled in by the background thread
  // Set by prepare().
  Bounce bounce;
  bool cached_write = false;
  Stamps stamps;
};

// The command for the device: `bytes` bytes from `block` on, whose memory is `parts`.
inline ::lunar::Command command_for(Op op, uint64_t block, const iovec* parts, uint32_t count,
                                    size_t bytes) {
  ::lunar::Command command;
  command.op = op;
  command.offset = DeviceOffset{block * kBlockBytes};
  command.iov = parts;
  command.iov_count = count;
  command.length = bytes;
  return command;
}

// The library uses these errors itself (for arguments, time, no such command). A device must not
// return them, because callers would take a fetched command for one that was not fetched. Such an
// error of a device becomes EIO.
inline bool is_our_answer(int64_t error) {
  return error == -EINVAL || error == -ETIMEDOUT || error == -ENOMSG || error == -ENOENT ||
         error == -EAGAIN;
}

// Set the status last: a reader with acquire order may then read the rest.
inline void set_status(cblk_arw_status_t* status, cblk_status_type_t value) {
  std::atomic_ref<cblk_status_type_t>(status->status).store(value, std::memory_order_release);
}
inline cblk_status_type_t get_status(cblk_arw_status_t* status) {
  return std::atomic_ref<cblk_status_type_t>(status->status).load(std::memory_order_acquire);
}
void fill_status(cblk_arw_status_t* status, int64_t blocks);  // blocks or -errno

}  // namespace lunar::cblk
