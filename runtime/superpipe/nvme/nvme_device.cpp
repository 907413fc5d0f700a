// SPDX-License-Identifier: Apache-2.0
// NVMe namespaces as LUNs: see nvme_device.h.
// Threading: open and close on one thread; the rest from any. open may not be used on the fault
// path.
#include "superpipe/nvme/nvme_device.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <algorithm>

#include "base/format.h"
#include "superpipe/block_queue.h"
#include "superpipe/device_in_use.h"
#include "superpipe/device_memory.h"
#include "superpipe/nvme/nvme_context.h"
#include "superpipe/signature.h"
#include "sys/arena.h"
#include "sys/file.h"
#include "sys/log.h"
#include "sys/thread.h"
#include "sys/uring.h"

namespace lunar {
namespace {

constexpr size_t kIdentifyBytes = 4096;
constexpr uint8_t kOpcodeDatasetManagement = 0x09;
constexpr uint32_t kDeallocate = 4;             // attribute bit, command dword 11
constexpr uint64_t kDeallocateBytesMax = kGiB;  // of one range; within every controller's limits

// Finds "0n1" and its length in "nvme0n1", also in a partition's name "nvme0n1p2". nullptr: it is
// no such name.
const char* namespace_of_block(const char* path, size_t* length) {
  const char* base = strrchr(path, '/');
  base = base ? base + 1 : path;
  if (strncmp(base, "nvme", 4) != 0) return nullptr;
  const char* numbers = base + 4;
  const size_t controller = strspn(numbers, "0123456789");
  if (controller == 0 || numbers[controller] != 'n') return nullptr;
  const size_t number = strspn(numbers + controller + 1, "0123456789");
  *length = controller + 1 + number;
  return number ? numbers : nullptr;
}

int refuse_other(const char* path, const struct stat& status, ErrorText* why) {
  size_t length = 0;
  const char* numbers = S_ISBLK(status.st_mode) ? namespace_of_block(path, &length) : nullptr;
  if (numbers)
    return why->set(-EINVAL,
                    "LUN %s: the block device; NVMe commands go to the whole namespace's character "
                    "device: write nvme:/dev/ng%.*s (or file:%s for the block device)",
                    path, static_cast<int>(length), numbers, path);
  return why->set(-EINVAL,
                  "LUN %s: not the character device of an NVMe namespace; write nvme:/dev/ngXnY "
                  "(`ls /dev/ng*`)",
                  path);
}

int refuse_rights(const char* path, int err, ErrorText* why) {
  return why->set(
      err,
      "LUN %s: no right to open it; run `sudo setfacl -m u:$(id -un):rw %s` (permanently: a udev "
      "rule, KERNEL==\"ng*\", GROUP=\"disk\", MODE=\"0660\", and be in group disk), or run as root",
      path, path);
}

}  // namespace

int NvmeDevice::open(const char* uri, const DeviceOptions& options, Device** out, ErrorText* why) {
  const char* path = uri + strlen("nvme:");
  if (*path == '\0')
    return why->set(-EINVAL, "LUN %s: no device; write nvme:/dev/ngXnY (`ls /dev/ng*`)", uri);
  const char* name = nullptr;
  auto* device = device_new<NvmeDevice>(uri, &name);
  if (!device) return why->set(-ENOMEM, "LUN %s: out of memory", uri);
  device->name_ = name;
  const int err = device->open_path(path, options, why);
  if (err < 0) {
    device->files_.close();
    device_free(device);
    return err;
  }
  *out = device;
  return 0;
}

int NvmeDevice::open_path(const char* path, const DeviceOptions& options, ErrorText* why) {
  struct stat status;
  int err = sys::path_status(path, &status);
  if (err == -ENOENT || err == -ENOTDIR)
    return why->set(err,
                    "LUN %s: there is no such device; NVMe namespaces are /dev/ngXnY (`ls "
                    "/dev/ng*`, Linux 5.13 or later)",
                    path);
  if (err == -EACCES) return refuse_rights(path, err, why);
  if (err < 0)
    return why->set(err, "LUN %s: cannot look at it: %s (%s)", path, errno_text(err),
                    errno_name(err));
  if (!S_ISCHR(status.st_mode)) return refuse_other(path, status, why);
  const bool writable = options.scratch || !options.read_only;
  const int opened = sys::open_file(path, writable ? O_RDWR : O_RDONLY);
  if (opened == -EACCES || opened == -EPERM) return refuse_rights(path, opened, why);
  if (opened < 0)
    return why->set(opened, "LUN %s: cannot open it: %s (%s)", path, errno_text(opened),
                    errno_name(opened));
  reopen(0, opened);
  err = sys::nvme_namespace_id(opened);
  if (err <= 0) return refuse_other(path, status, why);
  geometry_.nsid = static_cast<uint32_t>(err);
  geometry_.read_only = !writable;
  err = files_.claim(options.scratch ? Claim::kAlone : options.claim, !writable, path, why);
  if (err == 0) err = identify(path, why);
  if (err < 0) return err;
  limit_as_block_device(status.st_rdev);
  size_bytes_ = geometry_.blocks << geometry_.block_shift;
  if (options.scratch) err = take_as_scratch(path, why);
  if (err == 0 && (size_bytes_ == 0 || options.want_bytes > size_bytes_))
    err = why->set(-ENOSPC, "LUN %s: %s large, %s wanted; ask for less, or give another LUN", path,
                   format_size(size_bytes_).text, format_size(options.want_bytes).text);
  return err;
}

int NvmeDevice::identify(const char* path, ErrorText* why) {
  auto* pages = static_cast<uint8_t*>(map_private(2 * kIdentifyBytes, ForkPolicy::kDontFork));
  if (!pages) return why->set(-ENOMEM, "LUN %s: out of memory", path);
  uint8_t* controller = pages + kIdentifyBytes;
  int answer = sys::nvme_identify(fd(0), geometry_.nsid, 0, pages);
  if (answer == 0) answer = sys::nvme_identify(fd(0), 0, 1, controller);
  const char* reason = nullptr;
  int err = answer == 0 ? nvme_geometry(pages, controller, &geometry_, &reason) : 0;
  unmap_private(pages, 2 * kIdentifyBytes);
  if (answer == -EACCES || answer == -EPERM)
    return why->set(answer,
                    "LUN %s: this kernel lets only root send NVMe commands; run as root, or boot "
                    "Linux 6.2 or later",
                    path);
  if (answer != 0)
    return why->set(answer < 0 ? answer : -EIO,
                    "LUN %s: the controller does not identify the namespace (%s); look at dmesg",
                    path, answer < 0 ? errno_name(answer) : "NVMe error");
  return err < 0 ? why->set(err, "LUN %s: %s", path, reason) : 0;
}

// Limits a piece by the kernel's limits for one command, which sysfs has for the block device of
// the same namespace.
void NvmeDevice::limit_as_block_device(uint64_t rdev) {
  char node[48], file[96], numbers[32], *rest = nullptr;
  if (!device_node_name(false, rdev, node, sizeof node) || strncmp(node, "ng", 2) != 0) return;
  format_to(file, sizeof file, "/sys/class/block/nvme%s/dev", node + 2);
  if (sys::read_text(file, numbers, sizeof numbers) <= 0)
    return;  // no block device: another I/O command set
  const auto major_number = static_cast<unsigned>(strtoul(numbers, &rest, 10));
  if (*rest != ':') return;
  const uint64_t block =
      makedev(major_number, static_cast<unsigned>(strtoul(rest + 1, nullptr, 10)));
  format_to(block_path_, sizeof block_path_, "/dev/nvme%s", node + 2);
  const int64_t kib = block_queue_value(block, "max_hw_sectors_kb"),
                segments = block_queue_value(block, "max_segments");
  uint64_t most = geometry_.piece_bytes_max;
  if (kib > 0 && static_cast<uint64_t>(kib) * kKiB < most) most = static_cast<uint64_t>(kib) * kKiB;
  // In the worst case every page is a segment, and the first and last pages are not whole.
  if (segments > 2) most = std::min(most, (static_cast<uint64_t>(segments) - 1) * 4096);
  geometry_.piece_bytes_max = static_cast<uint32_t>(round_down(most, 4096));
  if (segments > 2 && segments - 1 < geometry_.piece_parts_max)
    geometry_.piece_parts_max = static_cast<uint32_t>(segments - 1);
  if (const int64_t zeroes = block_queue_value(block, "write_zeroes_max_bytes"); zeroes >= 0) {
    geometry_.zeroes_bytes_max = static_cast<uint64_t>(zeroes);
    if (zeroes >> geometry_.block_shift == 0) geometry_.write_zeroes = false;
  }
}

// As for a block device: accepts an empty namespace, or a former scratch LUN.
int NvmeDevice::take_as_scratch(const char* path, ErrorText* why) {
  auto* head = static_cast<char*>(map_private(kScratchProbeBytes, ForkPolicy::kDontFork));
  if (!head) return why->set(-ENOMEM, "LUN %s: out of memory", path);
  const iovec whole = {head, kScratchProbeBytes};
  Command command;
  command.iov = &whole;
  command.iov_count = 1;
  int64_t moved = size_bytes_ > kScratchDataOffset ? transfer(command) : -ENOSPC;
  const Contents contents =
      moved > 0 ? signature_of(head, static_cast<size_t>(moved), nullptr) : Contents::kForeign;
  char what[64];
  int known = 0;
  if (moved > 0 && contents != Contents::kForeign && *block_path_)
    known = block_signature(block_path_, contents == Contents::kOurs, what, sizeof what);
  // Without the right to open the block device, only the head is known.
  if (moved > 0 && contents != Contents::kForeign && known <= 0) {
    signature_make(reinterpret_cast<ScratchHeader*>(head), 0);
    const iovec header = {head, sizeof(ScratchHeader)};
    command.op = Op::kWrite;
    command.iov = &header;
    moved = transfer(command);
  }
  unmap_private(head, kScratchProbeBytes);
  if (moved < 0)
    return why->set(static_cast<int>(moved), "LUN %s: its head cannot be read and written: %s",
                    path, errno_text(static_cast<int>(moved)));
  if (known == 1)
    return why->set(-EEXIST, "LUN %s: holds %s; give an empty one, or erase it (wipefs -a %s)",
                    path, what, block_path_);
  if (contents == Contents::kForeign)
    return why->set(-EEXIST,
                    "LUN %s: holds unknown data in its first 64 KiB; if it may go: dd if=/dev/zero "
                    "of=%s bs=64k count=1",
                    path, *block_path_ ? block_path_ : "its block device");
  data_offset_ = kScratchDataOffset;
  size_bytes_ = round_down(size_bytes_ - kScratchDataOffset, 4096);
  return 0;
}

void NvmeDevice::close() {
  check_detached();
  calls_.destroy();
  files_.close();
  device_free(this);
}

int NvmeDevice::attach(const ContextOptions& options, Context** out) {
  OwnedContext* context = nullptr;
  int status = NvmeContext::create(files_, &geometry_, data_offset_, name_, options, &context);
  if (status == -ERANGE) return -EINVAL;
  if (status == 0)
    calls_.ring_made();
  else if (calls_.replaces_ring(
               status, name_, options,
               "NVMe commands by ioctl, slower; boot Linux 5.19 or later, or allow it (sysctl "
               "kernel.io_uring_disabled=0)"))
    status = calls_.attach(this, options, &context);
  return attached(status, context, out);
}

int64_t NvmeDevice::transfer(const Command& command) {
  const int check = nvme_check(geometry_, data_offset_, command);
  if (check != 0) return check == kNothingToRead ? 0 : check;
  NvmeProgress progress;
  do {
    sys::NvmeCommand piece;
    nvme_piece(geometry_, data_offset_, command, &progress, &piece);
    const int answer = sys::nvme_io(fd(0), piece);
    if (answer != 0) return nvme_failure(name_, command, progress, answer);
  } while (!nvme_advance(command, &progress));
  return command.op == Op::kRead || command.op == Op::kWrite ? static_cast<int64_t>(progress.done)
                                                             : 0;
}

int NvmeDevice::reserve(DeviceOffset offset, uint64_t length) {
  return offset.value > size_bytes_ || length > size_bytes_ - offset.value ? -ENOSPC : 0;
}

void NvmeDevice::release(DeviceOffset offset, uint64_t length) {
  if (!geometry_.deallocate || geometry_.read_only) return;
  const uint64_t block = uint64_t{1} << geometry_.block_shift;
  uint64_t at = round_up(data_offset_ + offset.value, block);
  const uint64_t end = round_down(data_offset_ + offset.value + length, block);
  while (at < end) {
    const uint64_t bytes = std::min(end - at, kDeallocateBytesMax);
    struct alignas(16) {
      uint32_t attributes, blocks;
      uint64_t first;
    } const range = {0, static_cast<uint32_t>(bytes >> geometry_.block_shift),
                     at >> geometry_.block_shift};
    static_assert(sizeof range == 16);
    sys::NvmeCommand command;
    command.opcode = kOpcodeDatasetManagement;
    command.nsid = geometry_.nsid;
    command.data = &range;
    command.data_bytes = sizeof range;
    command.cdw11 = kDeallocate;  // cdw10: one range, counted from 0
    if (sys::nvme_io(fd(0), command) != 0) return;
    at += bytes;
  }
}

// Probed at the first query, as in FileDevice.
Capabilities NvmeDevice::capabilities() const {
  enum : uint32_t { kKnown = 1, kWindow = 2 };
  uint32_t bits = probed_.load(std::memory_order_relaxed);
  if (!(bits & kKnown)) {
    bits = kKnown | (window_can_be_registered() ? kWindow : 0u);
    probed_.store(bits, std::memory_order_relaxed);
  }
  Capabilities out;
  out.discard = geometry_.write_zeroes && !geometry_.read_only;
  out.window = (bits & kWindow) != 0;
  out.fua = geometry_.volatile_cache ? Fua::kWriteThrough : Fua::kFree;
  out.memory_align = 4;  // a dword; vectors of less than whole pages are copied by the kernel
  return out;
}

}  // namespace lunar
