// SPDX-License-Identifier: Apache-2.0
// Memory as a device: see mem_device.h.
// Threading: as there.
#include "superpipe/sim/mem_device.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>

#include "superpipe/device_memory.h"
#include "superpipe/ring/sync_context.h"
#include "superpipe/sim/device_copy.h"
#include "sys/mem.h"
#include "sys/memory_constants.h"

namespace lunar {
int MemDevice::open(const char* uri, const DeviceOptions& options, Device** out, ErrorText* why) {
  if (options.scratch)
    return why->set(-ENOTSUP, "LUN %s: is memory itself; give a directory on a disk", uri);
  const char* text = uri + strlen("mem:");
  size_t length = strcspn(text, ",");
  uint64_t bytes = 0, limit = static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) * sys::page_bytes();
  if (length && parse_size(text, length, &bytes) < 0)
    return why->set(-EINVAL, "LUN %s: '%.*s' is not a size; write mem:[SIZE][,limit=SIZE]", uri,
                    static_cast<int>(length), text);
  for (text += length; *text == ','; text += length) {
    length = strcspn(++text, ",");
    if (strncmp(text, "limit=", 6) != 0)
      return why->set(-EINVAL, "LUN %s: unknown setting '%.*s'; known: limit", uri,
                      static_cast<int>(length), text);
    if (parse_size(text + 6, length - 6, &limit) < 0)
      return why->set(-EINVAL, "LUN %s: limit needs a size, such as limit=4g", uri);
  }
  limit = round_down(limit, sys::page_bytes());
  if (options.want_bytes > bytes) bytes = options.want_bytes;
  if (limit == 0 || bytes > limit)
    return why->set(-ENOSPC, "LUN %s: may become %s large, %s wanted; give a larger limit=SIZE",
                    uri, format_size(limit).text, format_size(bytes).text);
  const char* name = nullptr;
  auto* device = device_new<MemDevice>(uri, &name);
  if (!device) return why->set(-ENOMEM, "LUN %s: out of memory", uri);
  void* base = nullptr;
  int err = sys::map(nullptr, limit, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0,
                     &base);
  if (err < 0) {
    device_free(device);
    return why->set(err,
                    "LUN %s: no address space of %s (%s); give a smaller limit=SIZE, or raise the "
                    "limit (ulimit -v)",
                    uri, format_size(limit).text, errno_name(err));
  }
  device->name_ = name;
  device->base_ = static_cast<char*>(base);
  device->limit_ = limit;
  device->read_only_ = options.read_only;
  err = device->grow(bytes);
  if (err < 0) {
    device->close();
    return why->set(err, "LUN %s: out of memory; give a smaller size", uri);
  }
  *out = device;
  return 0;
}

void MemDevice::close() {
  check_detached();
  (void)sys::unmap(base_, limit_);
  device_free(this);
}

int MemDevice::grow(uint64_t bytes) {
  if (bytes > limit_) return -ENOSPC;
  bytes = round_up(bytes, sys::page_bytes());
  const sys::Locked<sys::Mutex> lock(growing_);
  const uint64_t size = size_bytes();
  if (bytes <= size) return 0;
  const int err = sys::protect(base_ + size, bytes - size, PROT_READ | PROT_WRITE);
  if (err < 0) return err;
  size_.store(bytes, std::memory_order_release);
  return 0;
}

void* MemDevice::map(DeviceOffset offset, uint64_t bytes) {
  return inside(offset.value, bytes) ? base_ + offset.value : nullptr;
}

int MemDevice::reserve(DeviceOffset offset, uint64_t length) {
  if (!inside(offset.value, length)) return -ENOSPC;
  if (length == 0) return 0;
  const uint64_t page = sys::page_bytes(), from = round_down(offset.value, page),
                 to = round_up(offset.value + length, page);
  int err;
  do err = sys::advise(base_ + from, to - from, MADV_POPULATE_WRITE);
  while (err == -EINTR || err == -EAGAIN);
  return err == -EINVAL ? 0 : err;  // -EINVAL: a kernel before 5.14 cannot be asked
}

// Returns whole pages to the host; they then read as zeros.
void MemDevice::release(DeviceOffset offset, uint64_t length) {
  if (read_only_ || !inside(offset.value, length)) return;
  const uint64_t page = sys::page_bytes(), from = round_up(offset.value, page),
                 to = round_down(offset.value + length, page);
  if (from < to) (void)sys::advise(base_ + from, to - from, MADV_DONTNEED);
}

int64_t MemDevice::transfer(const Command& command) {
  const uint64_t at = command.offset.value, size = size_bytes();
  const bool read = command.op == Op::kRead;
  if (command.op == Op::kFlush) return 0;
  if (!read && read_only_) return -EROFS;
  if (command.op == Op::kDiscard) {
    if (!inside(at, command.length)) return -EINVAL;
    memset(base_ + at, 0, command.length);
    return 0;
  }
  uint64_t bytes = command_bytes(command), done = 0;
  if (!read && !inside(at, bytes)) return -ENOSPC;
  const uint64_t left = at < size ? size - at : 0;
  if (bytes > left) bytes = left;
  for (uint32_t i = 0; done < bytes; ++i) {
    const uint64_t part = std::min<uint64_t>(command.iov[i].iov_len, bytes - done);
    if (read)
      copy_from_device(command.iov[i].iov_base, base_ + at + done, part);
    else
      copy_to_device(base_ + at + done, command.iov[i].iov_base, part);
    done += part;
  }
  return static_cast<int64_t>(bytes);
}

Capabilities MemDevice::capabilities() const {
  Capabilities out;
  out.discard = !read_only_;
  out.instant = out.polled = true;
  out.persistent = false;
  out.fua = Fua::kFree;
  out.memory_align = 1;
  return out;
}

int MemDevice::attach(const ContextOptions& options, Context** out) {
  OwnedContext* context = nullptr;
  const int status = SyncContext::create(this, options, &context);
  return attached(status, context, out);
}

}  // namespace lunar
