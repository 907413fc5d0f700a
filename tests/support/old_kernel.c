/* SPDX-License-Identifier: Apache-2.0 */
/* LD_PRELOAD: userfaultfd as on a kernel before 6.8, which refuses the features that it does not
   know. */
#include <errno.h>
#include <linux/ioctl.h>
#include <linux/userfaultfd.h>
#include <stdarg.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { kPoison = 1 << 14, kMove = 1 << 16 }; /* UFFD_FEATURE_POISON, UFFD_FEATURE_MOVE */

int ioctl(int fd, unsigned long request, ...) {
  va_list list;
  va_start(list, request);
  void* argument = va_arg(list, void*);
  va_end(list);
  if (request == UFFDIO_API &&
      (((struct uffdio_api*)argument)->features & (kPoison | kMove)) != 0) {
    errno = EINVAL;
    return -1;
  }
  return (int)syscall(SYS_ioctl, fd, request, argument);
}
