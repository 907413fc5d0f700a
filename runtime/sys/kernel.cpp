// SPDX-License-Identifier: Apache-2.0
// See kernel.h. Threading: stateless; any thread. Allocates nothing.
#include "sys/kernel.h"

#include <errno.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "base/format.h"
#include "base/units.h"

#ifndef PR_GET_MEMORY_MERGE  // in no header of Debian 12
#define PR_GET_MEMORY_MERGE 68
#endif

namespace lunar::sys {

// Makes the calls with arguments that the kernel rejects. A filter answers before the kernel checks
// them.
int kernel_check(ErrorText* why) {
  struct Call {
    const char* name;
    long number, first, second;
  };
  constexpr long kBad = -1;
  static constexpr Call kCalls[] = {
      {"vmsplice", SYS_vmsplice, kBad, 0}, {"memfd_create", SYS_memfd_create, 0, 0},
      {"eventfd2", SYS_eventfd2, 0, kBad}, {"pipe2", SYS_pipe2, 0, kBad},
      {"madvise", SYS_madvise, 0, 0},      {"mprotect", SYS_mprotect, 0, 0}};
  char refused[96];
  size_t used = 0;
  for (const Call& call : kCalls) {
    if (syscall(call.number, call.first, call.second, 0L, 0L) >= 0 ||
        (errno != EPERM && errno != EACCES && errno != ENOSYS))
      continue;
    used +=
        format_to(refused + used, sizeof refused - used, "%s%s", used == 0 ? "" : ", ", call.name);
  }
  if (used == 0) return 0;
  return why->set(
      -EPERM, "kernel: the pager needs system calls that are refused: %s (a system call filter?)",
      refused);
}

bool memory_merging() { return syscall(SYS_prctl, PR_GET_MEMORY_MERGE, 0UL, 0UL, 0UL, 0UL) == 1; }

static bool is_of_6_18() {
  utsname name;
  uint64_t major = 0, minor = 0;
  if (uname(&name) != 0) return false;
  const char* at = parse_digits(name.release, &major);
  if (at != nullptr && *at == '.') (void)parse_digits(at + 1, &minor);
  return major > 6 || (major == 6 && minor >= 18);
}

bool moves_flush_once() {
  static const bool answer = is_of_6_18();
  return answer;
}

}  // namespace lunar::sys
