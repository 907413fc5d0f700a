// SPDX-License-Identifier: Apache-2.0
// close, dup2 and their families: they keep open the descriptors that the program does not know.
//   the tree's account                         programs that this one starts need it
//   /dev/userfaultfd                           needed after the process has dropped its rights, and
//                                              by programs that are started without them
//   /proc, files of this process there, LUNs   cannot be opened again below another root directory
// When a program closes all descriptors that it does not know (Python's subprocess, daemons, GLib),
// these stay open. When it takes such a number for a file of its own, it gets the number: the
// account moves to another one, and the process opens the others again if it may. All other calls
// go through unchanged.
// Threading: any thread, signal handlers and children of vfork included.
#include "close_family.h"

#include <errno.h>
#include <limits.h>
#include <linux/close_range.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "pager/account/account_find.h"
#include "pager/pager.h"
#include "preload.h"
#include "real_calls.h"
#include "sys/file.h"
#include "sys/kernel_call.h"
#include "sys/proc.h"
#include "sys/uffd.h"

using namespace lunar;
using namespace lunar::preload;

namespace {

bool is_ours(int fd) {
  return account_is(fd) || sys::uffd_device_is(fd) || pager_keeps_descriptor(fd);
}

// Lunar's lowest descriptor in [first, last], or -1.
int next_of_ours(unsigned first, unsigned last) {
  int found = -1;
  const auto consider = [&](int fd) {
    const bool within =
        fd >= 0 && static_cast<unsigned>(fd) >= first && static_cast<unsigned>(fd) <= last;
    if (within && (found < 0 || fd < found) && is_ours(fd)) found = fd;
  };
  consider(account_number());
  consider(sys::uffd_device_number());
  const unsigned end = found >= 0 ? static_cast<unsigned>(found) : last;
  for (int fd = first <= INT_MAX ? sys::next_own_descriptor(static_cast<int>(first)) : -1;
       fd >= 0 && static_cast<unsigned>(fd) <= end && (found < 0 || fd < found);
       fd = sys::next_own_descriptor(fd + 1))
    consider(fd);
  return found;
}

}  // namespace

LUNAR_EXPORT int lunar_close(int fd) __asm__("close");
LUNAR_EXPORT int lunar_close_range(unsigned first, unsigned last, int flags) __asm__("close_range");
LUNAR_EXPORT void lunar_closefrom(int first) __asm__("closefrom");
LUNAR_EXPORT int lunar_dup2(int from, int to) __asm__("dup2");
LUNAR_EXPORT int lunar_dup3(int from, int to, int flags) __asm__("dup3");

namespace {

int close_program_file(int fd) {
  if (__builtin_expect(is_ours(fd), 0)) return 0;
  return g_real.close != nullptr ? g_real.close(fd) : with_errno(sys::close_file(fd));
}

int close_program_range(unsigned first, unsigned last, int flags) {
  for (unsigned from = first;;) {  // closes the ranges before, between and after ours
    const int ours = from > last ? -1 : next_of_ours(from, last);
    if (ours < 0)
      return from > last && from != first ? 0 : with_errno(sys::close_numbers(from, last, flags));
    if (const auto end = static_cast<unsigned>(ours); from < end) {
      if (const int rc = sys::close_numbers(from, end - 1, flags); rc < 0) return with_errno(rc);
      flags &= ~static_cast<int>(CLOSE_RANGE_UNSHARE);  // done by the first call
    }
    from = static_cast<unsigned>(ours) + 1;
  }
}

void make_way(int from, int to) {
  if (__builtin_expect(from != to && account_is(to), 0)) account_make_way(to);
}

}  // namespace

// Does not use libc's functions: the program may have replaced these by code that calls syscall().
bool lunar::preload::close_call(long number, const long (&a)[6], long* result) {
  const auto first = static_cast<int>(a[0]), second = static_cast<int>(a[1]);
  switch (number) {
    case SYS_close:
      *result = is_ours(first) ? 0 : with_errno(sys::close_file(first));
      return true;
    case SYS_close_range:
      *result = close_program_range(static_cast<unsigned>(a[0]), static_cast<unsigned>(a[1]),
                                    static_cast<int>(a[2]));
      return true;
#ifdef SYS_dup2
    case SYS_dup2:
#endif
    case SYS_dup3:
      make_way(first, second);
      *result = sys::kernel_call_errno(number, a);
      return true;
    default:
      return false;
  }
}

int lunar_close(int fd) { return close_program_file(fd); }

int lunar_close_range(unsigned first, unsigned last, int flags) {
  return close_program_range(first, last, flags);
}

void lunar_closefrom(int first) {
  const int saved = errno;
  if (first < 0) first = 0;
  // Where close_range is filtered, this closes each number.
  if (close_program_range(static_cast<unsigned>(first), ~0u, 0) < 0) {
    for (int fd = first, top = static_cast<int>(sysconf(_SC_OPEN_MAX)); fd < top; ++fd)
      (void)close_program_file(fd);
  }
  errno = saved;
}

int lunar_dup2(int from, int to) {
  make_way(from, to);
  return g_real.dup2 != nullptr ? g_real.dup2(from, to)
         : from == to           ? from
                                : with_errno(sys::duplicate_to(from, to, 0));
}

int lunar_dup3(int from, int to, int flags) {
  make_way(from, to);
  return g_real.dup3 != nullptr ? g_real.dup3(from, to, flags)
                                : with_errno(sys::duplicate_to(from, to, flags));
}
