// SPDX-License-Identifier: Apache-2.0
// Users of a device: see device_in_use.h.
//
// Idea: owners lock the node and its lock file (device_files.h), which are one name of the bytes.
// So this queries the lock files of the other names, and the files below loop devices. Two
// concurrent opens through two names both lock first and then query, so one or both are refused.
// Threading: at open only.
#include "superpipe/device_in_use.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sysmacros.h>

#include "base/format.h"
#include "superpipe/device_files.h"
#include "sys/arena.h"
#include "sys/file.h"
#include "sys/loop.h"

namespace lunar {
namespace {

constexpr unsigned kLoopsDeep = 8;         // loop devices on loop devices
constexpr size_t kTextBytes = 256 * 1024;  // of a file in /proc
constexpr size_t kDigits = 10;

// The content of a file of /proc; "" if it cannot be read.
class ProcText {
 public:
  explicit ProcText(const char* path)
      : text_(static_cast<char*>(map_private(kTextBytes, ForkPolicy::kDontFork))) {
    if (text_ && sys::read_text(path, text_, kTextBytes) < 0) *text_ = 0;
    next_ = text_;
  }
  ~ProcText() {
    if (text_) unmap_private(text_, kTextBytes);
  }
  ProcText(const ProcText&) = delete;
  ProcText& operator=(const ProcText&) = delete;
  char* line() { return next_ ? strtok_r(nullptr, "\n", &next_) : nullptr; }

