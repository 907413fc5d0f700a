// SPDX-License-Identifier: Apache-2.0
// Opening mapped memory: determines the kind of device, how its writes become durable, and whether
// it may be used. See pmem_device.h.
//
// Idea: open checks for everything that could go wrong later, and refuses it with one line. The
// device is examined and marked through the mapping, which all kinds have (hugetlbfs and device DAX
// have no write call).
// Threading: one thread per device. Blocking; not for the fault path.
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <algorithm>
#include <new>

#include "base/format.h"
#include "superpipe/device_memory.h"
#include "superpipe/pmem/pmem_device.h"
#include "superpipe/signature.h"
#include "sys/arena.h"
#include "sys/file.h"
#include "sys/mem.h"
#include "sys/thread.h"

#ifndef MAP_SHARED_VALIDATE
#define MAP_SHARED_VALIDATE 3
#endif
#ifndef MAP_SYNC
#define MAP_SYNC 0x80000
#endif

namespace lunar {
namespace {

// The extents that are examined for holes at open. Chunks behind them count as not backed.
constexpr unsigned kExtentsMax = 65536;
constexpr uint64_t kGrowMin = 2 * kMiB;  // the least size that a blank file must be able to reach

bool is_memory(uint64_t magic) {
  return magic == TMPFS_MAGIC || magic == RAMFS_MAGIC || magic == HUGETLBFS_MAGIC;
}

int explain(int err, const char* path, const char* what, ErrorText* why) {
  switch (-err) {
    case EACCES:
    case EPERM:
      return why->set(
          err, "LUN pmem:%s: no permission to %s; run as a user who may, or give another file",
          path, what);
    case EROFS:
      return why->set(err, "LUN pmem:%s: read-only; remount it read-write, or give another file",
                      path);
    case ENOSPC:
    case EDQUOT:
      return why->set(err, "LUN pmem:%s: no space left; free some, or give another file", path);
    case ENOMEM:
      return why->set(err,
                      "LUN pmem:%s: cannot be mapped: out of memory, address space or huge pages; "
                      "make it smaller, or raise the limit (ulimit -v, vm.nr_hugepages)",
                      path);
    default:
      return why->set(err, "LUN pmem:%s: cannot %s: %s (%s); give another file", path, what,
                      errno_text(err), errno_name(err));
  }
}

int refuse_foreign(const char* path, ErrorText* why) {
  return why->set(-EEXIST,
                  "LUN pmem:%s: holds unknown data in its first 64 KiB; if it may go, overwrite "
                  "them with zeros",
                  path);
}

// A number from a file of /sys; 0 if the file does not exist.
uint64_t sysfs_number(const char* kind, uint64_t rdev, const char* leaf) {
  char path[128], text[32];
  format_to(path, sizeof path, "/sys/dev/%s/%u:%u/%s", kind, major(rdev), minor(rdev), leaf);
  return sys::read_text(path, text, sizeof text) > 0 ? strtoull(text, nullptr, 0) : 0;
}

}  // namespace

int PmemDevice::open(const char* uri, const char* path, const DeviceOptions& options, Device** out,
                     ErrorText* why) {
  const char* name = nullptr;
  auto* device = device_new<PmemDevice>(uri, &name);
  if (!device) return why->set(-ENOMEM, "LUN %s: out of memory", uri);
  device->name_ = name;
  const int err = device->open_uri(uri, path, options, why);
  if (err < 0)
    device->abandon();
  else
    *out = device;
  return err;
}

int PmemDevice::open_uri(const char* uri, const char* path, const DeviceOptions& options,
                         ErrorText* why) {
  char clean[4096];
  int err = parse_settings(uri, path, clean, sizeof clean, why);
  if (err < 0) return err;
  raw_ = !options.scratch;
  read_only_ = options.read_only && raw_;

  struct stat status;
  err = sys::path_status(clean, &status);
  if (err == -ENOENT || err == -ENOTDIR)
    return why->set(err, "LUN %s: there is no such file; make one (truncate -s 1g /dev/shm/NAME)",
                    uri);
  if (err < 0) return explain(err, clean, "look at it", why);
  if (S_ISREG(status.st_mode))
    err = open_regular(clean, options, why);
  else if (S_ISBLK(status.st_mode))
    err = open_block(clean, status, options, why);
  else if (S_ISCHR(status.st_mode))
    err = open_character(clean, status, options, why);
  else
    err = why->set(
        -EINVAL, "LUN %s: neither a file, a DAX device nor a pmem block device; give one of these",
        uri);
  if (err == 0 && options.want_bytes > size_bytes_)
    err = why->set(-ENOSPC, "LUN %s: %s %s, %s wanted; give a larger one", uri,
                   format_size(size_bytes_).text, growable_ ? "free" : "large",
                   format_size(options.want_bytes).text);
  if (err == 0 && pool_.create() < 0) err = why->set(-ENOMEM, "LUN %s: out of memory", uri);
  return err;
}

int PmemDevice::parse_settings(const char* uri, const char* path, char* clean, size_t size,
                               ErrorText* why) {
  size_t length = strcspn(path, ",");
  if (length == 0 || length >= size)
    return why->set(-EINVAL, "LUN %s: no path; write pmem:PATH[,delegate=auto|on|off]", uri);
  memcpy(clean, path, length);
  clean[length] = 0;
  for (const char* text = path + length; *text == ','; text += length) {
    length = strcspn(++text, ",");
    const auto is = [&](const char* setting) {
      return strlen(setting) == length && strncmp(text, setting, length) == 0;
    };
    if (is("delegate=auto"))
      delegate_ = Delegate::kAuto;
    else if (is("delegate=on"))
      delegate_ = Delegate::kOn;
    else if (is("delegate=off"))
      delegate_ = Delegate::kOff;
    else if (length >= 9 && strncmp(text, "delegate=", 9) == 0)
      return why->set(-EINVAL, "LUN %s: delegate is auto, on or off, not '%.*s'", uri,
                      static_cast<int>(length - 9), text + 9);
    else
      return why->set(-EINVAL, "LUN %s: unknown setting '%.*s'; known: delegate=auto|on|off", uri,
                      static_cast<int>(length), text);
  }
  return 0;
}

// Opens the descriptor, and claims the device.
int PmemDevice::open_backing(const char* path, const DeviceOptions& options, ErrorText* why) {
  const int opened = sys::open_file(path, read_only_ ? O_RDONLY : O_RDWR);
  if (opened < 0) return explain(opened, path, read_only_ ? "open it" : "open it for writing", why);
  reopen(0, opened);
  return files_.claim(options.scratch ? Claim::kAlone : options.claim, read_only_, path, why);
}

// Maps the device and finds out how its writes become durable.
int PmemDevice::map(const char* path, uint64_t bytes, bool memory, const DeviceOptions& options,
                    ErrorText* why) {
  const int access = read_only_ ? PROT_READ : PROT_READ | PROT_WRITE;
  void* mapped = nullptr;
  int err = -EOPNOTSUPP;
  if (!memory) {
    err = sys::map(nullptr, bytes, access, MAP_SHARED_VALIDATE | MAP_SYNC, fd(), 0, &mapped);
    // If the CPU has no instruction that flushes a line from user space, msync does it.
    if (err == 0)
      sync_ = pmem::can_flush() ? Sync::kLines : Sync::kMsync;
    else if (err != -EOPNOTSUPP && err != -EINVAL)
      return explain(err, path, "map it", why);
  }
  if (err < 0) {
    if (!memory && regular_ && options.scratch)
      return why->set(
          -ENOTSUP, "LUN pmem:%s: lies on a disk, not on memory or a DAX file system; give file:%s",
          path, path);
    err = sys::map(nullptr, bytes, access, MAP_SHARED, fd(), 0, &mapped);
    if (err < 0) return explain(err, path, "map it", why);
    if (!memory) sync_ = Sync::kMsync;
  }
  flush_ = pmem::flush_method();
  map_ = data_ = static_cast<char*>(mapped);
  map_bytes_ = bytes;
  return 0;
}

int PmemDevice::make_bitmap(bool all) {
  const uint64_t chunks = (map_bytes_ + chunk_bytes_ - 1) / chunk_bytes_;
  backed_bytes_ = (chunks + 63) / 64 * 8;
  auto* words = static_cast<char*>(map_private(backed_bytes_, ForkPolicy::kInherit));
  if (!words) return -ENOMEM;
  backed_ = reinterpret_cast<std::atomic<uint64_t>*>(words);
  if (all) memset(words, 0xff, backed_bytes_);
  return 0;
}

// Marks the chunks without a hole. File systems that do not know holes report none.
void PmemDevice::find_backed(uint64_t file_bytes) {
  uint64_t at = 0;
  for (unsigned i = 0; i < kExtentsMax && at < file_bytes; ++i) {
    const int64_t data = sys::next_data(fd(), at);
    if (data < 0) return;
    const int64_t hole = sys::next_hole(fd(), static_cast<uint64_t>(data));
    if (hole < 0) return;
    at = static_cast<uint64_t>(hole);
    for (uint64_t chunk = (static_cast<uint64_t>(data) + chunk_bytes_ - 1) / chunk_bytes_;
         chunk < at / chunk_bytes_; ++chunk)
      if ((chunk + 1) * chunk_bytes_ <= map_bytes_) set_backed(chunk);
  }
}

// Sets size_bytes_, map_bytes_ and growable_: how much of a regular file, or of its file system,
// the mapping covers.
int PmemDevice::size_raw(const char* path, const struct stat& status, ErrorText* why) {
  const auto file_bytes = static_cast<uint64_t>(status.st_size);
  size_bytes_ = round_down(file_bytes, page_bytes_ > sys::page_bytes() ? page_bytes_ : 512);
  if (size_bytes_ == 0)
    return why->set(-ENOSPC, "LUN pmem:%s: empty; give it a size (truncate -s 1g %s)", path, path);
  map_bytes_ = round_up(size_bytes_, page_bytes_);
  return 0;
}

int PmemDevice::size_scratch(const char* path, const struct stat& status, bool grown,
                             uint64_t free_bytes, ErrorText* why) {
  const auto file_bytes = static_cast<uint64_t>(status.st_size);
  growable_ = grown || (file_bytes <= kScratchDataOffset && page_bytes_ == sys::page_bytes());
  map_bytes_ = round_down(file_bytes, page_bytes_);
  if (growable_) {  // its content is cut off, so its space counts as free
    map_bytes_ =
        round_down(free_bytes + static_cast<uint64_t>(status.st_blocks) * 512, page_bytes_);
    if (map_bytes_ < kGrowMin + kScratchDataOffset)
      return why->set(-ENOSPC,
                      "LUN pmem:%s: empty, and its file system tells no free space; "
                      "free some, or give the file a size (truncate -s 1g %s)",
                      path, path);
  }
  if (map_bytes_ <= kScratchDataOffset)
    return why->set(-ENOSPC, "LUN pmem:%s: too small; give it a size (truncate -s 1g %s)", path,
                    path);
  size_bytes_ = round_down(map_bytes_ - kScratchDataOffset, 4096);
  return 0;
}

int PmemDevice::open_regular(const char* path, const DeviceOptions& options, ErrorText* why) {
  regular_ = true;
  int err = open_backing(path, options, why);
  if (err < 0) return err;
  struct stat status;
  uint64_t magic = 0, free_bytes = 0, flags = 0;
  Contents contents = Contents::kEmpty;
  err = sys::file_status(fd(), &status);
  if (err == 0) err = sys::file_system_type(fd(), &magic, &free_bytes);
  if (err == 0 && options.scratch) err = signature_read(fd(), &contents, &flags);
  if (err < 0) return explain(err, path, "look at it", why);
  if (contents == Contents::kForeign)
    return why->set(
        -EEXIST,
        "LUN pmem:%s: holds data that is not Lunar's; is the name right? Give an empty file", path);
  page_bytes_ =
      magic == HUGETLBFS_MAGIC ? static_cast<uint64_t>(status.st_blksize) : sys::page_bytes();
  if (chunk_bytes_ < page_bytes_) chunk_bytes_ = page_bytes_;
  if (options.scratch)
    err = size_scratch(path, status, contents == Contents::kOurs && (flags & kScratchGrowable),
                       free_bytes, why);
  else
    err = size_raw(path, status, why);
  if (err == 0) err = map(path, map_bytes_, is_memory(magic), options, why);
  if (err < 0) return err;
  err = make_bitmap(false);
  if (err < 0) return explain(err, path, "keep its map", why);
  // hugetlbfs cannot report holes; a file that grows has no chunks yet.
  if (!growable_ && magic != HUGETLBFS_MAGIC) find_backed(static_cast<uint64_t>(status.st_size));
  return options.scratch ? take_scratch(path, why) : 0;
}

// Marks a mapped device as a scratch LUN. Its content may be lost.
int PmemDevice::take_scratch(const char* path, ErrorText* why) {
  data_offset_ = kScratchDataOffset;
  data_ = map_ + kScratchDataOffset;
  cut_at_close_ = growable_;
  int err = growable_ ? sys::set_file_size(fd(), 0) : 0;  // removes data of a former owner
  if (err == 0 && growable_) err = sys::allocate_space(fd(), 0, sizeof(ScratchHeader));
  if (err == -EOPNOTSUPP)
    return why->set(err,
                    "LUN pmem:%s: its file system cannot reserve space (fallocate); "
                    "give the file a size (truncate -s 1g %s)",
                    path, path);
  if (err < 0) return explain(err, path, "reserve space", why);
  ScratchHeader header;
  signature_make(&header, growable_ ? uint64_t{kScratchGrowable} : 0);
  if (prepare(0, sizeof header, true) < 0) return explain(-ENOSPC, path, "write its header", why);
  memcpy(map_, &header, sizeof header);
  if (sync_ == Sync::kLines) pmem::flush_lines(flush_, map_, sizeof header);
  err = settle(0, sizeof header);
  return err < 0 ? explain(err, path, "write its header", why) : 0;
}

int PmemDevice::open_block(const char* path, const struct stat& status,
                           const DeviceOptions& options, ErrorText* why) {
  if (sysfs_number("block", status.st_rdev, "queue/dax") == 0 &&
      sysfs_number("block", status.st_rdev, "../queue/dax") == 0)
    return why->set(-ENOTSUP, "LUN pmem:%s: a block device that is not memory; give file:%s", path,
                    path);
  int err = open_backing(path, options, why);
  if (err < 0) return err;
  uint64_t bytes = 0;
  err = sys::block_device_size(fd(), &bytes);
  if (err < 0) return explain(err, path, "ask its size", why);
  page_bytes_ = sys::page_bytes();
  bytes = round_down(bytes, page_bytes_);
  if (bytes <= (options.scratch ? kScratchDataOffset : 0))
    return why->set(-ENOSPC, "LUN pmem:%s: too small; give a larger one", path);
  err = map(path, bytes, false, options, why);
  if (err < 0) return err;
  err = make_bitmap(true);
  if (err < 0) return explain(err, path, "keep its map", why);
  size_bytes_ = bytes;
  if (!options.scratch) return 0;
  size_bytes_ = round_down(bytes - kScratchDataOffset, 4096);
  const Contents contents = signature_of(map_, kScratchProbeBytes, nullptr);
  char what[64];
  const int known = block_signature(path, contents == Contents::kOurs, what, sizeof what);
  if (known == 1)
    return why->set(-EEXIST,
                    "LUN pmem:%s: holds %s; give an empty device, or erase it (wipefs -a %s)", path,
                    what, path);
  if (known == -ENOSYS)
    return why->set(
        known,
        "LUN pmem:%s: libblkid.so.1 is missing, so its contents are not known; install libblkid1",
        path);
  if (known < 0) return explain(known, path, "have libblkid look at it", why);
  return contents == Contents::kForeign ? refuse_foreign(path, why) : take_scratch(path, why);
}

int PmemDevice::open_character(const char* path, const struct stat& status,
                               const DeviceOptions& options, ErrorText* why) {
  uint64_t bytes = sysfs_number("char", status.st_rdev, "size");
  const uint64_t align = sysfs_number("char", status.st_rdev, "align");
  if (bytes == 0) return why->set(-EINVAL, "LUN pmem:%s: not a DAX device; give /dev/daxX.Y", path);
  int err = open_backing(path, options, why);
  if (err < 0) return err;
  page_bytes_ = std::max<uint64_t>(align, sys::page_bytes());
  bytes = round_down(bytes, page_bytes_);
  if (bytes <= (options.scratch ? kScratchDataOffset : 0))
    return why->set(-ENOSPC, "LUN pmem:%s: too small; give a larger one", path);
  err = map(path, bytes, false, options, why);
  if (err < 0) return err;
  if (!pmem::can_flush() && !read_only_)
    return why->set(-ENOTSUP,
                    "LUN pmem:%s: this CPU has no instruction by which a program makes writes "
                    "durable; use a file on a DAX file system",
                    path);
  sync_ = Sync::kLines;  // stores go to the device even without MAP_SYNC
  err = make_bitmap(true);
  if (err < 0) return explain(err, path, "keep its map", why);
  size_bytes_ = bytes;
  if (!options.scratch) return 0;
  size_bytes_ = round_down(bytes - kScratchDataOffset, 4096);
  if (signature_of(map_, kScratchProbeBytes, nullptr) == Contents::kForeign)
    return refuse_foreign(path, why);
  return take_scratch(path, why);
}

// Releases all resources of the device, and the object.
void PmemDevice::abandon() {
  pool_.destroy();
  if (map_) (void)sys::unmap(map_, map_bytes_);
  if (backed_) unmap_private(backed_, backed_bytes_);
  files_.close();
  device_free(this);
}

}  // namespace lunar
