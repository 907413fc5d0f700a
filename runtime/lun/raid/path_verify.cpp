// SPDX-License-Identifier: Apache-2.0
// Checks that several paths reach one backing device; path_device.h has the criteria.
// Threading: at open, one thread, blocking. Not for the fault path.
#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include "base/bytes.h"
#include "base/format.h"
#include "lun/raid/path_device.h"
#include "superpipe/sim/sim_device.h"
#include "sys/arena.h"
#include "sys/file.h"

namespace lunar {
namespace {

constexpr size_t kHeadBytes = 64 * kKiB;

// Compares the wwids of two devices. 1: they are equal; 0: they differ; -1: not known.
int same_wwid(Device* a, Device* b) {
  char text[2][256];
  Device* const devices[2] = {a, b};
  for (unsigned i = 0; i < 2; ++i) {
    struct stat status;
    if (devices[i]->fd_count() == 0 || sys::file_status(devices[i]->fd(0), &status) < 0 ||
        !S_ISBLK(status.st_mode))
      return -1;
    char path[96];
    format_to(path, sizeof path, "/sys/dev/block/%u:%u/wwid", major(status.st_rdev),
              minor(status.st_rdev));
    int n = sys::read_text(path, text[i], sizeof text[i]);
    if (n <= 0) {
      format_to(path, sizeof path, "/sys/dev/block/%u:%u/device/wwid", major(status.st_rdev),
                minor(status.st_rdev));
      n = sys::read_text(path, text[i], sizeof text[i]);
    }
    if (n <= 0) return -1;
  }
  return strcmp(text[0], text[1]) == 0 ? 1 : 0;
}

int64_t move(Device* device, Op op, void* buffer, size_t bytes) {
  const iovec part = {buffer, bytes};
  Command command;
  command.op = op;
  command.iov = &part;
  command.iov_count = 1;
  const int64_t n = device->transfer(command);
  return n < 0 || static_cast<size_t>(n) == bytes ? n : -EIO;
}

// Compares contents. head, other: kHeadBytes each. 1, 0 or -errno; -ENODATA: blank, so
// inconclusive.
int same_content(Device* a, Device* b, bool may_write, char* head, char* other) {
  const size_t bytes = a->size_bytes() < kHeadBytes
                           ? static_cast<size_t>(round_down(a->size_bytes(), 4096))
                           : kHeadBytes;
  if (bytes == 0) return -ENODATA;
  int64_t n = move(a, Op::kRead, head, bytes);
  if (n >= 0) n = move(b, Op::kRead, other, bytes);
  if (n < 0) return static_cast<int>(n);
  if (memcmp(head, other, bytes) != 0) return 0;
  if (!bytes_are_zero(head, bytes)) return 1;
  if (!may_write) return -ENODATA;
  int status = sys::random_bytes(head, 4096);
  if (status < 0) return status;
  n = move(a, Op::kWrite, head, 4096);
  if (n >= 0) n = move(b, Op::kRead, other, 4096);
  const bool same = n >= 0 && memcmp(head, other, 4096) == 0;
  memset(head, 0, 4096);
  const int64_t cleaned = move(a, Op::kWrite, head, 4096);
  if (n < 0 || cleaned < 0) return static_cast<int>(n < 0 ? n : cleaned);
  return same;
}

}  // namespace

bool same_backing_device(Device* a, Device* b) {
  const bool sims = strcmp(a->kind(), "sim") == 0 && strcmp(b->kind(), "sim") == 0;
  if (sims) return static_cast<SimDevice*>(a)->memory() == static_cast<SimDevice*>(b)->memory();
  for (unsigned i = 0; i < a->fd_count(); ++i) {
    for (unsigned j = 0; j < b->fd_count(); ++j) {
      struct stat one, other;
      if (sys::file_status(a->fd(i), &one) < 0 || sys::file_status(b->fd(j), &other) < 0) continue;
      if (one.st_dev == other.st_dev && one.st_ino == other.st_ino) return true;
      const bool nodes =
          (one.st_mode & S_IFMT) == (other.st_mode & S_IFMT) && !S_ISREG(one.st_mode);
      if (nodes && one.st_rdev == other.st_rdev) return true;
    }
  }
  return false;
}

int PathDevice::verify(bool may_write, ErrorText* why) {
  unsigned first = 0;
  while (first < count_ && !member_[first]) ++first;
  if (first == count_) return why->set(-ENXIO, "LUN %s: none of its paths can be opened", name_);
  auto* head = static_cast<char*>(map_private(2 * kHeadBytes, ForkPolicy::kDontFork));
  if (!head) return why->set(-ENOMEM, "LUN %s: out of memory", name_);
  int status = 0;
  for (unsigned i = first + 1; i < count_ && status == 0; ++i) {
    Device *a = member_[first], *b = member_[i];
    if (!b || same_backing_device(a, b)) continue;
    if (a->size_bytes() != b->size_bytes()) {
      status = why->set(-EINVAL,
                        "LUN %s: paths %s and %s reach devices of different sizes (%s, %s); give "
                        "paths of one device",
                        name_, uri_[first], uri_[i], format_size(a->size_bytes()).text,
                        format_size(b->size_bytes()).text);
      break;
    }
    const int wwid = same_wwid(a, b);
    const int same = wwid >= 0 ? wwid : same_content(a, b, may_write, head, head + kHeadBytes);
    if (same == 1) continue;
    if (same == 0)
      status = why->set(-EINVAL,
                        "LUN %s: paths %s and %s reach different devices; give paths of one device",
                        name_, uri_[first], uri_[i]);
    else if (same == -ENODATA)
      status = why->set(-ENODATA,
                        "LUN %s: it is not known whether paths %s and %s reach one device, "
                        "because it is blank; format it through one of them first",
                        name_, uri_[first], uri_[i]);
    else
      status = why->set(same, "LUN %s: cannot compare paths %s and %s: %s", name_, uri_[first],
                        uri_[i], errno_text(same));
  }
  unmap_private(head, 2 * kHeadBytes);
  return status;
}

}  // namespace lunar
