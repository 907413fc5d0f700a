// SPDX-License-Identifier: Apache-2.0
// Files and block devices as LUNs: see file_device.h.
//
// Idea: open checks for everything that could go wrong later, and refuses it with one line: memory
// file systems, no O_DIRECT, no room, no fallocate, a place that holds data or is in use.
// Threading: open and close on one thread; the rest from any. May not be used on the fault path
// (its contexts may).
#include "superpipe/file/file_device.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <string.h>
#include <sys/stat.h>

#include "superpipe/block_queue.h"
#include "superpipe/device_memory.h"
#include "superpipe/ring/sync_context.h"
#include "superpipe/ring/uring_context.h"
#include "superpipe/signature.h"
#include "sys/file.h"
#include "sys/log.h"
#include "sys/thread.h"

namespace lunar {
namespace {

// Reserved at open, to check that the file system can reserve space.
constexpr uint64_t kProbeBytes = kMiB;

const char* memory_file_system(uint64_t magic) {
  switch (magic) {
    case TMPFS_MAGIC:
      return "tmpfs";
    case RAMFS_MAGIC:
      return "ramfs";
    case HUGETLBFS_MAGIC:
      return "hugetlbfs";
    default:
      return nullptr;
  }
}

int explain_open(int err, const char* path, const char* what, ErrorText* why) {
  switch (-err) {
    case EACCES:
    case EPERM:
      return why->set(err,
                      "LUN %s: no permission to %s; "
                      "run as a user who may, or give another LUN",
                      path, what);
    case EROFS:
      return why->set(err,
                      "LUN %s: the file system is read-only; "
                      "remount it read-write or give another LUN",
                      path);
    case EINVAL:
    case EOPNOTSUPP:
      return why->set(err,
                      "LUN %s: the file system offers no direct I/O (O_DIRECT); "
                      "put the LUN on ext4, xfs or btrfs",
                      path);
    case ENOSPC:
    case EDQUOT:
      return why->set(
          err, "LUN %s: no space left on the file system; free some or give another LUN", path);
    case EFBIG:
      return why->set(err,
                      "LUN %s: it would pass this process' limit on file sizes; "
                      "raise it (ulimit -f, LimitFSIZE=), or give a block device",
                      path);
    case EMFILE:
    case ENFILE:
      return why->set(err, "LUN %s: no file descriptor left; raise the limit (ulimit -n)", path);
    default:
      return why->set(err,
                      "LUN %s: cannot %s: %s (%s); "
                      "give another LUN",
                      path, what, errno_text(err), errno_name(err));
  }
}

int refuse_read_only(const char* path, ErrorText* why) {
  return why->set(-EROFS,
                  "LUN %s: the block device is read-only; make it writable (blockdev --setrw %s) "
                  "or give another one",
                  path, path);
}

// Memory file systems may not know O_DIRECT (tmpfs before 6.6), and an open with it would not tell
// the reason. So this checks the file system first.
int refuse_memory(const char* path, int flags, ErrorText* why) {
  const int fd = sys::open_file(path, O_RDONLY | flags);
  if (fd < 0) return 0;  // the real open will report why
  uint64_t magic = 0;
  const int asked = sys::file_system_type(fd, &magic, nullptr);
  sys::close_file(fd);
  const char* memory = asked == 0 ? memory_file_system(magic) : nullptr;
  return memory ? why->set(-ENOTSUP,
                           "LUN %s: lies on %s, which is memory itself; give a directory on a disk",
                           path, memory)
                : 0;
}

}  // namespace

int FileDevice::open(const char* uri, const char* path, const DeviceOptions& options, Device** out,
                     ErrorText* why) {
  struct stat status;
  const int err = sys::path_status(path, &status);
  if (err == -ENOENT || err == -ENOTDIR)
    return why->set(
        err,
        options.scratch
            ? "LUN %s: there is no such file or directory; give a directory on a disk, or make it"
            : "LUN %s: there is no such file or device",
        path);
  if (err < 0) return explain_open(err, path, "look at it", why);

  const char* name = nullptr;
  auto* device = device_new<FileDevice>(uri, &name);
  if (!device) return why->set(-ENOMEM, "LUN %s: out of memory", path);
  device->name_ = name;
  device->read_only_ = options.read_only;

  int result;
  if (!options.scratch)
    result = device->open_raw(path, status, options, why);
  else if (S_ISDIR(status.st_mode))
    result = device->open_directory(path, options, why);
  else if (S_ISREG(status.st_mode))
    result = device->open_regular(path, options, why);
  else if (S_ISBLK(status.st_mode))
    result = device->open_block(path, status.st_rdev, options, why);
  else
    result = why->set(-EINVAL,
                      "LUN %s: neither a directory, a regular file nor a block device; "
                      "give one of these",
                      path);
  if (result < 0) {
    device->files_.close();
    device_free(device);
    return result;
  }
  *out = device;
  return 0;
}

// Checks that the file system of the open file is not memory.
int FileDevice::check_file_system(const char* path, uint64_t* free_bytes, ErrorText* why) {
  uint64_t magic = 0;
  int err = sys::file_system_type(fd(), &magic, free_bytes);
  if (err < 0) return explain_open(err, path, "ask its file system", why);
  if (const char* memory = memory_file_system(magic))
    return why->set(-ENOTSUP,
                    "LUN %s: lies on %s, which is memory itself; "
                    "give a directory on a disk",
                    path, memory);
  if (magic == OVERLAYFS_SUPER_MAGIC && sys::extent_map_supported(fd()) == -EOPNOTSUPP)
    return why->set(-ENOTSUP,
                    "LUN %s: lies on an overlay over a memory file system; "
                    "give a directory on a disk (a volume)",
                    path);
  return learn_alignment(path, why);
}

int FileDevice::learn_alignment(const char* path, ErrorText* why) {
  uint32_t align = 0;
  const int err = sys::direct_io_align(fd(), &align);
  if (err < 0) return explain_open(err, path, "use direct I/O", why);
  if (align > 4096)
    return why->set(
        -ENOTSUP,
        "LUN %s: direct I/O there needs %u-byte alignment, 4096 is the limit; give another LUN",
        path, align);
  io_align_ = align <= 512 ? 512 : 4096;
  return 0;
}

int FileDevice::check_size(uint64_t want_bytes, ErrorText* why) const {
  if (want_bytes <= size_bytes_) return 0;
  return why->set(-ENOSPC,
                  "LUN %s: %s %s, %s wanted; free some space, ask for less, or give another LUN",
                  name_, format_size(size_bytes_).text, growable_ ? "free" : "large",
                  format_size(want_bytes).text);
}

// Opens the device as it is. A file of a memory file system is accepted, because a raw open is
// explicit.
int FileDevice::open_raw(const char* path, const struct stat& seen, const DeviceOptions& options,
                         ErrorText* why) {
  block_ = S_ISBLK(seen.st_mode);
  raw_ = true;
  if (!block_ && !S_ISREG(seen.st_mode))
    return why->set(-EINVAL, "LUN %s: neither a regular file nor a block device; give one of these",
                    path);
  if (block_ && !options.read_only && block_read_only(seen.st_rdev))
    return refuse_read_only(path, why);
  const int opened = sys::open_file(path, (options.read_only ? O_RDONLY : O_RDWR) | O_DIRECT);
  if (opened < 0)
    return explain_open(opened, path, options.read_only ? "open it" : "open it for writing", why);
  reopen(0, opened);
  struct stat status;
  // Of the opened file, because the path may have changed.
  int err = sys::file_status(opened, &status);
  if (err < 0) return explain_open(err, path, "look at it", why);
  if (S_ISBLK(status.st_mode) != block_ || S_ISREG(status.st_mode) == block_)
    return why->set(-EBUSY, "LUN %s: replaced in this moment; try again", path);
  err = files_.claim(options.claim, options.read_only, path, why);
  if (err < 0) return err;
  err = learn_alignment(path, why);
  if (err < 0) return err;
  // The size is read only now, because the former owner may have changed it while this open waited
  // for its claim.
  err = block_ ? sys::block_device_size(fd(), &size_bytes_) : sys::file_status(opened, &status);
  if (err < 0) return explain_open(err, path, "ask its size", why);
  if (!block_) size_bytes_ = round_down(static_cast<uint64_t>(status.st_size), io_align_);
  return check_size(options.want_bytes, why);
}

// Whether the device can discard. For a file: whether its file system zeros a range and keeps its
// space, by the type of the file system. A probe is not possible, because ext4 does not free the
// space that a probe allocates beyond a file's end. On other file systems callers write zeros.
bool FileDevice::can_discard() const {
  struct stat status;
  if (read_only_ || sys::file_status(fd(), &status) < 0) return false;
  if (block_) return block_queue_value(status.st_rdev, "write_zeroes_max_bytes") > 0;
  uint64_t magic = 0;
  return sys::file_system_type(fd(), &magic, nullptr) == 0 &&
         (magic == EXT4_SUPER_MAGIC || magic == XFS_SUPER_MAGIC || magic == BTRFS_SUPER_MAGIC ||
          magic == F2FS_SUPER_MAGIC);
}

// For a file, RWF_DSYNC also makes the location of its blocks durable; without a commit of the
// journal only on file systems that pass it on to the disk.
Fua FileDevice::fua() const {
  struct stat status;
  if (sys::file_status(fd(), &status) < 0) return Fua::kFlush;
  if (block_) return block_fua(status.st_rdev);
  uint64_t magic = 0;
  const bool passes = sys::file_system_type(fd(), &magic, nullptr) == 0 &&
                      (magic == EXT4_SUPER_MAGIC || magic == XFS_SUPER_MAGIC);
  return passes && block_fua(status.st_dev) != Fua::kFlush ? Fua::kWriteThrough : Fua::kFlush;
}

// Probed at the first query, so that opening a LUN does not pay for it. Results that depend on
// limits (RLIMIT_MEMLOCK) are of that moment.
Capabilities FileDevice::capabilities() const {
  enum : uint32_t { kKnown = 1, kDiscard = 2, kWindow = 4, kFuaShift = 8 };
  uint32_t bits = probed_.load(std::memory_order_relaxed);
  if (!(bits & kKnown)) {
    bits = kKnown | (can_discard() ? kDiscard : 0u) | (window_can_be_registered() ? kWindow : 0u);
    bits |= static_cast<uint32_t>(fua()) << kFuaShift;
    probed_.store(bits, std::memory_order_relaxed);
  }
  Capabilities out;
  out.discard = (bits & kDiscard) != 0;
  out.window = (bits & kWindow) != 0;
  out.persistent = !growable_;
  out.fua = static_cast<Fua>(bits >> kFuaShift & 3);
  out.memory_align = io_align_;
  return out;
}

int FileDevice::open_directory(const char* path, const DeviceOptions& options, ErrorText* why) {
  int err = refuse_memory(path, O_DIRECTORY, why);  // before a file is made
  if (err < 0) return err;
  const int opened = sys::open_unlinked(path, O_RDWR | O_DIRECT);
  if (opened < 0) return explain_open(opened, path, "make a file in it", why);
  reopen(0, opened);
  uint64_t free_bytes = 0;
  err = check_file_system(path, &free_bytes, why);
  if (err < 0) return err;
  growable_ = true;
  size_bytes_ = free_bytes;
  err = check_size(options.want_bytes ? options.want_bytes : kProbeBytes, why);
  if (err < 0) return err;
  err = sys::allocate_space(opened, 0, kProbeBytes);
  if (err == -EOPNOTSUPP)
    return why->set(err,
                    "LUN %s: the file system cannot reserve space (fallocate); "
                    "put the LUN on ext4, xfs or btrfs",
                    path);
  return err < 0 ? explain_open(err, path, "reserve space", why) : 0;
}

int FileDevice::open_regular(const char* path, const DeviceOptions& options, ErrorText* why) {
  int err = refuse_memory(path, 0, why);
  if (err < 0) return err;
  const int opened = sys::open_file(path, O_RDWR | O_DIRECT);
  if (opened < 0) return explain_open(opened, path, "open it for writing", why);
  reopen(0, opened);
  uint64_t free_bytes = 0;
  err = check_file_system(path, &free_bytes, why);
  if (err < 0) return err;
  err = files_.claim(Claim::kAlone, false, path, why);
  if (err < 0) return err;
  Contents contents = Contents::kForeign;
  uint64_t flags = 0;
  err = signature_read(opened, &contents, &flags);
  if (err < 0) return explain_open(err, path, "read its header", why);
  if (contents == Contents::kForeign)
    return why->set(-EEXIST,
                    "LUN %s: holds data that is not Lunar's; is the name right? Give an empty file",
                    path);
  struct stat status;
  err = sys::file_status(opened, &status);
  if (err < 0) return explain_open(err, path, "look at it", why);
  // libblkid also finds formats that begin behind the head (btrfs, md).
  if (static_cast<uint64_t>(status.st_size) > kScratchDataOffset) {
    char what[64];
    const int known = block_signature(path, contents == Contents::kOurs, what, sizeof what);
    if (known == 1)
      return why->set(-EEXIST, "LUN %s: holds %s; give an empty file, or erase it (wipefs -a %s)",
                      path, what, path);
    if (known < 0 && known != -ENOSYS)
      return explain_open(known, path, "have libblkid look at it", why);
  }

  data_offset_ = kScratchDataOffset;
  const auto file_bytes = static_cast<uint64_t>(status.st_size);
  growable_ = file_bytes <= kScratchDataOffset ||
              (contents == Contents::kOurs && (flags & kScratchGrowable));
  if (growable_) {
    // Data of a former owner are cut off, so their space counts as free.
    const uint64_t held = static_cast<uint64_t>(status.st_blocks) * 512;
    size_bytes_ =
        free_bytes + held > kScratchDataOffset ? free_bytes + held - kScratchDataOffset : 0;
  } else {
    size_bytes_ = round_down(file_bytes - kScratchDataOffset, 4096);
  }
  err = check_size(options.want_bytes ? options.want_bytes : kProbeBytes, why);
  if (err < 0) return err;
  if (growable_ && file_bytes > sizeof(ScratchHeader)) err = sys::set_file_size(opened, 0);
  cut_at_close_ = growable_;
  if (err == 0) err = sys::allocate_space(opened, 0, sizeof(ScratchHeader));
  if (err == -EOPNOTSUPP)
    return why->set(err,
                    "LUN %s: the file system cannot reserve space (fallocate); "
                    "put the LUN on ext4, xfs or btrfs",
                    path);
  if (err == 0) err = signature_write(opened, growable_ ? uint64_t{kScratchGrowable} : 0);
  return err < 0 ? explain_open(err, path, "write its header", why) : 0;
}

int FileDevice::open_block(const char* path, uint64_t rdev, const DeviceOptions& options,
                           ErrorText* why) {
  if (block_read_only(rdev)) return refuse_read_only(path, why);
  int err = sys::open_file(path, O_RDWR | O_DIRECT);
  if (err < 0) return explain_open(err, path, "open it for writing", why);
  reopen(0, err);
  block_ = true;
  err = files_.claim(Claim::kAlone, false, path, why);
  if (err < 0) return err;
  const int opened = fd();
  uint64_t bytes = 0;
  uint32_t align = 0;
  err = sys::block_device_size(opened, &bytes);
  if (err == 0) err = sys::direct_io_align(opened, &align);
  if (err < 0) return explain_open(err, path, "ask its size", why);
  io_align_ = align <= 512 ? 512 : 4096;
  size_bytes_ = bytes > kScratchDataOffset ? round_down(bytes - kScratchDataOffset, 4096) : 0;
  err = check_size(options.want_bytes ? options.want_bytes : kProbeBytes, why);
  if (err < 0) return err;

  Contents contents = Contents::kForeign;
  err = signature_read(opened, &contents, nullptr);
  if (err < 0) return explain_open(err, path, "read its header", why);
  char what[64];
  const int known = block_signature(path, contents == Contents::kOurs, what, sizeof what);
  if (known == 1)
    return why->set(-EEXIST, "LUN %s: holds %s; give an empty device, or erase it (wipefs -a %s)",
                    path, what, path);
  if (known == -ENOSYS)
    return why->set(known,
                    "LUN %s: libblkid.so.1 is missing, so its contents are not known; "
                    "install libblkid1",
                    path);
  if (known < 0) return explain_open(known, path, "have libblkid look at it", why);
  if (contents == Contents::kForeign)
    return why->set(-EEXIST,
                    "LUN %s: holds unknown data in its first 64 KiB; "
                    "if it may go: dd if=/dev/zero of=%s bs=64k count=1",
                    path, path);
  data_offset_ = kScratchDataOffset;
  err = signature_write(opened, 0);
  return err < 0 ? explain_open(err, path, "write its header", why) : 0;
}

void FileDevice::close() {
  check_detached();
  // Only the header stays: the next open finds a LUN of Lunar's, and the disk gets its space back.
  if (cut_at_close_) (void)sys::set_file_size(fd(), sizeof(ScratchHeader));
  calls_.destroy();
  files_.close();
  device_free(this);
}

void FileDevice::forget() {
  calls_.destroy();  // its threads belong to the parent
  device_free(this);
}

int FileDevice::attach(const ContextOptions& options, Context** out) {
  JoinedFiles files;
  files.add(files_, place());
  return attach_joined(files, options, out);
}

int FileDevice::attach_joined(const JoinedFiles& files, const ContextOptions& options,
                              Context** out) {
  OwnedContext* context = nullptr;
  int status = UringContext::create(files, options, &context);
  if (status == -EINVAL || status == -EBADF)
    return status;  // EBADF: the program has closed all descriptors
  if (status == 0)
    calls_.ring_made();
  else if (calls_.replaces_ring(status, name_, options,
                                "reads and writes by system calls, slower; allow it (sysctl "
                                "kernel.io_uring_disabled=0, or the container's seccomp profile)"))
    status = calls_.attach(files, options, &context);
  return attached(status, context, out);
}

bool FileDevice::join(JoinedFiles* files) const { return files->add(files_, place()); }

int FileDevice::reserve(DeviceOffset offset, uint64_t length) {
  if (!growable()) {
    if (offset.value > size_bytes_ || length > size_bytes_ - offset.value) return -ENOSPC;
    if (block_) return 0;
  }
  // A write beyond the limit ends the program (SIGXFSZ), even in a file that is already that long.
  const uint64_t end = data_offset_ + offset.value + length;
  return end > sys::file_bytes_most()
             ? -EFBIG
             : sys::allocate_space(fd(), data_offset_ + offset.value, length);
}

void FileDevice::release(DeviceOffset offset, uint64_t length) {
  if (block_)
    (void)sys::block_discard(fd(), data_offset_ + offset.value, length);
  else if (raw_)
    return;  // the freed space of a raw file could be taken by others
  else
    (void)sys::punch_hole(fd(), data_offset_ + offset.value, length);
}

}  // namespace lunar
