// SPDX-License-Identifier: Apache-2.0
// See in_use.h.
// Threading: one thread. Changes nothing. May not be used by runtime/ (it allocates).
#include "lun_verbs/in_use.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

#include "superpipe/device_files.h"
#include "superpipe/signature.h"
#include "support/text_file.h"
#include "text.h"

namespace lunar::tools {
namespace {

std::string first_line(const std::string& path) {
  const std::string text = read_text(path).value_or("");
  return text.substr(0, text.find('\n'));
}

std::string real_path(const std::string& path) {
  char resolved[PATH_MAX];
  return realpath(path.c_str(), resolved) ? resolved : "";
}

std::string last_part(const std::string& path) { return path.substr(path.rfind('/') + 1); }

std::string system_directory(dev_t device) { return text_of("/sys/dev/block/%u:%u", major(device), minor(device)); }

// The loop device that has this file, or "".
std::string loop_device_of(const struct stat& file) {
  std::string found;
  DIR* all = opendir("/sys/class/block");
  if (!all) return found;
  while (const dirent* entry = readdir(all)) {
    if (strncmp(entry->d_name, "loop", 4) != 0) continue;
    const std::string backing = first_line(text_of("/sys/class/block/%s/loop/backing_file", entry->d_name));
    struct stat status;
    if (!backing.empty() && stat(backing.c_str(), &status) == 0 && status.st_dev == file.st_dev && status.st_ino == file.st_ino)
      found = entry->d_name;
  }
  closedir(all);
  return found;
}

bool block_busy(const std::string& path, const struct stat& status, std::string* who) {
  char text[256];
  if (block_in_use(status.st_rdev, text, sizeof text)) return *who = text, true;
  // O_EXCL: the kernel knows of mounted partitions too.
  const int fd = open(path.c_str(), O_RDONLY | O_EXCL | O_CLOEXEC);
  if (fd >= 0) close(fd);
  if (fd >= 0 || errno != EBUSY) return false;
  return *who = "mounted, swap, or part of another device", true;
}

bool locked_by_others(int fd) {
  struct flock lock {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  return fcntl(fd, F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
}

}   // namespace

bool path_locked(const std::string& path) {
  struct stat status;
  const int fd = open(path.c_str(), O_RDWR | O_CLOEXEC);
  bool locked = fd >= 0 && locked_by_others(fd);
  if (fd >= 0 && fstat(fd, &status) == 0 && !S_ISREG(status.st_mode)) {
    const int lock_file = open_lock_file(status);
    locked |= lock_file >= 0 && locked_by_others(lock_file);
    if (lock_file >= 0) close(lock_file);
  }
  if (fd >= 0) close(fd);
  return locked;
}

bool path_in_use(const std::string& path, bool locks, std::string* who) {
  struct stat status;
  if (path.empty() || stat(path.c_str(), &status) != 0) return false;
  if (S_ISBLK(status.st_mode) && block_busy(path, status, who)) return true;
  if (S_ISREG(status.st_mode)) {
    const std::string loop = loop_device_of(status);
    if (!loop.empty()) return *who = "the file of /dev/" + loop, true;
  }
  if (locks && (S_ISBLK(status.st_mode) || S_ISCHR(status.st_mode) || S_ISREG(status.st_mode)) && path_locked(path)) return *who = "locked by another process", true;
  return false;
}

std::string parent_of(const std::string& path) {
  struct stat status;
  if (path.empty() || stat(path.c_str(), &status) != 0) return "-";
  std::string directory;
  if (S_ISBLK(status.st_mode)) {
    directory = system_directory(status.st_rdev);
    const std::string backing = first_line(directory + "/loop/backing_file");
    if (!backing.empty()) return backing;
  } else if (S_ISCHR(status.st_mode)) {
    directory = text_of("/sys/dev/char/%u:%u", major(status.st_rdev), minor(status.st_rdev));
  } else {
    const std::string disk = real_path(system_directory(status.st_dev));   // the file's file system lies on it
    return disk.empty() ? "-" : last_part(disk);
  }
  const std::string parent = real_path(directory + "/device");
  if (!parent.empty()) return last_part(parent);
  const std::string whole = real_path(directory + "/..");   // a partition hangs on its disk
  return whole.empty() || last_part(whole) == "block" ? "-" : last_part(whole);
}

}   // namespace lunar::tools
