// SPDX-License-Identifier: Apache-2.0
// Holders of locks: see lock_holders.h.
//
// Idea: /proc/PID/fdinfo/FD lists the locks of that open file description. The files themselves are
// not touched, so none can block.
#include "superpipe/lock_holders.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#include "base/format.h"
#include "sys/file.h"
#include "sys/log.h"
#include "sys/proc.h"

namespace lunar {
namespace {

constexpr unsigned kFilesMax = 2;
constexpr size_t kInfoBytes = 8192;  // read at once; a lock takes about 100 bytes
constexpr char kLock[] = "lock:";

struct Wanted {
  char inode[kFilesMax][32];  // ":123 "
  unsigned count;
  const LockedBytes* ranges;
  unsigned range_count;
};

bool overlaps(const LockedBytes& range, uint64_t first, uint64_t last) {
  const uint64_t end = range.bytes ? range.first + range.bytes - 1 : UINT64_MAX;
  return first <= end && range.first <= last;
}

// "lock: 1: OFDLCK ADVISORY READ -1 fe:00:123 0 EOF". (The device number of some file systems is
// not that of stat.)
bool line_matches(const char* line, const Wanted& wanted) {
  if (strncmp(line, kLock, strlen(kLock)) != 0 || !strstr(line, "OFDLCK")) return false;
  for (unsigned i = 0; i < wanted.count; ++i) {
    const char* at = strstr(line, wanted.inode[i]);
    if (!at) continue;
    char* rest = nullptr;
    const uint64_t first = strtoull(at + strlen(wanted.inode[i]), &rest, 10);
    const uint64_t last = strstr(rest, "EOF") ? UINT64_MAX : strtoull(rest, nullptr, 10);
    for (unsigned k = 0; k < wanted.range_count; ++k)
      if (overlaps(wanted.ranges[k], first, last)) return true;
  }
  return false;
}

// The locks are listed one after the other, behind a few lines that each descriptor has, and before
// lines of the kind of file.
bool description_matches(const char* path, const Wanted& wanted) {
  const int fd = sys::open_file(path, O_RDONLY);
  if (fd < 0) return false;
  char text[kInfoBytes];
  bool found = false;
  size_t have = 0;
  for (bool in_locks = true; in_locks && !found;) {
    const int64_t n = sys::read_some(fd, text + have, sizeof text - 1 - have);
    if (n == -EINTR) continue;
    if (n <= 0) break;
    text[have + static_cast<size_t>(n)] = '\0';
    char* line = text;
    for (char* end; !found && (end = strchr(line, '\n')) != nullptr; line = end + 1) {
      *end = '\0';
      found = line_matches(line, wanted);
      in_locks = strncmp(line, kLock, strlen(kLock)) == 0;
    }
    have = strlen(line);
    memmove(text, line, have);
  }
  sys::close_file(fd);
  return found;
}

// Descriptors of one table; DIRECTORY: /proc/PID/fdinfo, also of a thread.
bool table_matches(const char* directory, const Wanted& wanted) {
  bool found = false;
  (void)sys::each_entry(directory, [&](const char* number) {
    char path[96];
    format_to(path, sizeof path, "%s/%s", directory, number);
    found = description_matches(path, wanted);
    return !found;
  });
  return found;
}

bool process_matches(int pid, const Wanted& wanted) {
  bool found = false;
  sys::each_descriptor_table(pid, "fdinfo", [&](const char* directory) {
    found = table_matches(directory, wanted);
    return !found;
  });
  return found;
}

}  // namespace

bool any_process_locks(const int* fds, unsigned count, const LockedBytes* ranges,
                       unsigned range_count) {
  Wanted wanted = {{}, 0, ranges, range_count};
  for (unsigned i = 0; i < count && wanted.count < kFilesMax; ++i) {
    struct stat file;
    if (sys::file_status(fds[i], &file) == 0)
      format_to(wanted.inode[wanted.count++], sizeof wanted.inode[0], ":%llu ",
                static_cast<unsigned long long>(file.st_ino));
  }
  bool found = false;
  const int status = sys::each_process([&](int pid) {
    found = process_matches(pid, wanted);
    return !found;
  });
  return found || status < 0;
}

void LockWait::note() {
  if (noted_) return;
  noted_ = true;
  log_warning(
      "LUN %s: locked, but by no process that can be seen from here: waiting up to 30 s, "
      "because the kernel may still be ending the I/O of a killed process",
      path_);
}

}  // namespace lunar