 private:
  char* text_;
  char* next_;
};

// Fields of /proc/self/mountinfo: id parent major:minor root mountpoint ...
bool mounted_at(unsigned major_number, unsigned minor_number, char* who, size_t size) {
  char device[32];
  format_to(device, sizeof device, "%u:%u", major_number, minor_number);
  ProcText mounts("/proc/self/mountinfo");
  while (char* line = mounts.line()) {
    char* words = nullptr;
    const char* field[5] = {};
    unsigned n = 0;
    for (char* word = strtok_r(line, " ", &words); word && n < 5;
         word = strtok_r(nullptr, " ", &words))
      field[n++] = word;
    if (n < 5 || strcmp(field[2], device) != 0) continue;
    format_to(who, size, "mounted on %s", field[4]);
    return true;
  }
  return false;
}

bool used_as_swap(const struct stat& node) {
  char text[8192];
  if (sys::read_text("/proc/swaps", text, sizeof text) <= 0) return false;
  char *lines = nullptr, *words = nullptr;
  for (char* line = strtok_r(text, "\n", &lines); line; line = strtok_r(nullptr, "\n", &lines)) {
    const char* path = strtok_r(line, " \t", &words);
    struct stat status;
    if (!path || path[0] != '/' || sys::path_status(path, &status) != 0 ||
        (status.st_mode & S_IFMT) != (node.st_mode & S_IFMT))
      continue;
    if (S_ISBLK(node.st_mode) ? status.st_rdev == node.st_rdev
                              : status.st_dev == node.st_dev && status.st_ino == node.st_ino)
      return true;
  }
  return false;
}

bool block_itself_in_use(unsigned major_number, unsigned minor_number, char* who, size_t size) {
  if (mounted_at(major_number, minor_number, who, size)) return true;
  struct stat node = {};
  node.st_mode = S_IFBLK;
  node.st_rdev = makedev(major_number, minor_number);
  if (used_as_swap(node)) {
    format_to(who, size, "swap space (swapoff it first)");
    return true;
  }
  char path[96], holder[64];
  format_to(path, sizeof path, "/sys/dev/block/%u:%u/holders", major_number, minor_number);
  if (sys::first_entry(path, holder, sizeof holder) > 0) {
    format_to(who, size, "held by %s (device-mapper or RAID)", holder);
    return true;
  }
  return false;
}

// Copies the value of KEY in a sysfs uevent file to `out`. False: it has no such key.
bool uevent_value(const char* path, const char* key, char* out, size_t size) {
  char text[1024];
  if (sys::read_text(path, text, sizeof text) <= 0) return false;
  const size_t length = strlen(key);
  for (const char* line = text; line;
       line = strchr(line, '\n') ? strchr(line, '\n') + 1 : nullptr) {
    if (strncmp(line, key, length) != 0 || line[length] != '=') continue;
    const char* value = line + length + 1;
    format_to(out, size, "%.*s", static_cast<int>(strcspn(value, "\n")), value);
    return true;
  }
  return false;
}

// Whether any description holds a lock on a file, by the list of all locks. For a file that has no
// name any more.
bool lock_listed(uint64_t device, uint64_t inode) {
  char wanted[64];
  format_to(wanted, sizeof wanted, " %02x:%02x:%lu ", major(device), minor(device),
            static_cast<unsigned long>(inode));
  ProcText locks("/proc/locks");
  while (const char* line = locks.line()) {
    if (strstr(line, "OFDLCK") && strstr(line, wanted)) return true;
  }
  return false;
}

// Whether an open by Lunar through any node has locked those bytes of the block device of that
// number (bytes 0: to the end).
bool node_locked(uint64_t rdev, uint64_t first = 0, uint64_t bytes = 0) {
  struct stat node = {};
  node.st_mode = S_IFBLK;
  node.st_rdev = rdev;
  const int fd = open_lock_file(node);
  const bool locked = fd >= 0 && sys::range_locked(fd, first, bytes) == 1;
  if (fd >= 0) sys::close_file(fd);
  return locked;
}

struct Backing {
  sys::LoopStatus of;
  char path[4096];  // of the file; "": not known
  uint64_t end() const { return of.limit ? of.offset + of.limit : UINT64_MAX; }
  bool is(const Backing& other) const {
    if (of.rdev || other.of.rdev) return of.rdev == other.of.rdev;
    return of.device == other.of.device && of.inode == other.of.inode;
  }
};

uint64_t sysfs_number(int digits, const char* loop, const char* name) {
  char path[96], text[32];
  format_to(path, sizeof path, "/sys/block/loop%.*s/loop/%s", digits, loop, name);
  return sys::read_text(path, text, sizeof text) > 0 ? strtoull(text, nullptr, 10) : 0;
}

// Finds the file or device below loop device NAME ("loop0", also for its partition "loop0p1").
// False: it is no loop device, or its backing is not known.
bool loop_backing(const char* name, Backing* out) {
  if (strncmp(name, "loop", 4) != 0) return false;
  const char* number = name + strlen("loop");
  const auto digits = static_cast<int>(strspn(number, "0123456789"));
  if (digits == 0 || digits > static_cast<int>(kDigits)) return false;
  char path[96];
  format_to(path, sizeof path, "/sys/block/loop%.*s/loop/backing_file", digits, number);
  if (sys::read_text(path, out->path, sizeof out->path) <= 0) out->path[0] = 0;
  out->path[strcspn(out->path, "\n")] = 0;
  format_to(path, sizeof path, "/dev/loop%.*s", digits, number);
  const int fd = sys::open_file(path, O_RDONLY | O_NONBLOCK);
  const int status = fd < 0 ? fd : sys::loop_status(fd, &out->of);
  if (fd >= 0) sys::close_file(fd);
  if (status == 0 || status == -ENXIO) return status == 0;
  struct stat file;  // without the right to open the loop device, the name of the file helps
  if (!out->path[0] || sys::path_status(out->path, &file) != 0) return false;
  out->of = {file.st_dev, file.st_ino, S_ISBLK(file.st_mode) ? file.st_rdev : 0,
             sysfs_number(digits, number, "offset"), sysfs_number(digits, number, "sizelimit")};
  return true;
}

bool backing_locked(const Backing& backing) {
  if (backing.of.rdev && node_locked(backing.of.rdev)) return true;
  struct stat file;
  const int fd = sys::open_file(backing.path, O_RDONLY | O_NONBLOCK);
  const bool same = fd >= 0 && sys::file_status(fd, &file) == 0 &&
                    file.st_dev == backing.of.device && file.st_ino == backing.of.inode;
  const bool locked =
      same ? sys::range_locked(fd, 0, 0) == 1 : lock_listed(backing.of.device, backing.of.inode);
  if (fd >= 0) sys::close_file(fd);
  return locked;
}

// Finds a loop device on some of the same bytes, other than `but` ("loop0", or a partition of it),
// and copies its name to `name`.
bool loop_on(const Backing& what, const char* but, char* name, size_t size) {
  const size_t own = but ? strspn(but + strlen("loop"), "0123456789") + strlen("loop") : 0;
  // A loop device without a file has no size, and is not listed. Lines: major minor blocks name
  ProcText partitions("/proc/partitions");
  Backing one;
  while (const char* line = partitions.line()) {
    const char* blank = strrchr(line, ' ');
    if (!blank ||
        (own && strncmp(blank + 1, but, own) == 0 && strspn(blank + 1 + own, "0123456789") == 0))
      continue;
    if (!loop_backing(blank + 1, &one) || !one.is(what) || one.of.offset >= what.end() ||
        what.of.offset >= one.end())
      continue;
    format_to(name, size, "%s", blank + 1);
    return true;
  }
  return false;
}

bool loop_on_block(uint64_t rdev, char* who, size_t size) {
  Backing whole;
  whole.of = {0, 0, rdev, 0, 0};
  char name[64];
  if (!loop_on(whole, nullptr, name, sizeof name)) return false;
  format_to(who, size, "in use as that of /dev/%s (give that, or losetup -d it)", name);
  return true;
}

// Whether the file or device below a loop device is in use, also by another loop device.
bool below_in_use(const char* disk, char* who, size_t size) {
  char name[64], other[64], reason[160];
  format_to(name, sizeof name, "%s", disk);
  Backing backing;
  for (unsigned depth = 0; depth < kLoopsDeep && loop_backing(name, &backing); ++depth) {
    const char* path = backing.path[0] ? backing.path : "a file without a name";
    if (backing_locked(backing)) {
      format_to(who, size, "a loop device on %s, which is in use itself", path);
      return true;
    }
    if (loop_on(backing, name, other, sizeof other)) {
      format_to(who, size, "a loop device on %s, as /dev/%s is (losetup -d one of them)", path,
                other);
      return true;
    }
    if (!backing.of.rdev) return false;
    if (block_itself_in_use(major(backing.of.rdev), minor(backing.of.rdev), reason,
                            sizeof reason)) {
      format_to(who, size, "a loop device on %s, which is %s", path, reason);
      return true;
    }
    if (!device_node_name(true, backing.of.rdev, name, sizeof name)) return false;
  }
  return false;
}

bool read_rdev(const char* path, uint64_t* rdev) {
  char numbers[32], *rest = nullptr;
  if (sys::read_text(path, numbers, sizeof numbers) <= 0) return false;
  const auto major_number = static_cast<unsigned>(strtoul(numbers, &rest, 10));
  if (*rest != ':') return false;
  *rdev = makedev(major_number, static_cast<unsigned>(strtoul(rest + 1, nullptr, 10)));
  return true;
}

// The partitions of a disk are folders in the disk's folder whose names begin with the disk's.
bool partition_in_use(const char* folder, const char* disk, char* who, size_t size) {
  char path[192], part[64], reason[192];
  uint64_t rdev = 0;
  for (unsigned n = 0; sys::nth_entry(folder, disk, n, part, sizeof part) > 0; ++n) {
    format_to(path, sizeof path, "%s/%s/dev", folder, part);
    if (!read_rdev(path, &rdev)) continue;
    bool used = block_itself_in_use(major(rdev), minor(rdev), reason, sizeof reason) ||
                loop_on_block(rdev, reason, sizeof reason);
    if (!used && node_locked(rdev)) {
      format_to(reason, sizeof reason, "another process has it");
      used = true;
    }
    if (!used) continue;
    format_to(who, size, "in use by its partition %s: %s", part, reason);
    return true;
  }
  return false;
}

bool whole_in_use(const char* folder, char* who, size_t size) {
  char path[192], text[8], reason[160];
  uint64_t rdev = 0;
  format_to(path, sizeof path, "%s/partition", folder);
  if (sys::read_text(path, text, sizeof text) <= 0) return false;
  format_to(path, sizeof path, "%s/../dev", folder);
  if (!read_rdev(path, &rdev)) return false;
  if (loop_on_block(rdev, reason, sizeof reason)) {
    format_to(who, size, "a part of a disk that is %s", reason);
    return true;
  }
  if (!node_locked(rdev)) return false;
  format_to(who, size, "a part of a disk that another process has as a whole");
  return true;
}

}  // namespace

bool device_node_name(bool block, uint64_t rdev, char* name, size_t size) {
  char path[96];
  format_to(path, sizeof path, "/sys/dev/%s/%u:%u/uevent", block ? "block" : "char", major(rdev),
            minor(rdev));
  return uevent_value(path, "DEVNAME", name, size);
}

bool block_in_use(uint64_t rdev, char* who, size_t size) {
  if (block_itself_in_use(major(rdev), minor(rdev), who, size)) return true;
  char disk[64], folder[96];
  if (!device_node_name(true, rdev, disk, sizeof disk)) return false;
  format_to(folder, sizeof folder, "/sys/dev/block/%u:%u", major(rdev), minor(rdev));
  return below_in_use(disk, who, size) || loop_on_block(rdev, who, size) ||
         partition_in_use(folder, disk, who, size) || whole_in_use(folder, who, size);
}

void namespace_nodes(const struct stat& node, NamespaceNodes* out) {
  char own[64], wanted[64], key[64], path[96];
  if (!device_node_name(S_ISBLK(node.st_mode), node.st_rdev, own, sizeof own) ||
      !namespace_key(own, wanted, sizeof wanted))
    return;
  (void)sys::each_entry("/sys/class/block", [&](const char* name) {
    uint64_t rdev = 0;
    format_to(path, sizeof path, "/sys/class/block/%s/dev", name);
    if (!namespace_key(name, key, sizeof key) || strcmp(key, wanted) != 0 ||
        strcmp(name, own) == 0 || !read_rdev(path, &rdev))
      return true;
    out->more = out->count == NamespaceNodes::kMax;
    if (out->more) return false;
    NamespaceNodes::Node& other = out->node[out->count++];
    format_to(other.path, sizeof other.path, "/dev/%s", name);
    other.rdev = rdev;
    return true;
  });
}

bool namespace_in_use(const NamespaceNodes& nodes, char* who, size_t size) {
  char reason[192];
  for (unsigned i = 0; i < nodes.count; ++i) {
    if (!block_in_use(nodes.node[i].rdev, reason, sizeof reason)) continue;
    format_to(who, size, "the same namespace as %s, which is %s", nodes.node[i].path, reason);
    return true;
  }
  return false;
}

bool claimed_by_ours(uint64_t rdev) { return node_locked(rdev, owner_bytes::kClaimedByte, 1); }

bool file_in_use(const struct stat& node, char* who, size_t size) {
  if (used_as_swap(node)) {
    format_to(who, size, "in use as swap space (swapoff it first)");
    return true;
  }
  Backing file;
  file.of = {node.st_dev, node.st_ino, 0, 0, 0};
  char name[64];
  if (!loop_on(file, nullptr, name, sizeof name)) return false;
  format_to(who, size, "in use as that of /dev/%s (give that, or losetup -d it)", name);
  return true;
}

}  // namespace lunar
