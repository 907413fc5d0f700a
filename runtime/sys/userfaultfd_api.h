// SPDX-License-Identifier: Apache-2.0
// The kernel's userfaultfd API, with the definitions that Debian 12's headers (6.1) lack, copied
// from the kernel's uapi. Threading: no state.
#pragma once
#include <linux/userfaultfd.h>

#ifndef USERFAULTFD_IOC_NEW
#define USERFAULTFD_IOC_NEW _IO(0xAA, 0x00)
#endif
#ifndef UFFD_FEATURE_POISON
#define UFFD_FEATURE_POISON (1 << 14)
#endif
#ifndef UFFD_FEATURE_MOVE
#define UFFD_FEATURE_MOVE (1 << 16)
#endif
