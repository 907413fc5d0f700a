// SPDX-License-Identifier: Apache-2.0
// open's family and fcntl, for O_DIRECT, and for file systems that read without a cache (FUSE with
// direct_io). Who writes into a page which is just being evicted writes into the page's old place,
// so eviction must know before the first such I/O (pager/evict/pins.h). The descriptor table tells
// only a while after. Whatever else is asked for goes through unchanged.
// Threading: any thread. Waits for the end of the eviction batch under way (about 100 us), only at
// the first such file.
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>

#include <atomic>

#include "pager/account/account_find.h"
#include "pager/pager.h"
#include "preload.h"
#include "sys/fatal.h"
#include "sys/file.h"
#include "sys/proc.h"

using namespace lunar;
using namespace lunar::preload;

namespace {

// Whether a device may write through this descriptor: O_DIRECT means something else on a pipe.
bool reaches_a_device(int fd) {
  struct stat status;
  return sys::file_status(fd, &status) < 0 || S_ISREG(status.st_mode) || S_ISBLK(status.st_mode);
}

void note() {
  if (!pager_created() || HostGuard::active()) return;
  int saved = errno;
  pager_note_pinning("it opens with O_DIRECT");
  errno = saved;
}

constinit std::atomic<bool> g_unbuffered{false};

void note_unbuffered(int fd) {
  if (g_unbuffered.load(std::memory_order_relaxed) || !pager_created() || HostGuard::active())
    return;
  const int saved = errno;
  if (sys::file_may_be_unbuffered(fd)) {
    g_unbuffered.store(true, std::memory_order_relaxed);
    pager_note_pinning("it reads a file of FUSE, 9p or CIFS");
  }
  errno = saved;
}

// Before any other thread knows the descriptor.
inline int opened(int fd, int flags) {
  if (fd < 0) return fd;
  if (__builtin_expect((flags & O_DIRECT) != 0, 0)) note();
  if ((flags & O_ACCMODE) != O_WRONLY) note_unbuffered(fd);
  return fd;
}

FILE* opened(FILE* file) {
  if (file != nullptr) note_unbuffered(fileno(file));
  return file;
}

bool takes_mode(int flags) { return (flags & O_CREAT) != 0 || (flags & O_TMPFILE) == O_TMPFILE; }

// Calls from before our constructor.
int open_early(int directory, const char* path, int flags, mode_t mode) {
  int fd = sys::open_at(directory, path, flags, mode);
  if (fd >= 0) return fd;
  errno = -fd;
  return -1;
}

int open_noted(const char* path, int flags, mode_t mode) {
  return opened(g_real.open != nullptr ? g_real.open(path, flags, mode)
                                       : open_early(AT_FDCWD, path, flags, mode),
                flags);
}

int open64_noted(const char* path, int flags, mode_t mode) {
  return opened(g_real.open64 != nullptr ? g_real.open64(path, flags, mode)
                                         : open_early(AT_FDCWD, path, flags | O_LARGEFILE, mode),
                flags);
}

int openat_noted(int directory, const char* path, int flags, mode_t mode) {
  return opened(g_real.openat != nullptr ? g_real.openat(directory, path, flags, mode)
                                         : open_early(directory, path, flags, mode),
                flags);
}

int openat64_noted(int directory, const char* path, int flags, mode_t mode) {
  return opened(g_real.openat64 != nullptr ? g_real.openat64(directory, path, flags, mode)
                                           : open_early(directory, path, flags | O_LARGEFILE, mode),
                flags);
}

using Fcntl = int (*)(int, int, ...);
int fcntl_noted(Fcntl real, int fd, int command, void* argument) {
  // Some set the flag on all that they do not know: what the programs started later need stays
  // (close_family.cpp).
  if (command == F_SETFD && (reinterpret_cast<intptr_t>(argument) & FD_CLOEXEC) != 0 &&
      account_is(fd))
    return 0;
  if (command == F_SETFL && (reinterpret_cast<intptr_t>(argument) & O_DIRECT) != 0 &&
      reaches_a_device(fd))
    note();
  if (__builtin_expect(real != nullptr, 1)) return real(fd, command, argument);
  return static_cast<int>(with_errno(sys::control_file(fd, command, argument)));
}

// What glibc's own does: a mode is needed, and there is none.
void refuse_without_mode(int flags) {
  if (takes_mode(flags)) fatal("open with O_CREAT or O_TMPFILE and no mode (_FORTIFY_SOURCE)");
}

}  // namespace

