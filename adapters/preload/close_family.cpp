// SPDX-License-Identifier: Apache-2.0
// close's family and dup2's, for one descriptor: that of the tree's account, which the programs that this one will start need, and which the
// program does not know. Programs that close all they do not know (Python's subprocess, daemons, GLib) pass over it; who wants its number
// for a file of its own gets it, and it moves away. Whatever else is asked for goes through unchanged.
// Threading: any thread, signal handlers and children of vfork included.
#include <errno.h>
#include <linux/close_range.h>
#include <unistd.h>

#include "pager/account_find.h"
#include "preload.h"
#include "sys/file.h"

using namespace lunar;
using namespace lunar::preload;

namespace {

// -1 with errno, or a result of 0 and more.
int answer(long rc) {
  if (rc >= 0) return static_cast<int>(rc);
  errno = static_cast<int>(-rc);
  return -1;
}

int close_some(unsigned first, unsigned last, int flags) { return first > last ? 0 : answer(sys::close_numbers(first, last, flags)); }

}  // namespace

LUNAR_EXPORT int lunar_close(int fd) __asm__("close");
LUNAR_EXPORT int lunar_close_range(unsigned first, unsigned last, int flags) __asm__("close_range");
LUNAR_EXPORT void lunar_closefrom(int first) __asm__("closefrom");
LUNAR_EXPORT int lunar_dup2(int from, int to) __asm__("dup2");
LUNAR_EXPORT int lunar_dup3(int from, int to, int flags) __asm__("dup3");

int lunar_close(int fd) {
  if (__builtin_expect(account_is(fd), 0)) return 0;
  return g_real.close != nullptr ? g_real.close(fd) : answer(sys::close_file(fd));
}

int lunar_close_range(unsigned first, unsigned last, int flags) {
  const int ours = account_number();
  if (ours < 0 || first > last || static_cast<unsigned>(ours) < first || static_cast<unsigned>(ours) > last || !account_is(ours))
    return answer(sys::close_numbers(first, last, flags));
  const auto number = static_cast<unsigned>(ours);
  if (number > first && close_some(first, number - 1, flags) < 0) return -1;
  return close_some(number + 1, last, flags & ~static_cast<int>(CLOSE_RANGE_UNSHARE));
}

void lunar_closefrom(int first) {
  const int saved = errno;
  if (first < 0) first = 0;
  if (lunar_close_range(static_cast<unsigned>(first), ~0u, 0) < 0) {   // before 5.9: all that are listed
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
