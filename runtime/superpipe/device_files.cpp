// SPDX-License-Identifier: Apache-2.0
// Lock files of device nodes: see device_files.h.
// Threading: at open, one thread, blocking. Not for the fault path.
#include "superpipe/device_files.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "base/format.h"
#include "base/xxh3.h"
#include "superpipe/device.h"
#include "superpipe/device_in_use.h"
#include "sys/file.h"
#include "sys/log.h"
#include "sys/thread.h"

namespace lunar {
namespace {

constexpr char kDirectory[] = "/dev/shm/", kNamespace[] = "lunar-namespace-",
               kNode[] = "lunar-node-";
constexpr int kNoTricks = O_NOFOLLOW | O_NONBLOCK;  // any user may put names into /dev/shm
constexpr int kMakeTries = 8;
constexpr size_t kAclBytesMax = 4 + 127 * 8;  // the longest ACL of a node that is read
constexpr uint64_t kMakePauseNs = 2'000'000;

// Finds "0n1", its length, and the partition ("p2") in "ng0n1", "nvme0n1", "nvme0n1p2". False: it
// is no such name.
bool namespace_numbers(const char* name, int* length, const char** numbers,
                       const char** partition) {
  if (strncmp(name, "nvme", 4) == 0)
    *numbers = name + 4;
  else if (strncmp(name, "ng", 2) == 0)
    *numbers = name + 2;
  else
    return false;
  const size_t controller = strspn(*numbers, "0123456789");
  if (controller == 0 || (*numbers)[controller] != 'n') return false;
  const size_t number = strspn(*numbers + controller + 1, "0123456789");
  *length = static_cast<int>(controller + 1 + number);
  *partition = *numbers + *length;
  return number > 0 && (**partition == 'p' || **partition == 0);
}

void lock_path(const struct stat& node, char* out, size_t size) {
  char name[64], key[64];
  if (device_node_name(S_ISBLK(node.st_mode), node.st_rdev, name, sizeof name) &&
      namespace_key(name, key, sizeof key))
    format_to(out, size, "%s%s%s", kDirectory, kNamespace, key);
  else
    format_to(out, size, "%s%s%c%u:%u", kDirectory, kNode, S_ISBLK(node.st_mode) ? 'b' : 'c',
              major(node.st_rdev), minor(node.st_rdev));
}

// The users who may read and write a file: the three classes of its mode, and users and groups by
// name. With an ACL, the group bits of the mode are a mask, not the group's rights.
class Rights {
 public:
  Rights(int fd, mode_t mode) {
    char acl[kAclBytesMax];
    const int bytes = sys::get_acl(fd, acl, sizeof acl);
    uint16_t mask = kReadWrite;
    for (size_t at = kHeader; bytes > 0 && at + sizeof(Entry) <= static_cast<size_t>(bytes);
         at += sizeof(Entry)) {
      Entry entry;
      memcpy(&entry, acl + at, sizeof entry);
      if (entry.tag == kMask)
        mask &= entry.perm;
      else
        add(entry);
    }
    for (unsigned i = 0; i < count_; ++i) {
      if (entries_[i].tag & (kUser | kGroupClass | kGroup)) entries_[i].perm &= mask;
    }
    if (count_ > 0) return;
    add({kOwner, static_cast<uint16_t>(mode >> 6 & 7), kNobody});
    add({kGroupClass, static_cast<uint16_t>(mode >> 3 & 7), kNobody});
    add({kOther, static_cast<uint16_t>(mode & 7), kNobody});
  }
  void add(const Rights& more) {
    for (unsigned i = 0; i < more.count_; ++i) add(more.entries_[i]);
  }
  // Whether the group, or that user by name, may both read and write.
  bool has_group() const { return has(kGroupClass, kNobody); }
  bool has_user(uid_t user) const { return has(kUser, user); }
  // On a file system without ACLs, users by name are refused, and other users gain nothing.
  void give(int fd) const {
    struct {
      uint32_t version = 2;  // POSIX_ACL_XATTR_VERSION
      Entry entries[kMost + 1];
    } acl;
    static_assert(sizeof acl == kAclBytesMax);
    unsigned count = 0;
    bool named = false;
    mode_t mode = 0;
    Entry mask = {kMask, 0, kNobody};
    for (uint16_t tag = kOwner; tag <= kOther;
         tag = static_cast<uint16_t>(tag * 2)) {  // their order there
      if (tag == kMask) acl.entries[count++] = mask;
      for (unsigned i = 0; i < count_; ++i) {
        const Entry& entry = entries_[i];
        if (entry.tag != tag) continue;
        acl.entries[count++] = entry;
        named |= (tag & (kUser | kGroup)) != 0;
        if (tag & (kUser | kGroupClass | kGroup)) mask.perm |= entry.perm;
        if (tag & (kOwner | kGroupClass | kOther))
          mode |= entry.perm << (tag == kOwner ? 6 : tag == kGroupClass ? 3 : 0);
      }
    }
    if (!named || sys::set_acl(fd, &acl, kHeader + count * sizeof(Entry)) < 0)
      sys::set_mode(fd, mode);
  }

