// SPDX-License-Identifier: Apache-2.0
// The data path of mapped memory: see pmem_device.h. Opening is in pmem_open.cpp.
// Threading: any. May not: allocate, take a lock, use a descriptor (but in reserve).
#include "superpipe/pmem/pmem_device.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#include <algorithm>

#include "base/host_guard.h"
#include "superpipe/pmem/pmem_context.h"
#include "superpipe/signature.h"
#include "sys/arena.h"
#include "sys/file.h"
#include "sys/mem.h"
#include "sys/memory_constants.h"
#include "sys/thread.h"

namespace lunar {
namespace {

// Copies of kStreamMin bytes or more bypass the cache: into the memory, which is large and cold (8
// MiB in 32 KiB pieces: 355 us, 590 by memcpy), and by a delegate into the caller's memory, whose
// lines lie in the caller's cache (two CPUs: 355 us, 390-550 by memcpy).
constexpr unsigned kDelegatesMax = 4;
constexpr uint64_t kStreamMin = 4096;

int advise_whole(char* address, uint64_t bytes, int advice) {
  int err;
  do err = sys::advise(address, bytes, advice);
  while (err == -EINTR || err == -EAGAIN);
  return err;
}

}  // namespace

Capabilities PmemDevice::capabilities() const {
  Capabilities out;
  out.discard = !read_only_;
  out.instant = out.polled = true;
  out.persistent = sync_ != Sync::kNone && !growable_;
  out.fua = Fua::kFree;  // lines are written back, or the range msynced, before the answer
  out.memory_align = 1;
  return out;
}

const char* PmemDevice::durability() const {
  return sync_ == Sync::kNone    ? "memory"
         : sync_ == Sync::kMsync ? "msync"
                                 : pmem::flush_name(flush_);
}

bool PmemDevice::delegates(uint64_t bytes) {
  if (delegate_ == Delegate::kOff || (delegate_ == Delegate::kAuto && bytes < kDelegateBytesMin))
    return false;
  if (pool_.started()) return true;
  if (HostGuard::active() || sys::in_service_thread()) return false;
  const auto cpus = static_cast<unsigned>(sys::cpu_count());
  return pool_.start(std::min(cpus, kDelegatesMax), "lunar-delegate") == 0;
}

int PmemDevice::attach(const ContextOptions& options, Context** out) {
  OwnedContext* context = nullptr;
  const int status = PmemContext::create(this, options, &context);
  return attached(status, context, out);
}

void PmemDevice::close() {
  check_detached();
  if (cut_at_close_) (void)sys::set_file_size(fd(), sizeof(ScratchHeader));
  abandon();
}

// Makes sure that [at, at + bytes) of the mapping can be touched: 0, -ENOSPC (write) or -EIO
// (read).
int PmemDevice::prepare(uint64_t at, uint64_t bytes, bool write) {
  const uint64_t last = (at + bytes - 1) / chunk_bytes_;
  for (uint64_t chunk = at / chunk_bytes_; chunk <= last; ++chunk) {
    if (backed(chunk)) continue;
    const uint64_t begin = chunk * chunk_bytes_;
    uint64_t end = std::min(begin + chunk_bytes_, map_bytes_);
    int err = 0;
    if (write) {
      err = advise_whole(map_ + begin, end - begin, MADV_POPULATE_WRITE);
      if (err == 0 || err == -EINVAL) {  // -EINVAL: a kernel before 5.14, which cannot be asked
        set_backed(chunk);
        continue;
      }
    }
    // The file ends in this chunk, or this is a read: only the pages that are needed.
    const uint64_t from = round_down(std::max(at, begin), page_bytes_);
    if (end > at + bytes) end = round_up(at + bytes, page_bytes_);
    err = advise_whole(map_ + from, end - from, write ? MADV_POPULATE_WRITE : MADV_POPULATE_READ);
    if (err < 0 && err != -EINVAL) return write ? -ENOSPC : -EIO;
  }
  return 0;
}

// Called after stores to [at, at + bytes) of the mapping. They are on stable storage when it
// returns.
int PmemDevice::settle(uint64_t at, uint64_t bytes) {
  pmem::fence();
  if (sync_ == Sync::kMsync) return sys::sync_range(map_ + at, bytes);
  return 0;
}

int64_t PmemDevice::read(const Command& command, bool foreign) {
  const uint64_t at = command.offset.value;
  uint64_t bytes = command_bytes(command), done = 0;
  const uint64_t left = at < size_bytes_ ? size_bytes_ - at : 0;
  if (bytes > left) bytes = left;
  if (bytes == 0) return 0;
  if (const int err = prepare(data_offset_ + at, bytes, false); err < 0) return err;
  for (uint32_t i = 0; done < bytes; ++i) {
    const uint64_t part = std::min<uint64_t>(command.iov[i].iov_len, bytes - done);
    if (foreign && part >= kStreamMin)
      pmem::copy_past_cache(command.iov[i].iov_base, data_ + at + done, part);
    else
      memcpy(command.iov[i].iov_base, data_ + at + done, part);
    done += part;
  }
  if (foreign) pmem::fence();
  return static_cast<int64_t>(bytes);
}

int64_t PmemDevice::write(const Command& command) {
  if (read_only_) return -EROFS;
  const uint64_t at = command.offset.value;
  const uint64_t bytes = command_bytes(command);
  if (at > size_bytes_ || bytes > size_bytes_ - at) return -ENOSPC;
  if (bytes == 0) return 0;
  if (const int err = prepare(data_offset_ + at, bytes, true); err < 0) return err;
  char* to = data_ + at;
  for (uint32_t i = 0; i < command.iov_count; ++i) {
    const iovec& part = command.iov[i];
    if (part.iov_len == 0) continue;
    if (sync_ == Sync::kLines)
      pmem::copy_through(flush_, to, part.iov_base, part.iov_len);
    else if (part.iov_len >= kStreamMin)
      pmem::copy_past_cache(to, part.iov_base, part.iov_len);
    else
      memcpy(to, part.iov_base, part.iov_len);
    to += part.iov_len;
  }
  const int err = settle(data_offset_ + at, bytes);
  return err < 0 ? err : static_cast<int64_t>(bytes);
}

int PmemDevice::zero(uint64_t at, uint64_t length) {
  if (length == 0) return 0;
  if (const int err = prepare(at, length, true); err < 0) return err;
  memset(map_ + at, 0, length);
  if (sync_ == Sync::kLines) pmem::flush_lines(flush_, map_ + at, length);
  return settle(at, length);
}

// Returns whole chunks of the mapping to the file system. Marks a chunk as not backed before its
// pages are freed.
bool PmemDevice::punch(uint64_t at, uint64_t bytes) {
  if (!regular_) return false;
  for (uint64_t chunk = at / chunk_bytes_; chunk < (at + bytes) / chunk_bytes_; ++chunk)
    clear_backed(chunk);
  if (advise_whole(map_ + at, bytes, MADV_REMOVE) < 0) return false;
  if (sync_ != Sync::kNone) punched_.store(true, std::memory_order_release);
  return true;
}

// Stores zeros in [at, at + length) of the device. Backed space stays backed.
int PmemDevice::discard(uint64_t at, uint64_t length) {
  if (read_only_) return -EROFS;
  if (at > size_bytes_ || length > size_bytes_ - at) return -EINVAL;
  return zero(data_offset_ + at, length);
}

int64_t PmemDevice::carry_out(const Command& command, bool foreign) {
  switch (command.op) {
    case Op::kRead:
      return read(command, foreign);
    case Op::kWrite:
      return write(command);
    case Op::kDiscard:
      return discard(command.offset.value, command.length);
    case Op::kFlush:
      // Each write was made durable by itself. Only the file system's record of holes remains.
      if (sync_ == Sync::kLines) pmem::fence();
      return punched_.exchange(false, std::memory_order_acq_rel) ? sys::sync_range(map_, map_bytes_)
                                                                 : 0;
  }
  return -EINVAL;
}

int PmemDevice::reserve(DeviceOffset offset, uint64_t length) {
  if (offset.value > size_bytes_ || length > size_bytes_ - offset.value) return -ENOSPC;
  if (!regular_ || length == 0) return 0;
  const uint64_t begin = data_offset_ + offset.value, end = begin + length;
  bool known = true;
  for (uint64_t chunk = begin / chunk_bytes_; known && chunk <= (end - 1) / chunk_bytes_; ++chunk)
    known = backed(chunk);
  if (known) return 0;
  const int err = sys::allocate_space(fd(), begin, length);
  if (err == -EOPNOTSUPP && !growable_) return prepare(begin, length, true);  // ramfs
  if (err < 0) return err;
  for (uint64_t chunk = (begin + chunk_bytes_ - 1) / chunk_bytes_; chunk < end / chunk_bytes_;
       ++chunk)
    set_backed(chunk);
  return 0;
}

void PmemDevice::release(DeviceOffset offset, uint64_t length) {
  if (raw_ || offset.value > size_bytes_ || length > size_bytes_ - offset.value)
    return;  // the space of a raw device belongs to its owner
  const uint64_t begin = round_up(data_offset_ + offset.value, chunk_bytes_);
  const uint64_t end = round_down(data_offset_ + offset.value + length, chunk_bytes_);
  if (begin < end) (void)punch(begin, end - begin);
}

}  // namespace lunar
