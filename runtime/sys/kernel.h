// SPDX-License-Identifier: Apache-2.0
// Facts about the running kernel, by trial and not by its version: distributions backport changes.
#pragma once
#include "base/error.h"

namespace lunar::sys {

// Whether pages can be taken out of a heap by reference (pager/evictor.h, gather-evict): pages can be made exclusive on
// request (MADV_POPULATE_WRITE, 5.14), and one that a pipe holds is still written in place after it was read-only for a
// while (PG_anon_exclusive, 5.19). 0, or -errno with *why in one line. About ten system calls, on a page and a pipe of
// its own.
[[nodiscard]] int kernel_check(ErrorText* why);

// Whether this process has asked the kernel to merge equal pages (KSM: prctl PR_SET_MEMORY_MERGE, inherited by fork and
// exec).
bool memory_merging();

}  // namespace lunar::sys
