// SPDX-License-Identifier: Apache-2.0
// Runs of bytes.
// Threading: pure functions. No memory but the stack.
#pragma once
#include <cstddef>
#include <cstring>

namespace lunar {

inline bool bytes_are_zero(const void* bytes, size_t count) {
  const char* at = static_cast<const char*>(bytes);
  return count == 0 || (at[0] == 0 && memcmp(at, at + 1, count - 1) == 0);
}

}  // namespace lunar
