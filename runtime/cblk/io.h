// SPDX-License-Identifier: Apache-2.0
// One I/O as the caller asked for it, and how its outcome is reported.
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

// What a read must remember for the cache. Most have nothing to, and pay nothing when they are copied.
struct Stamps {
  Stamps() {}
  Stamps(const Stamps& other) { *this = other; }
  Stamps& operator=(const Stamps& other) {
    known = other.known;
    if (known) memcpy(of, other.of, sizeof of);
    return *this;
  }
  bool known = false;
  uint64_t of[Cache::kFillBlocksMax];  // set where known
};

struct Io {
  Op op = Op::kRead;
  char* buffer = nullptr;
  int64_t lba = 0;
  size_t blocks = 0;
  int user_tag = 0;
  bool has_user_tag = false;
  bool wait_for_command = false;
  uint64_t wait_deadline_ns = UINT64_MAX;  // for that: it waits as long as usual, but not beyond
  uint64_t deadline_ns = 0;                // of a blocking one that is a part of a call; 0: its own limit
  // of a blocking read or write: where the blocks lie, instead of from `buffer` on
  const iovec* parts = nullptr;
  uint32_t part_count = 0;
  // of a blocking one that is a part of a call: the device has it before it is waited for, and it waits for no place to
  // do so in, as others are under way
  bool overlaps = false, may_wait = true;
  cblk_arw_status_t* status = nullptr;  // to be filled in the background
  // Made by prepare().
  Bounce bounce;
  bool cached_write = false;
  Stamps stamps;
};

// What the device is told: so many bytes from a block on, which lie in `parts`.
inline ::lunar::Command command_for(Op op, uint64_t block, const iovec* parts, uint32_t count, size_t bytes) {
  ::lunar::Command command;
  command.op = op;
  command.offset = DeviceOffset{block * kBlockBytes};
  command.iov = parts;
  command.iov_count = count;
  command.length = bytes;
  return command;
}

// The library's own errors (arguments, time, no such command) may not come from the device: callers would take a
// fetched command for one that was not. Such errors of a device become EIO.
inline bool is_our_answer(int64_t error) {
  return error == -EINVAL || error == -ETIMEDOUT || error == -ENOMSG || error == -ENOENT || error == -EAGAIN;
}

// The status last: a reader with acquire order may read the rest.
inline void set_status(cblk_arw_status_t* status, cblk_status_type_t value) {
  std::atomic_ref<cblk_status_type_t>(status->status).store(value, std::memory_order_release);
}
inline cblk_status_type_t get_status(cblk_arw_status_t* status) {
  return std::atomic_ref<cblk_status_type_t>(status->status).load(std::memory_order_acquire);
}
void fill_status(cblk_arw_status_t* status, int64_t blocks);  // blocks or -errno

}  // namespace lunar::cblk
