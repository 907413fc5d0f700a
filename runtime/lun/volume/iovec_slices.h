// SPDX-License-Identifier: Apache-2.0
// The bytes of an iovec array, and parts of it.
// Threading: no state. May not allocate.
#pragma once
#include <stdint.h>
#include <sys/uio.h>

#include <algorithm>

namespace lunar {

inline uint64_t vector_bytes(const iovec* iov, uint32_t count) {
  uint64_t bytes = 0;
  for (uint32_t i = 0; i < count; ++i) bytes += iov[i].iov_len;
  return bytes;
}

// Takes up to `want` bytes from position (*at, *within) of a vector into `out`, at most *room
// entries. Advances the position; returns the number of bytes.
inline uint64_t vector_slice(const iovec* iov, uint32_t count, uint32_t* at, uint64_t* within,
                             uint64_t want, iovec* out, uint32_t* room) {
  uint64_t got = 0;
  uint32_t used = 0;
  while (got < want && *at < count && used < *room) {
    const uint64_t have = iov[*at].iov_len - *within, part = std::min(have, want - got);
    if (part) out[used++] = {static_cast<char*>(iov[*at].iov_base) + *within, part};
    got += part;
    *within += part;
    if (*within == iov[*at].iov_len) {
      ++*at;
      *within = 0;
    }
  }
  *room = used;
  return got;
}

}  // namespace lunar
