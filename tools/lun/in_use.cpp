// SPDX-License-Identifier: Apache-2.0
// See in_use.h.
#include "tools/lun/in_use.h"

#include <fcntl.h>
#include <limits.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

#include "superpipe/device_files.h"
#include "tools/support/host.h"
#include "tools/support/text.h"

namespace lunar::tools {
namespace {

std::string real_path(const std::string& path) {
  char resolved[PATH_MAX];
  return realpath(path.c_str(), resolved) ? resolved : "";
}

std::string name_of(const std::string& path) { return path.substr(path.rfind('/') + 1); }

std::string system_directory(dev_t device) {
  return text_of("/sys/dev/block/%u:%u", major(device), minor(device));
}

bool metadata_locked(int fd) {
  struct flock lock{};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  lock.l_start = static_cast<off_t>(owner_bytes::kFirstLunByte);
  lock.l_len = 1;
  return fcntl(fd, F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
}

}  // namespace

bool path_being_changed(const std::string& path) {
  struct stat status;
  const int fd = open(path.c_str(), O_RDWR | O_CLOEXEC);
  bool locked = fd >= 0 && metadata_locked(fd);
  if (fd >= 0 && fstat(fd, &status) == 0 && !S_ISREG(status.st_mode)) {
    const int lock_file = open_lock_file(status);
    locked |= lock_file >= 0 && metadata_locked(lock_file);
    if (lock_file >= 0) close(lock_file);
  }
  if (fd >= 0) close(fd);
  return locked;
}

std::string parent_of(const std::string& path) {
  struct stat status;
  if (path.empty() || stat(path.c_str(), &status) != 0) return "-";
  std::string directory;
  if (S_ISBLK(status.st_mode)) {
    directory = system_directory(status.st_rdev);
    const std::string backing = read_line(directory + "/loop/backing_file");
    if (!backing.empty()) return backing;
  } else if (S_ISCHR(status.st_mode)) {
    directory = text_of("/sys/dev/char/%u:%u", major(status.st_rdev), minor(status.st_rdev));
  } else {
    // The disk of the file system.
    const std::string disk = real_path(system_directory(status.st_dev));
    return disk.empty() ? "-" : name_of(disk);
  }
  const std::string parent = real_path(directory + "/device");
  if (!parent.empty()) return name_of(parent);
  const std::string whole = real_path(directory + "/..");  // of a partition: its disk
  return whole.empty() || name_of(whole) == "block" ? "-" : name_of(whole);
}

}  // namespace lunar::tools
