// SPDX-License-Identifier: Apache-2.0 close's family and dup2's, for two descriptors that the program does not know:
// that of the tree's account, which the programs started by this one need, and that of /dev/userfaultfd, which this one
// may need once it has dropped its rights, and they if they start without. Programs that close all unknown descriptors
// (Python's subprocess, daemons, GLib) skip them. A program that wants such a number for a file of its own gets it: the
// account moves away, and a process with the right to it reopens the device. All other calls go through unchanged.
// Threading: any thread, signal handlers and children of vfork included.
#include <errno.h>
#include <linux/close_range.h>
#include <unistd.h>

#include <utility>

#include "pager/account_find.h"
#include "preload.h"
#include "sys/file.h"
#include "sys/uffd.h"

using namespace lunar;
using namespace lunar::preload;

namespace {

// -1 with errno, or a result of 0 and more.
int answer(long rc) {
  if (rc >= 0) return static_cast<int>(rc);
  errno = static_cast<int>(-rc);
  return -1;
}

bool is_ours(int fd) { return account_is(fd) || sys::uffd_device_is(fd); }

// Ours in [first, last], in order: how many.
unsigned ours_within(unsigned first, unsigned last, unsigned out[2]) {
  unsigned n = 0;
  for (const int fd : {account_number(), sys::uffd_device_number()})
    if (fd >= 0 && static_cast<unsigned>(fd) >= first && static_cast<unsigned>(fd) <= last && is_ours(fd))
      out[n++] = static_cast<unsigned>(fd);
  if (n == 2 && out[0] > out[1]) std::swap(out[0], out[1]);
  return n;
}

}  // namespace

LUNAR_EXPORT int lunar_close(int fd) __asm__("close");
LUNAR_EXPORT int lunar_close_range(unsigned first, unsigned last, int flags) __asm__("close_range");
LUNAR_EXPORT void lunar_closefrom(int first) __asm__("closefrom");
LUNAR_EXPORT int lunar_dup2(int from, int to) __asm__("dup2");
LUNAR_EXPORT int lunar_dup3(int from, int to, int flags) __asm__("dup3");

int lunar_close(int fd) {
  if (__builtin_expect(is_ours(fd), 0)) return 0;
  return g_real.close != nullptr ? g_real.close(fd) : answer(sys::close_file(fd));
}

int lunar_close_range(unsigned first, unsigned last, int flags) {
  unsigned ours[2] = {0, 0};
  const unsigned n = first > last ? 0 : ours_within(first, last, ours);
  if (n == 0) return answer(sys::close_numbers(first, last, flags));
  for (unsigned i = 0, from = first; i <= n; ++i) {  // the ranges before, between and behind ours
    const unsigned end = i < n ? ours[i] : 0;
    if (i < n ? from < end : from <= last) {
      if (const long rc = sys::close_numbers(from, i < n ? end - 1 : last, flags); rc < 0) return answer(rc);
      flags &= ~static_cast<int>(CLOSE_RANGE_UNSHARE);  // the table is its own now
    }
    from = end + 1;
  }
  return 0;
}

void lunar_closefrom(int first) {
  const int saved = errno;
  if (first < 0) first = 0;
  if (lunar_close_range(static_cast<unsigned>(first), ~0u, 0) < 0) {  // before 5.9: all that are listed
    for (int fd = first, top = static_cast<int>(sysconf(_SC_OPEN_MAX)); fd < top; ++fd) (void)lunar_close(fd);
  }
  errno = saved;
}

int lunar_dup2(int from, int to) {
  if (__builtin_expect(from != to && account_is(to), 0)) account_make_way(to);
  return g_real.dup2 != nullptr ? g_real.dup2(from, to) : from == to ? from : answer(sys::duplicate_to(from, to, 0));
}

int lunar_dup3(int from, int to, int flags) {
  if (__builtin_expect(from != to && account_is(to), 0)) account_make_way(to);
  return g_real.dup3 != nullptr ? g_real.dup3(from, to, flags) : answer(sys::duplicate_to(from, to, flags));
}
