// SPDX-License-Identifier: Apache-2.0
// open's family and fcntl, for O_DIRECT, and for file systems that read without a cache (FUSE with
// direct_io). A device write into a page under eviction goes to the page's old frame, so eviction
// must know before the first such I/O (pager/evict/pins.h). It would notice the descriptor only
// some time later. The calls themselves go through unchanged.
// Threading: any thread. At the first such file it waits for the end of the eviction batch in
// progress (about 100 us).
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>

#include <atomic>

#include "pager/account/account_find.h"
#include "pager/pager.h"
#include "preload.h"
#include "real_calls.h"
#include "sys/fatal.h"
#include "sys/file.h"
#include "sys/proc.h"

using namespace lunar;
using namespace lunar::preload;

namespace {

// Whether a device may write into memory by this descriptor. (On a pipe, O_DIRECT means something
// else.)
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

// Called before any other thread knows the descriptor.
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

// For calls that come before our constructor.
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
  // Some programs set the flag on all descriptors that they do not know. The account stays open for
  // programs that are started later (close_family.cpp).
  if (command == F_SETFD && (reinterpret_cast<intptr_t>(argument) & FD_CLOEXEC) != 0 &&
      account_is(fd))
    return 0;
  if (command == F_SETFL && (reinterpret_cast<intptr_t>(argument) & O_DIRECT) != 0 &&
      reaches_a_device(fd))
    note();
  if (__builtin_expect(real != nullptr, 1)) return real(fd, command, argument);
  return static_cast<int>(with_errno(sys::control_file(fd, command, argument)));
}

// As glibc does where a mode is needed, and there is none.
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

// These are defined by symbol, because the names in fcntl.h may be macros or renamed by
// _FILE_OFFSET_BITS. Each calls the next definition of the same name, so that other preloaded
// libraries see the calls that they would see without us. They are cancellation points where libc's
// are.
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

// _FORTIFY_SOURCE turns calls without a mode into these if the compiler does not know the flags.
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
