// SPDX-License-Identifier: Apache-2.0
// A virtual LUN's blocks through its BlockTransform: vectors in, vectors out.
// A block of zeros on the device was never written (or was discarded): it stays zeros. No cipher gives 4096 zero bytes
// for anything but by a chance of 2^-32768.
// Threading: no state. May not allocate.
#pragma once
#include <string.h>
#include <sys/uio.h>

#include "lun/volume/metadata_image.h"
#include "lun/volume/virtual_lun.h"

namespace lunar {

constexpr uint64_t kCodecBlock = 4096;

inline bool whole_blocks(const iovec* iov, uint32_t count) {
  for (uint32_t i = 0; i < count; ++i) {
    if (iov[i].iov_len % kCodecBlock) return false;
  }
  return true;
}

// offset: of the first byte on the virtual LUN. Pre: whole blocks.
inline void encrypt_vector(const BlockTransform& transform, uint64_t offset, const iovec* iov, uint32_t count,
                           char* to) {
  for (uint32_t i = 0; i < count; ++i) {
    transform.encrypt(offset / kCodecBlock, iov[i].iov_base, to, iov[i].iov_len);
    to += iov[i].iov_len;
    offset += iov[i].iov_len;
  }
}

// In place, the first `bytes` of it, less what is not a whole block.
inline void decrypt_vector(const BlockTransform& transform, uint64_t offset, const iovec* iov, uint32_t count,
                           uint64_t bytes) {
  for (uint32_t i = 0; i < count && bytes >= kCodecBlock; ++i) {
    char* at = static_cast<char*>(iov[i].iov_base);
    for (uint64_t done = 0; done < iov[i].iov_len && bytes >= kCodecBlock; done += kCodecBlock, bytes -= kCodecBlock) {
      if (!bytes_are_zero(at + done, kCodecBlock))
        transform.decrypt((offset + done) / kCodecBlock, at + done, kCodecBlock);
    }
    offset += iov[i].iov_len;
  }
}

inline uint64_t vector_bytes(const iovec* iov, uint32_t count) {
  uint64_t bytes = 0;
  for (uint32_t i = 0; i < count; ++i) bytes += iov[i].iov_len;
  return bytes;
}

// Takes up to `want` bytes from (*at, *within) of a vector into `out`; *room entries at most. Moves the place on,
// returns the bytes.
inline uint64_t vector_slice(const iovec* iov, uint32_t count, uint32_t* at, uint64_t* within, uint64_t want,
                             iovec* out, uint32_t* room) {
  uint64_t got = 0;
  uint32_t used = 0;
  while (got < want && *at < count && used < *room) {
    const uint64_t have = iov[*at].iov_len - *within, part = have < want - got ? have : want - got;
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
