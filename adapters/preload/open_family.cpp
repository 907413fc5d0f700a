// SPDX-License-Identifier: Apache-2.0
// open's family and fcntl, for one flag: O_DIRECT. A device that writes into a page which is just being evicted writes into the
// page's old place, so eviction must know before the first such I/O (pager/pins.h). The descriptor table tells only a while
// after. Whatever else is asked for goes through unchanged.
// Threading: any thread. Waits for the end of the eviction batch under way (about 100 us), only when O_DIRECT is asked for.
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>

#include "pager/pager.h"
#include "preload.h"
#include "sys/file.h"

using namespace lunar;
using namespace lunar::preload;

namespace {

inline void note(int flags) {
  if (__builtin_expect((flags & O_DIRECT) != 0, 0) && pager_created() && !HostGuard::active()) pager_note_pinning();
}

bool takes_mode(int flags) { return (flags & O_CREAT) != 0 || (flags & O_TMPFILE) == O_TMPFILE; }

int open_noted(int directory, const char* path, int flags, mode_t mode) {
  note(flags);
  if (__builtin_expect(g_real.openat != nullptr, 1)) return g_real.openat(directory, path, flags, mode);   // a cancellation point
  int fd = sys::open_at(directory, path, flags, mode);
  if (fd >= 0) return fd;
  errno = -fd;
  return -1;
}

int fcntl_noted(int fd, int command, void* argument) {
  if (command == F_SETFL) note(static_cast<int>(reinterpret_cast<intptr_t>(argument)));
  if (__builtin_expect(g_real.fcntl != nullptr, 1)) return g_real.fcntl(fd, command, argument);
  long rc = sys::control_file(fd, command, argument);
  if (rc >= 0) return static_cast<int>(rc);
  errno = static_cast<int>(-rc);
  return -1;
}

}  // namespace

#define TAKE_MODE(last)                                   \
  mode_t mode = 0;                                        \
  if (takes_mode(last)) {                                 \
    va_list list;                                         \
    va_start(list, last);                                 \
    mode = static_cast<mode_t>(va_arg(list, unsigned));   \
    va_end(list);                                         \
  }

// Not the declarations of fcntl.h, whose names may be macros or renamed by _FILE_OFFSET_BITS; on 64-bit systems open64 is open.
LUNAR_EXPORT int lunar_open(const char* path, int flags, ...) __asm__("open");
LUNAR_EXPORT int lunar_open64(const char* path, int flags, ...) __asm__("open64");
LUNAR_EXPORT int lunar_openat(int directory, const char* path, int flags, ...) __asm__("openat");
LUNAR_EXPORT int lunar_openat64(int directory, const char* path, int flags, ...) __asm__("openat64");
LUNAR_EXPORT int lunar_fcntl(int fd, int command, ...) __asm__("fcntl");
LUNAR_EXPORT int lunar_fcntl64(int fd, int command, ...) __asm__("fcntl64");

int lunar_open(const char* path, int flags, ...) {
  TAKE_MODE(flags)
  return open_noted(AT_FDCWD, path, flags, mode);
}

int lunar_open64(const char* path, int flags, ...) {
  TAKE_MODE(flags)
  return open_noted(AT_FDCWD, path, flags | O_LARGEFILE, mode);
}

int lunar_openat(int directory, const char* path, int flags, ...) {
  TAKE_MODE(flags)
  return open_noted(directory, path, flags, mode);
}

int lunar_openat64(int directory, const char* path, int flags, ...) {
  TAKE_MODE(flags)
  return open_noted(directory, path, flags | O_LARGEFILE, mode);
}

int lunar_fcntl(int fd, int command, ...) {
  va_list list;
  va_start(list, command);
  void* argument = va_arg(list, void*);
  va_end(list);
  return fcntl_noted(fd, command, argument);
}

int lunar_fcntl64(int fd, int command, ...) {
  va_list list;
  va_start(list, command);
  void* argument = va_arg(list, void*);
  va_end(list);
  return fcntl_noted(fd, command, argument);
}

// What _FORTIFY_SOURCE makes of calls without a mode. (Flags that need one end the program in libc's own; they cannot come here from
// a compiler that checked them.)
LUNAR_EXPORT int __open_2(const char* path, int flags) { return open_noted(AT_FDCWD, path, flags, 0); }
LUNAR_EXPORT int __open64_2(const char* path, int flags) { return open_noted(AT_FDCWD, path, flags | O_LARGEFILE, 0); }
LUNAR_EXPORT int __openat_2(int directory, const char* path, int flags) { return open_noted(directory, path, flags, 0); }
LUNAR_EXPORT int __openat64_2(int directory, const char* path, int flags) {
  return open_noted(directory, path, flags | O_LARGEFILE, 0);
}
