// SPDX-License-Identifier: Apache-2.0
// A seccomp filter, for the calling thread and those that it makes.
#pragma once
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>

#include "preload_test.h"

template <unsigned short kCount>
void install_filter(sock_filter (&code)[kCount]) {
  const sock_fprog program{kCount, code};
  REQUIRE(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
          prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
}