 private:
  static constexpr uint16_t kOwner = 1, kUser = 2, kGroupClass = 4, kGroup = 8, kMask = 16,
                            kOther = 32, kReadWrite = 6;
  static constexpr uint32_t kNobody = UINT32_MAX;
  static constexpr size_t kHeader = 4;
  struct Entry {
    uint16_t tag, perm;
    uint32_t id;
  };
  static constexpr unsigned kMost = (kAclBytesMax - kHeader) / sizeof(Entry) - 1;

  bool has(uint16_t tag, uint32_t id) const {
    for (unsigned i = 0; i < count_; ++i) {
      if (entries_[i].tag == tag && entries_[i].id == id) return entries_[i].perm == kReadWrite;
    }
    return false;
  }
  void add(Entry entry) {
    entry.perm &= kReadWrite;
    for (unsigned i = 0; i < count_; ++i) {
      if (entries_[i].tag != entry.tag || entries_[i].id != entry.id) continue;
      entries_[i].perm |= entry.perm;
      return;
    }
    if (count_ < kMost) entries_[count_++] = entry;
  }

  Entry entries_[kMost];
  unsigned count_ = 0;
};

// Gives the lock file the rights of the node. further: keeps the rights that the lock file had,
// because another node may have given more. Only root can give files away; a member of the node's
// group can set the group.
void copy_rights(int fd, const struct stat& node, int device, const struct stat* further) {
  if (sys::set_owner(fd, node.st_uid, node.st_gid) < 0)
    (void)sys::set_owner(fd, static_cast<uid_t>(-1), node.st_gid);
  Rights rights(device, node.st_mode);
  if (further) rights.add(Rights(fd, further->st_mode));
  rights.give(fd);
}

// Whether a lock file was made by a user who may open the device.
bool trusted(const struct stat& lock, const struct stat& node, int device) {
  if (!S_ISREG(lock.st_mode)) return false;
  if (lock.st_uid == 0 || lock.st_uid == geteuid() || lock.st_uid == node.st_uid) return true;
  const Rights rights(device, node.st_mode);
  return (lock.st_gid == node.st_gid && rights.has_group()) || rights.has_user(lock.st_uid);
}

// Moves a foreign file out of the way, as root, the owner of the directory. 0: try again; -errno:
// it stays there.
int quarantine(const char* path, const struct stat& examined) {
  struct stat now;
  const int err = sys::link_status(path, &now);
  if (err < 0) return err == -ENOENT ? 0 : err;
  if (now.st_ino != examined.st_ino || now.st_dev != examined.st_dev) return 0;
  char renamed[96];
  format_to(renamed, sizeof renamed, "%slunar-refused-%llu", kDirectory,
            static_cast<unsigned long long>(sys::now_ns()));
  return sys::rename_file(path, renamed);
}

// Opens a lock file, or makes it. Root replaces a file that another user put there. The first try
// is without O_CREAT, which the kernel refuses for a file of another user in a sticky directory.
// *lock: the status of the file, or of a file that is in the way (-EPERM).
int open_or_make(const char* path, int access, const struct stat& node, int device,
                 struct stat* lock) {
  int fd = -ENOENT;
  for (int tries = 0; tries < kMakeTries; ++tries) {
    fd = sys::open_file(path, access | kNoTricks);
    if (fd == -ENOENT) {
      fd = sys::open_file(path, O_RDWR | O_CREAT | O_EXCL | kNoTricks, 0600);
      if (fd >= 0) {
        copy_rights(fd, node, device, nullptr);
        sys::close_file(fd);
      }
      if (fd >= 0 || fd == -EEXIST) continue;
      return fd;
    }
    if (sys::link_status(path, lock) < 0) *lock = {};
    struct stat opened = {};
    if (fd >= 0 && sys::file_status(fd, &opened) == 0 && opened.st_ino == lock->st_ino &&
        opened.st_dev == lock->st_dev && trusted(opened, node, device))
      return fd;
    if (fd >= 0) sys::close_file(fd);
    // It was removed or replaced at this moment.
    if (lock->st_nlink == 0 || (fd >= 0 && opened.st_ino != lock->st_ino)) continue;
    if (fd == -EACCES && trusted(*lock, node, device)) {
      sys::sleep_ns(kMakePauseNs);  // its maker has not given it its rights yet
      continue;
    }
    if (fd < 0 && fd != -ELOOP && fd != -EISDIR && fd != -EACCES && fd != -ENXIO) return fd;
    fd = -EPERM;
    if (geteuid() != 0 || quarantine(path, *lock) < 0) return fd;
    log_warning("%s was put there by user %u, and is replaced", path,
                static_cast<unsigned>(lock->st_uid));
  }
  return fd >= 0 ? -EAGAIN : fd;
}

unsigned lock_files_of(const Device* device, int fds[kLockFilesMax]) {
  const unsigned count = device->lock_count();
  for (unsigned i = 0; i < count; ++i) fds[i] = device->fd(i);
  return count;
}

}  // namespace

bool namespace_key(const char* name, char* out, size_t size) {
  char path[128], nqn[300], nsid[24];
  const char *numbers, *partition;
  int length;
  if (!namespace_numbers(name, &length, &numbers, &partition)) return false;
  format_to(path, sizeof path, "/sys/class/block/nvme%.*s/nsid", length, numbers);
  if (sys::read_text(path, nsid, sizeof nsid) <= 0) return false;
  format_to(path, sizeof path, "/sys/class/block/nvme%.*s/device/subsysnqn", length, numbers);
  const int bytes = sys::read_text(path, nqn, sizeof nqn);
  if (bytes <= 0) return false;
  const uint64_t hash = XXH3_64bits(nqn, strcspn(nqn, "\n"));
  format_to(out, size, "%08x%08x-%lu%s", static_cast<unsigned>(hash >> 32),
            static_cast<unsigned>(hash), strtoul(nsid, nullptr, 10), partition);
  return true;
}

int open_lock_file(const struct stat& node) {
  char path[128];
  lock_path(node, path, sizeof path);
  return sys::open_file(path, O_RDONLY | kNoTricks);
}

int DeviceFiles::open_lock(const char* path, ErrorText* why) {
  struct stat node, lock;
  int err = sys::file_status(file(), &node);
  if (err < 0) return why->set(err, "LUN %s: cannot look at it: %s", path, errno_text(err));
  if (!S_ISBLK(node.st_mode) && !S_ISCHR(node.st_mode)) return 0;
  char lock_file[128];
  lock_path(node, lock_file, sizeof lock_file);
  const long flags = sys::control_file(file(), F_GETFL, nullptr);
  const int fd =
      open_or_make(lock_file, flags >= 0 && (flags & O_ACCMODE) == O_RDONLY ? O_RDONLY : O_RDWR,
                   node, file(), &lock);
  if (fd == -ENOENT || fd == -EROFS || fd == -ENOTDIR) {
    log_warning("LUN %s: no %s for its lock file (%s); opens through another node are not seen",
                path, kDirectory, errno_name(fd));
    return 0;
  }
  if (fd == -EPERM)
    return why->set(fd,
                    "LUN %s: its lock file %s was put there by user %u, who may not open the "
                    "device; when the device is not in use, have root remove that file",
                    path, lock_file, static_cast<unsigned>(lock.st_uid));
  if (fd < 0)
    return why->set(fd,
                    "LUN %s: its lock file %s cannot be opened: %s (%s); when the device is not in "
                    "use, remove that file",
                    path, lock_file, errno_text(fd), errno_name(fd));
  // Its rights may be out of date: the node's may have changed, or its maker was killed.
  if (lock.st_uid == geteuid() || geteuid() == 0) copy_rights(fd, node, file(), &lock);
  set(1, fd);
  lock_count_ = 2;
  return 0;
}

void DeviceFiles::close() {
  for (unsigned i = count(); i-- > 0;) {
    if (fd(i) >= 0) sys::close_file(fd(i));
    set(i, -1);
  }
  lock_count_ = 1;
  claim_count_ = 0;
}

bool locks_know_backing_device(int fd) {
  char path[160];
  if (sys::descriptor_path(fd, path, sizeof path) < 0) return false;
  const char* name = strrchr(path, '/');
  return name && strncmp(name + 1, kNamespace, strlen(kNamespace)) == 0;
}

int files_lock(const int* fds, unsigned count, sys::RangeLock kind, uint64_t offset,
               uint64_t length) {
  for (unsigned i = 0; i < count; ++i) {
    const int status = sys::lock_range(fds[i], kind, offset, length);
    if (status == 0) continue;
    for (unsigned j = 0; j < i && kind != sys::RangeLock::kNone; ++j)
      (void)sys::lock_range(fds[j], sys::RangeLock::kNone, offset, length);
    return status;
  }
  return 0;
}

int files_locked(const int* fds, unsigned count, uint64_t offset, uint64_t length) {
  for (unsigned i = 0; i < count; ++i) {
    const int locked = sys::range_locked(fds[i], offset, length);
    if (locked != 0) return locked;
  }
  return 0;
}

int device_lock(const Device* device, sys::RangeLock kind, uint64_t offset, uint64_t length) {
  int fds[kLockFilesMax];
  return files_lock(fds, lock_files_of(device, fds), kind, offset, length);
}

int device_locked(const Device* device, uint64_t offset, uint64_t length) {
  int fds[kLockFilesMax];
  return files_locked(fds, lock_files_of(device, fds), offset, length);
}

}  // namespace lunar
