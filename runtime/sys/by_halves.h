// SPDX-License-Identifier: Apache-2.0
// A system call for a range that may cross several of the kernel's maps. Threading: any.
#pragma once
#include <cstddef>

#include "base/units.h"
#include "sys/fatal.h"
#include "sys/mem.h"

namespace lunar::sys {

// Calls step(at, bytes) for a range of whole pages. Where that returns `too_mixed`, as the range
// crosses several of the kernel's maps, calls it for each half in turn, at last for single pages.
// Returns 0, or the first other error (for a single page, any).
template <class Step>
int by_halves(char* at, size_t bytes, int too_mixed, const Step& step) {
  LUNAR_DCHECK(bytes != 0 && round_down(bytes, page_bytes()) == bytes);
  const int rc = step(at, bytes);
  if (rc != too_mixed || rc == 0 || bytes == page_bytes()) return rc;
  const size_t half = round_up(bytes / 2, page_bytes());
  const int first = by_halves(at, half, too_mixed, step);
  return first < 0 ? first : by_halves(at + half, bytes - half, too_mixed, step);
}

}  // namespace lunar::sys
