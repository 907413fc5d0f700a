// SPDX-License-Identifier: Apache-2.0
// Facts about the running kernel, found by trial, because distributions backport changes and the
// version does not tell.
#pragma once
#include "base/error.h"

namespace lunar::sys {

// Whether this process may make the system calls that the pager needs, besides userfaultfd
// (sys/uffd.h): a filter may refuse them. 0, or -EPERM with *why, one line that names the refused
// calls. Makes six system calls, which change nothing.
[[nodiscard]] int kernel_check(ErrorText* why);

// Whether this process has asked the kernel to merge equal pages (KSM: prctl PR_SET_MEMORY_MERGE,
// inherited by fork and exec).
bool memory_merging();

// Whether UFFDIO_MOVE of many pages flushes TLBs once (from Linux 6.18 on) instead of once a page.
// Only speed depends on this, so the kernel's version decides. Only the first call makes a system
// call.
bool moves_flush_once();

}  // namespace lunar::sys
