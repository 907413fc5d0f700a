// SPDX-License-Identifier: Apache-2.0
// Flags and advice of mmap, mremap and madvise that older headers lack. Kernels that do not know
// one answer EINVAL.
#pragma once
#include <sys/mman.h>

#ifndef MAP_FIXED_NOREPLACE  // 4.17
#define MAP_FIXED_NOREPLACE 0x100000
#endif
#ifndef MREMAP_DONTUNMAP  // 5.7
#define MREMAP_DONTUNMAP 4
#endif
#ifndef MADV_COLD  // 5.4
#define MADV_COLD 20
#endif
#ifndef MADV_POPULATE_READ  // 5.14
#define MADV_POPULATE_READ 22
#define MADV_POPULATE_WRITE 23
#endif
#ifndef MADV_DONTNEED_LOCKED  // 5.18
#define MADV_DONTNEED_LOCKED 24
#endif
#ifndef MADV_COLLAPSE  // 6.1
#define MADV_COLLAPSE 25
#endif
#ifndef MADV_GUARD_INSTALL  // 6.13
#define MADV_GUARD_INSTALL 102
#define MADV_GUARD_REMOVE 103
#endif
