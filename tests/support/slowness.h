// SPDX-License-Identifier: Apache-2.0
// Time limits inside tests on machines that are slower than usual (emulated): multiplied by
// TEST_TIMEOUT_SCALE, like those of tests/support/watch.py. Only for limits: measured times are not
// scaled.
// Threading: any. May not: be used by code that ships.
#pragma once
#include <stdlib.h>

namespace tier {

inline unsigned scaled(unsigned seconds) {
  const char* scale = getenv("TEST_TIMEOUT_SCALE");
  const int times = scale ? atoi(scale) : 1;
  return seconds * static_cast<unsigned>(times < 1 ? 1 : times);
}

}  // namespace tier