#define TAKE_MODE                                       \
  mode_t mode = 0;                                      \
  if (takes_mode(flags)) {                              \
    va_list list;                                       \
    va_start(list, flags);                              \
    mode = static_cast<mode_t>(va_arg(list, unsigned)); \
    va_end(list);                                       \
  }

// Not by the declarations of fcntl.h, whose names may be macros or renamed by _FILE_OFFSET_BITS.
// Each goes on to its own next one, so that other preloaded libraries see what they would see
// without us. All are cancellation points where libc's are.
LUNAR_EXPORT int lunar_open(const char* path, int flags, ...) __asm__("open");
LUNAR_EXPORT int lunar_open64(const char* path, int flags, ...) __asm__("open64");
LUNAR_EXPORT int lunar_openat(int directory, const char* path, int flags, ...) __asm__("openat");
LUNAR_EXPORT int lunar_openat64(int directory, const char* path, int flags,
                                ...) __asm__("openat64");
LUNAR_EXPORT int lunar_fcntl(int fd, int command, ...) __asm__("fcntl");
LUNAR_EXPORT int lunar_fcntl64(int fd, int command, ...) __asm__("fcntl64");

int lunar_open(const char* path, int flags, ...) {
  TAKE_MODE
  return open_noted(path, flags, mode);
}

int lunar_open64(const char* path, int flags, ...) {
  TAKE_MODE
  return open64_noted(path, flags, mode);
}

int lunar_openat(int directory, const char* path, int flags, ...) {
  TAKE_MODE
  return openat_noted(directory, path, flags, mode);
}

int lunar_openat64(int directory, const char* path, int flags, ...) {
  TAKE_MODE
  return openat64_noted(directory, path, flags, mode);
}

LUNAR_EXPORT FILE* lunar_fopen(const char* path, const char* mode) __asm__("fopen");
LUNAR_EXPORT FILE* lunar_fopen64(const char* path, const char* mode) __asm__("fopen64");

FILE* lunar_fopen(const char* path, const char* mode) {
  look_up(g_real.fopen, "fopen");
  return opened(g_real.fopen(path, mode));
}

FILE* lunar_fopen64(const char* path, const char* mode) {
  look_up(g_real.fopen64, "fopen64");
  return opened(g_real.fopen64(path, mode));
}

int lunar_fcntl(int fd, int command, ...) {
  va_list list;
  va_start(list, command);
  void* argument = va_arg(list, void*);
  va_end(list);
  return fcntl_noted(g_real.fcntl, fd, command, argument);
}

int lunar_fcntl64(int fd, int command, ...) {
  va_list list;
  va_start(list, command);
  void* argument = va_arg(list, void*);
  va_end(list);
  return fcntl_noted(g_real.fcntl64, fd, command, argument);
}

// What _FORTIFY_SOURCE makes of calls without a mode whose flags the compiler does not know.
LUNAR_EXPORT int __open_2(const char* path, int flags) {
  refuse_without_mode(flags);
  return open_noted(path, flags, 0);
}
LUNAR_EXPORT int __open64_2(const char* path, int flags) {
  refuse_without_mode(flags);
  return open64_noted(path, flags, 0);
}
LUNAR_EXPORT int __openat_2(int directory, const char* path, int flags) {
  refuse_without_mode(flags);
  return openat_noted(directory, path, flags, 0);
}
LUNAR_EXPORT int __openat64_2(int directory, const char* path, int flags) {
  refuse_without_mode(flags);
  return openat64_noted(directory, path, flags, 0);
}
