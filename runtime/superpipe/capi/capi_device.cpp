// SPDX-License-Identifier: Apache-2.0
// IBM's CAPI disks as LUNs: see capi_device.h.
#include "superpipe/capi/capi_device.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>

#include <algorithm>

#include "base/host_guard.h"
#include "superpipe/capi/capi_context.h"
#include "superpipe/device_memory.h"
#include "superpipe/signature.h"
#include "sys/arena.h"
#include "sys/fatal.h"
#include "sys/file.h"
#include "sys/memory_copy.h"
#include "sys/scsi.h"

namespace lunar {
namespace {

constexpr uint64_t kBlockBytes = 4096;
constexpr size_t kBlocksMax = 4096;  // 16 MiB
constexpr int kNoThreads = 4;        // CBLK_OPN_NO_INTRP_THREADS: contexts poll for results
constexpr int kOwnRequests = 64;     // of the device's own chunk

uint64_t held_by_this_process(int chunk) {
  return uint64_t{sys::memory_copy()} << 32 | static_cast<uint32_t>(chunk);
}

// PATH[,lib=LIBRARY]; without that setting `library` is "".
int split_uri(const char* uri, char (&path)[4096], char (&library)[512], ErrorText* why) {
  const char* rest = uri + strlen("capi:");
  const size_t length = strcspn(rest, ",");
  const char* setting = rest + length;
  if (length >= sizeof path || strlen(setting) >= sizeof library)
    return why->set(-ENAMETOOLONG, "LUN %.64s...: the name is too long; give a shorter path", uri);
  if (*setting && (strncmp(setting, ",lib=", 5) != 0 || !setting[5]))
    return why->set(-EINVAL, "LUN %s: unknown setting '%s'; known: lib=PATH", uri, setting + 1);
  memcpy(path, rest, length);
  path[length] = 0;
  strcpy(library, *setting ? setting + 5 : "");
  return 0;
}

}  // namespace

int CapiDevice::open(const char* uri, const DeviceOptions& options, Device** out, ErrorText* why) {
  char path[4096], library[512];
  int err = split_uri(uri, path, library, why);
  if (err < 0) return err;
  struct stat status;
  err = sys::path_status(path, &status);
  if (err < 0) {
    // A missing library is the more useful message.
    CapiLibrary missing;
    if (missing.load(uri, library, why) < 0) return -ENODEV;
    return why->set(err, "LUN %s: there is no %s; CAPI disks are /dev/sgN (IBM's cxlfd lists them)",
                    uri, path);
  }
  const size_t uri_bytes = strlen(uri) + 1, path_bytes = strlen(path) + 1;
  char* name = nullptr;
  auto* device = device_new<CapiDevice>(uri_bytes + path_bytes, &name);
  if (!device) return why->set(-ENOMEM, "LUN %s: out of memory", uri);
  memcpy(name, uri, uri_bytes);
  memcpy(name + uri_bytes, path, path_bytes);
  device->name_ = name;
  device->path_ = name + uri_bytes;
  device->read_only_ = options.read_only && !options.scratch;
  CapiLibrary& ibm = device->library_;
  err = ibm.load(uri, library, why);
  if (err == 0) err = device->open_node(uri, options, why);
  if (err == 0) err = device->open_chunk(uri, options, why);
  if (err < 0) {
    device->files_.close();
    device_free(device);
    return err;
  }
  *out = device;
  return 0;
}

int CapiDevice::open_node(const char* uri, const DeviceOptions& options, ErrorText* why) {
  const Claim claim = options.scratch ? Claim::kAlone : options.claim;
  if (claim == Claim::kParts)
    return why->set(-ENOTSUP,
                    "LUN %s: carries no virtual LUNs: Lunar's locks do not reach a CAPI disk's "
                    "other nodes; give it as a whole, to one program",
                    uri);
  const int node = sys::open_file(path_, (read_only_ ? O_RDONLY : O_RDWR) | O_NONBLOCK);
  if (node < 0)
    return why->set(node, "LUN %s: cannot be opened: %s (%s); run as a user who may", uri,
                    errno_text(node), errno_name(node));
  files_.set(0, node);
  return files_.claim(claim, read_only_, path_, why);
}

int CapiDevice::open_chunk(const char* uri, const DeviceOptions& options, ErrorText* why) {
  const CapiLibrary& ibm = library_;
  const HostGuard guard;  // the library allocates from DRAM
  if (ibm.init) (void)ibm.init(nullptr, 0);
  errno = 0;
  const int chunk = ibm.open(path_, kOwnRequests, read_only_ ? O_RDONLY : O_RDWR, 0, kNoThreads);
  if (chunk == CapiLibrary::kNull)
    return why->set(
        errno ? -errno : -ENODEV,
        "LUN %s: IBM's library cannot open it (%s); it must be a disk behind a CAPI adapter, "
        "and yours to open (cxlfd, cxlfstatus)",
        uri, errno_name(errno ? errno : ENODEV));
  chunk_.store(held_by_this_process(chunk), std::memory_order_release);
  size_t blocks = 0;
  CapiAttributes attributes = {};
  int err = 0;
  if (ibm.get_lun_size(chunk, &blocks, 0) != 0) {
    err = why->set(errno ? -errno : -EIO, "LUN %s: IBM's library does not tell its size (%s)", uri,
                   errno_name(errno));
  } else {
    if (ibm.get_attrs && ibm.get_attrs(chunk, &attributes, 0) == 0) {
      blocks_max_ = std::min<uint64_t>(attributes.max_transfer_size, kBlocksMax);
      unmap_ = ibm.unmap && (attributes.flags1 & CapiLibrary::kUnmap);
    }
    if (blocks_max_ == 0) blocks_max_ = 1;
    size_bytes_ = blocks * kBlockBytes;
    if (options.scratch) err = take_as_scratch(path_, why);
    if (err == 0 && (size_bytes_ == 0 || options.want_bytes > size_bytes_))
      err = why->set(-ENOSPC, "LUN %s: %s large, %s wanted; ask for less, or give another LUN", uri,
                     format_size(size_bytes_).text, format_size(options.want_bytes).text);
  }
  if (err < 0) (void)ibm.close(chunk, 0);
  return err;
}

int CapiDevice::take_as_scratch(const char* path, ErrorText* why) {
  auto* head = static_cast<char*>(map_private(kScratchProbeBytes, ForkPolicy::kDontFork));
  if (!head) return why->set(-ENOMEM, "LUN %s: out of memory", path);
  iovec part = {head, kScratchProbeBytes};
  Command command;
  command.iov = &part;
  command.iov_count = 1;
  int64_t moved = size_bytes_ > kScratchDataOffset ? transfer(command) : -ENOSPC;
  const bool foreign =
      moved > 0 && signature_of(head, static_cast<size_t>(moved), nullptr) == Contents::kForeign;
  if (moved > 0 && !foreign) {
    signature_make(reinterpret_cast<ScratchHeader*>(head), 0);
    part.iov_len = sizeof(ScratchHeader);
    command.op = Op::kWrite;
    moved = transfer(command);
  }
  unmap_private(head, kScratchProbeBytes);
  if (foreign)
    return why->set(-EEXIST, "LUN %s: holds unknown data in its first 64 KiB; give an empty one",
                    path);
  if (moved < 0)
    return why->set(static_cast<int>(moved), "LUN %s: its head cannot be read and written: %s",
                    path, errno_text(static_cast<int>(moved)));
  data_offset_ = kScratchDataOffset;
  size_bytes_ -= kScratchDataOffset;
  return 0;
}

void CapiDevice::close() {
  LUNAR_CHECK(contexts_.load(std::memory_order_acquire) == 0, "LUN closed with contexts attached");
  const uint64_t held = chunk_.exchange(0, std::memory_order_acq_rel);
  if (held >> 32 == sys::memory_copy()) (void)library_.close(static_cast<int>(held), 0);
  files_.close();
  device_free(this);
}

int CapiDevice::chunk() {
  for (;;) {
    uint64_t held = chunk_.load(std::memory_order_acquire);
    if (held >> 32 == sys::memory_copy()) return static_cast<int>(held);
    const HostGuard guard;
    errno = 0;
    const int own =
        library_.open(path_, kOwnRequests, read_only_ ? O_RDONLY : O_RDWR, 0, kNoThreads);
    if (own == CapiLibrary::kNull) return own;
    if (chunk_.compare_exchange_strong(held, held_by_this_process(own), std::memory_order_acq_rel))
      return own;
    (void)library_.close(own, 0);
  }
}

int CapiDevice::check(const Command& command) const {
  if (command.op == Op::kFlush) return 0;
  if (command.op == Op::kDiscard) return -EOPNOTSUPP;
  if (command.op == Op::kWrite && read_only_) return -EBADF;
  uint64_t bytes = 0;
  for (uint32_t i = 0; i < command.iov_count; ++i) {
    if (command.iov[i].iov_len == 0 || command.iov[i].iov_len % kBlockBytes) return -EINVAL;
    bytes += command.iov[i].iov_len;
  }
  const uint64_t at = command.offset.value;
  if (bytes == 0 || at % kBlockBytes) return -EINVAL;
  if (at <= size_bytes_ && bytes <= size_bytes_ - at) return 0;
  if (command.op == Op::kWrite) return -ENOSPC;
  return at >= size_bytes_ ? 1 : -EINVAL;
}

int CapiDevice::flush() const {
  if (read_only_) return 0;
  struct stat status;
  const int err = sys::file_status(fd(0), &status);
  if (err < 0) return err;
  return S_ISCHR(status.st_mode) ? sys::scsi_synchronize_cache(fd(0)) : sys::sync_data(fd(0));
}

int64_t CapiDevice::transfer(const Command& command) {
  const int status = check(command);
  if (status != 0) return status > 0 ? 0 : status;
  if (command.op == Op::kFlush) return flush();
  const int64_t moved = move_data(command);
  if (moved < 0 || command.op != Op::kWrite || !command.fua) return moved;
  const int flushed = flush();
  return flushed < 0 ? flushed : moved;
}

int64_t CapiDevice::move_data(const Command& command) {
  const int own = chunk();
  if (own == CapiLibrary::kNull) return errno ? -errno : -ENODEV;
  const auto move = command.op == Op::kRead ? library_.read : library_.write;
  uint64_t done = 0;
  for (uint32_t i = 0; i < command.iov_count; ++i) {
    for (size_t at = 0; at < command.iov[i].iov_len;) {
      const size_t left = (command.iov[i].iov_len - at) / kBlockBytes,
                   blocks = std::min(left, blocks_max_);
      const auto block =
          static_cast<off_t>(first_block() + (command.offset.value + done) / kBlockBytes);
      errno = 0;
      const int moved =
          move(own, static_cast<char*>(command.iov[i].iov_base) + at, block, blocks, 0);
      if (moved < 0) return errno ? -errno : -EIO;
      done += static_cast<uint64_t>(moved) * kBlockBytes;
      at += static_cast<uint64_t>(moved) * kBlockBytes;
      if (static_cast<size_t>(moved) < blocks) return static_cast<int64_t>(done);
    }
  }
  return static_cast<int64_t>(done);
}

int CapiDevice::attach(const ContextOptions& options, Context** out) {
  const HostGuard guard;
  errno = 0;
  const int chunk = library_.open(path_, static_cast<int>(options.depth),
                                  read_only_ ? O_RDONLY : O_RDWR, 0, kNoThreads);
  if (chunk == CapiLibrary::kNull) return errno ? -errno : -ENODEV;
  OwnedContext* context = nullptr;
  const int status = CapiContext::create(this, chunk, options, &context);
  if (status < 0) {
    (void)library_.close(chunk, 0);
    return status;
  }
  contexts_.fetch_add(1, std::memory_order_relaxed);
  *out = context;
  return 0;
}

void CapiDevice::detach(Context* context) {
  static_cast<OwnedContext*>(context)->release();
  contexts_.fetch_sub(1, std::memory_order_release);
}

int CapiDevice::reserve(DeviceOffset offset, uint64_t length) {
  return offset.value > size_bytes_ || length > size_bytes_ - offset.value ? -ENOSPC : 0;
}

void CapiDevice::release(DeviceOffset offset, uint64_t length) {
  uint64_t at = round_up(offset.value, kBlockBytes);
  const uint64_t end = round_down(offset.value + length, kBlockBytes);
  if (!unmap_ || end > size_bytes_) return;
  const int own = chunk();
  if (own == CapiLibrary::kNull) return;
  // unmap takes a block with the content that unmapped blocks should have: zeros.
  void* zeros = map_private(kBlockBytes, ForkPolicy::kDontFork);
  while (zeros && at < end) {
    const size_t left = (end - at) / kBlockBytes, blocks = std::min(left, blocks_max_);
    if (library_.unmap(own, zeros, static_cast<off_t>(first_block() + at / kBlockBytes), blocks,
                       0) <= 0)
      break;
    at += blocks * kBlockBytes;
  }
  if (zeros) unmap_private(zeros, kBlockBytes);
}

Capabilities CapiDevice::capabilities() const {
  Capabilities out;
  out.transfer_bytes_max = kBlocksMax * kBlockBytes;  // sent in pieces that the library accepts
  out.memory_align = 16;
  return out;
}

}  // namespace lunar
