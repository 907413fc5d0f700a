// SPDX-License-Identifier: Apache-2.0
// The content of the head of a raw device: see physical_lun.h.
// Idea: our own magics first, then zeros; asks libblkid about zeros and unknown data where the
// device has a path. Threading: any, blocking. May not be used on the fault path (libblkid
// allocates).
#include <errno.h>
#include <fcntl.h>
#include <string.h>

#include "base/bytes.h"
#include "base/format.h"
#include "lun/raid/member_label.h"
#include "lun/volume/metadata_image.h"
#include "lun/volume/physical_impl.h"
#include "superpipe/signature.h"
#include "sys/arena.h"
#include "sys/file.h"

namespace lunar {
namespace {

constexpr size_t kHeadBytes = 64 * 1024;
constexpr char kScratchMagic[16] = "LunarScratchLUN";

DeviceContent look(const char* head, size_t bytes, char* what, size_t size) {
  if (memcmp(head, media::kSuperMagic, sizeof media::kSuperMagic) == 0) {
    format_to(what, size, "virtual LUNs of Lunar");
    return DeviceContent::kPhysicalLun;
  }
  if (bytes >= sizeof(media::Superblock) &&
      superblock_look(*reinterpret_cast<const media::Superblock*>(head)) == SuperState::kEnded) {
    format_to(what, size, "former virtual LUNs of Lunar");
    return DeviceContent::kEnded;
  }
  if (memcmp(head, kLabelMagic, sizeof kLabelMagic) == 0) {
    MemberLabel label;
    const int status = bytes < sizeof label ? -EBADMSG : label_parse(head, &label);
    format_to(what, size, "a member of a %s of Lunar",
              status == -EOPNOTSUPP ? "former mirror" : "stripe");
    return DeviceContent::kMember;
  }
  if (memcmp(head, kScratchMagic, sizeof kScratchMagic) == 0) {
    format_to(what, size, "a Lunar scratch LUN");
    return DeviceContent::kScratch;
  }
  for (const uint64_t at : kStoreMagicAt) {
    if (at + sizeof kStoreMagic > bytes || memcmp(head + at, kStoreMagic, sizeof kStoreMagic) != 0)
      continue;
    format_to(what, size, "a key/value store of Lunar");
    return DeviceContent::kStore;
  }
  if (!bytes_are_zero(head, bytes)) {
    format_to(what, size, "%s", kUnknownData);
    return DeviceContent::kForeign;
  }
  format_to(what, size, "nothing");
  return DeviceContent::kBlank;
}

}  // namespace

int device_path(Device* raw, char* path, size_t size) {
  const char* name = raw->name();
  if (strncmp(name, "file:", 5) == 0)
    name += 5;
  else if (strncmp(name, "pmem:", 5) == 0)
    name += 5;
  struct stat status;
  format_to(path, size, "%s", name);
  if (strlen(name) < size && sys::path_status(path, &status) == 0)
    return S_ISREG(status.st_mode) || S_ISBLK(status.st_mode) ? 0 : -ENOENT;
  const size_t length = strcspn(name, ",");  // settings follow
  if (length >= size) return -ENOENT;
  path[length] = '\0';
  if (sys::path_status(path, &status) != 0) return -ENOENT;
  return S_ISREG(status.st_mode) || S_ISBLK(status.st_mode) ? 0 : -ENOENT;
}

namespace {

// Reads the end of a small file, which may be shorter than a block of direct I/O. 0 or -errno.
int look_behind(Device* raw, DeviceContent* out, char* what, size_t size) {
  char path[4096], bytes[4096];
  if (device_path(raw, path, sizeof path) < 0) return 0;
  const int fd = sys::open_file(path, O_RDONLY);
  if (fd < 0) return fd;
  int64_t got;
  bool zero = true;
  for (uint64_t at = 0; zero && (got = sys::read_at(fd, bytes, sizeof bytes, at)) > 0;
       at += static_cast<uint64_t>(got))
    zero = bytes_are_zero(bytes, static_cast<size_t>(got));
  sys::close_file(fd);
  if (zero) return static_cast<int>(got);
  *out = DeviceContent::kForeign;
  format_to(what, size, "%s", kUnknownData);
  return 0;
}

}  // namespace

int device_content(Device* raw, DeviceContent* out, char* what, size_t size, bool only_ours) {
  const uint64_t held = raw->size_bytes();  // a multiple of io_align()
  const size_t bytes = held < kHeadBytes ? static_cast<size_t>(held) : kHeadBytes;
  *out = DeviceContent::kBlank;
  format_to(what, size, "nothing");
  char path[4096];
  if (bytes == 0) return look_behind(raw, out, what, size);
  void* head = map_private(kHeadBytes, ForkPolicy::kDontFork);
  if (!head) return -ENOMEM;
  int status = raw_io(raw, Op::kRead, 0, head, bytes);
  if (status == 0) *out = look(static_cast<const char*>(head), bytes, what, size);
  unmap_private(head, kHeadBytes);
  if (status == 0 && *out == DeviceContent::kBlank && bytes < kHeadBytes)
    status = look_behind(raw, out, what, size);
  if (status < 0 || (*out != DeviceContent::kBlank && *out != DeviceContent::kForeign))
    return status;
  if (only_ours) return 0;
  char known[48];
  if (device_path(raw, path, sizeof path) < 0) return 0;
  const int found = block_signature(path, false, known, sizeof known);
  if (found == 1) {
    *out = DeviceContent::kForeign;
    format_to(what, size, "%s", known);
  }
  // A block device that could not be examined may hold anything beyond its head.
  if (found == -ENOSYS && strcmp(raw->kind(), "block") == 0) {
    *out = DeviceContent::kForeign;
    format_to(what, size, "data of unknown kind (install libblkid1)");
  }
  return 0;
}

}  // namespace lunar
