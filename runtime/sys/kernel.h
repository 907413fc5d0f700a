// SPDX-License-Identifier: Apache-2.0
// Facts about the running kernel, by trial and not by its version: distributions backport changes.
#pragma once
#include "base/error.h"

namespace lunar::sys {

// Whether this process may make the system calls that the pager needs, besides userfaultfd
// (sys/uffd.h): a filter may refuse them. 0, or -EPERM with *why, one line that names them. Six
// system calls, none of which changes anything.
[[nodiscard]] int kernel_check(ErrorText* why);

// Whether this process has asked the kernel to merge equal pages (KSM: prctl PR_SET_MEMORY_MERGE,
// inherited by fork and exec).
bool memory_merging();

// Whether UFFDIO_MOVE of many pages flushes TLBs once, as from Linux 6.18 on, and not once a page.
// Only time depends on it, so the version may tell.
bool moves_flush_once();

}  // namespace lunar::sys
