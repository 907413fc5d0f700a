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

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "base/format.h"
#include "base/log.h"
#include "superpipe/signature.h"
#include "sys/file.h"

namespace lunar {
namespace {

constexpr char kDirectory[] = "/dev/shm/", kNamespace[] = "lunar-namespace-", kNode[] = "lunar-node-";

// "0n1" with its end in "ng0n1", "nvme0n1", "nvme0n1p2" (and "p2"). False when it is no such name.
bool namespace_numbers(const char* name, int* length, const char** numbers, const char** partition) {
  if (strncmp(name, "nvme", 4) == 0) *numbers = name + 4;
  else if (strncmp(name, "ng", 2) == 0) *numbers = name + 2;
  else return false;
  const size_t controller = strspn(*numbers, "0123456789");
  if (controller == 0 || (*numbers)[controller] != 'n') return false;
  const size_t number = strspn(*numbers + controller + 1, "0123456789");
  *length = static_cast<int>(controller + 1 + number);
  *partition = *numbers + *length;
  return number > 0 && (**partition == 'p' || **partition == 0);
}

// The part of the name behind kNamespace, by the kernel's word for the namespace of that node. False when it is none.
bool namespace_key(const struct stat& node, char* out, size_t size) {
  char name[64], path[128], nqn[300], nsid[24];
  const char *numbers, *partition;
  int length;
  if (!device_node_name(S_ISBLK(node.st_mode), node.st_rdev, name, sizeof name)) return false;
  if (!namespace_numbers(name, &length, &numbers, &partition)) return false;
  format_to(path, sizeof path, "/sys/class/block/nvme%.*s/nsid", length, numbers);
  if (sys::read_text(path, nsid, sizeof nsid) <= 0) return false;
  format_to(path, sizeof path, "/sys/class/block/nvme%.*s/device/subsysnqn", length, numbers);
  const int bytes = sys::read_text(path, nqn, sizeof nqn);
  if (bytes <= 0) return false;
  const uint64_t hash = XXH3_64bits(nqn, strcspn(nqn, "\n"));
  format_to(out, size, "%08x%08x-%lu%s", static_cast<unsigned>(hash >> 32), static_cast<unsigned>(hash), strtoul(nsid, nullptr, 10), partition);
  return true;
}

void lock_path(const struct stat& node, char* out, size_t size) {
  char key[64];
  if (namespace_key(node, key, sizeof key)) format_to(out, size, "%s%s%s", kDirectory, kNamespace, key);
  else format_to(out, size, "%s%s%c%u:%u", kDirectory, kNode, S_ISBLK(node.st_mode) ? 'b' : 'c', major(node.st_rdev), minor(node.st_rdev));
}

// Opened as it is, or made. Without O_CREAT first: the kernel refuses that for a file of another user in a sticky directory.
int open_or_make(const char* path, int access) {
  constexpr int kNoTricks = O_NOFOLLOW | O_NONBLOCK;   // anybody may put names into /dev/shm
  for (int tries = 0; tries < 3; ++tries) {
    int fd = sys::open_file(path, access | kNoTricks);
    if (fd != -ENOENT) return fd;
    fd = sys::open_file(path, O_RDWR | O_CREAT | O_EXCL | kNoTricks, 0666);
    if (fd == -EEXIST) continue;
    if (fd < 0) return fd;
    sys::set_mode(fd, 0666);                            // whatever the umask
    if (access == O_RDWR) return fd;
    sys::close_file(fd);
  }
  return -ENOENT;
}

}  // namespace

int DeviceFiles::open_lock(const char* path, ErrorText* why) {
  struct stat node, lock;
  int err = sys::file_status(file(), &node);
  if (err < 0) return why->set(err, "LUN %s: cannot look at it: %s", path, errno_text(err));
  if (!S_ISBLK(node.st_mode) && !S_ISCHR(node.st_mode)) return 0;
  char lock_file[128];
  lock_path(node, lock_file, sizeof lock_file);
  const long flags = sys::control_file(file(), F_GETFL, nullptr);
  int fd = open_or_make(lock_file, flags >= 0 && (flags & O_ACCMODE) == O_RDONLY ? O_RDONLY : O_RDWR);
  if (fd == -ENOENT || fd == -EROFS || fd == -ENOTDIR) {
    log_warning("LUN %s: no %s for its lock file (%s); who reaches the device by another node is not seen", path, kDirectory, errno_name(fd));
    fd = sys::open_again(file());
    lock = node;
  } else if (fd >= 0 && (err = sys::file_status(fd, &lock)) == 0 && !S_ISREG(lock.st_mode)) {
    err = -EEXIST;
  }
  if (fd >= 0 && err == 0) {
    set(1, fd);
    return 0;
  }
  if (fd >= 0) sys::close_file(fd);
  else err = fd;
  return why->set(err, "LUN %s: its lock file %s cannot be opened: %s (%s); when nobody uses the device, remove that file", path, lock_file,
                  errno_text(err), errno_name(err));
}

void DeviceFiles::close() {
  for (const unsigned i : {1u, 0u}) {
    if (fd(i) >= 0) sys::close_file(fd(i));
    set(i, -1);
  }
}

bool locks_know_medium(int fd) {
  struct stat status;
  if (sys::file_status(fd, &status) < 0 || !S_ISREG(status.st_mode)) return false;
  char path[160], node[64];
  format_to(node, sizeof node, "%s%s", kDirectory, kNode);
  return sys::descriptor_path(fd, path, sizeof path) < 0 || strncmp(path, node, strlen(node)) != 0;
}

}  // namespace lunar
