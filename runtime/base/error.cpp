// SPDX-License-Identifier: Apache-2.0
// Error texts.
// Threading: any thread, also on the fault path and in a forked child; allocates nothing.
#include "base/error.h"

#include <errno.h>
#include <string.h>

#include "base/format.h"

namespace lunar {
namespace {

struct ErrnoEntry {
  int number;
  const char* name;
  const char* text;
};

#define ENTRY(code, text) {code, #code, text}
// The errors that occur in the runtime; the C library's static tables serve the rest.
constexpr ErrnoEntry kErrnos[] = {
    ENTRY(EPERM, "operation not permitted"),
    ENTRY(ENOENT, "no such file or directory"),
    ENTRY(ESRCH, "no such process"),
    ENTRY(EINTR, "interrupted by a signal"),
    ENTRY(EIO, "input/output error"),
    ENTRY(ENXIO, "no such device or address"),
    ENTRY(E2BIG, "argument list too long"),
    ENTRY(ENOEXEC, "not an executable format"),
    ENTRY(EBADF, "bad file descriptor"),
    ENTRY(EAGAIN, "try again"),
    ENTRY(ENOMEM, "out of memory"),
    ENTRY(EACCES, "permission denied"),
    ENTRY(EFAULT, "bad address"),
    ENTRY(ENOTBLK, "not a block device"),
    ENTRY(EBUSY, "device or resource busy"),
    ENTRY(EEXIST, "exists already"),
    ENTRY(ENODEV, "no such device"),
    ENTRY(ENOTDIR, "not a directory"),
    ENTRY(EISDIR, "is a directory"),
    ENTRY(EINVAL, "invalid argument"),
    ENTRY(ENFILE, "too many open files in the system"),
    ENTRY(EMFILE, "too many open files"),
    ENTRY(ENOTTY, "not a terminal, or no such ioctl"),
    ENTRY(ETXTBSY, "text file busy"),
    ENTRY(EFBIG, "file too large"),
    ENTRY(ENOSPC, "no space left on device"),
    ENTRY(ESPIPE, "illegal seek"),
    ENTRY(EROFS, "read-only file system"),
    ENTRY(EMEDIUMTYPE, "wrong type of LUN"),
    ENTRY(EPIPE, "broken pipe"),
    ENTRY(ERANGE, "out of range"),
    ENTRY(EDEADLK, "deadlock avoided"),
    ENTRY(ENAMETOOLONG, "file name too long"),
    ENTRY(ENOSYS, "not offered by this kernel"),
    ENTRY(ELOOP, "too many symbolic links"),
    ENTRY(ENODATA, "no data"),
    ENTRY(ETIME, "timed out"),
    ENTRY(EPROTO, "protocol error"),
    ENTRY(EBADMSG, "bad message"),
    ENTRY(EOVERFLOW, "value too large"),
    ENTRY(EILSEQ, "content does not match its checksum"),
    ENTRY(EOPNOTSUPP, "not supported"),
    ENTRY(ENOBUFS, "no buffer space"),
    ENTRY(ETIMEDOUT, "timed out"),
    ENTRY(EALREADY, "in progress already"),
    ENTRY(ESTALE, "stale file handle"),
    ENTRY(EDQUOT, "disk quota exceeded"),
    ENTRY(ECANCELED, "cancelled"),
#ifdef EREMOTEIO
    ENTRY(EREMOTEIO, "remote input/output error"),
#endif
#ifdef EHWPOISON
    ENTRY(EHWPOISON, "memory page has a hardware error"),
#endif
};
#undef ENTRY

const ErrnoEntry* find_errno(int number) {
  for (const ErrnoEntry& entry : kErrnos) {
    if (entry.number == number) return &entry;
  }
  return nullptr;
}

int positive(int err) { return err < 0 ? -err : err; }

}  // namespace

#ifndef __clang_analyzer__  // see error.h
int ErrorText::set(int err, const char* format, ...) {
  va_list args;
  va_start(args, format);
  vformat_line_to(text, sizeof text, format, args);
  va_end(args);
  return err;
}
#endif

const char* errno_name(int err) {
  err = positive(err);
  if (err == 0) return "0";
  if (const ErrnoEntry* entry = find_errno(err)) return entry->name;
#if defined(__GLIBC__) && (__GLIBC__ > 2 || __GLIBC_MINOR__ >= 32)
  if (const char* name = strerrorname_np(err)) return name;
#endif
  return "unknown errno";
}

const char* errno_text(int err) {
  err = positive(err);
  if (err == 0) return "no error";
  if (const ErrnoEntry* entry = find_errno(err)) return entry->text;
#if defined(__GLIBC__) && (__GLIBC__ > 2 || __GLIBC_MINOR__ >= 32)
  if (const char* text = strerrordesc_np(err)) return text;
#endif
  return "unknown error";
}

}  // namespace lunar
