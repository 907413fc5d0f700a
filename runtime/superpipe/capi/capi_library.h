// SPDX-License-Identifier: Apache-2.0
// IBM's block library (libcflsh_block), loaded on demand: the few entry points of its ABI that
// capi: uses. Threading: one thread at a time loads; the functions as IBM's library allows: any
// thread.
#pragma once
#include <sys/types.h>

#include <cstddef>
#include <cstdint>

#include "base/error.h"

namespace lunar {

struct CapiAttributes {  // its chunk_attrs_t
  uint64_t flags1, flags2;
  uint32_t block_size, num_paths;
  uint64_t max_transfer_size;
  uint64_t data[64];
};
static_assert(sizeof(CapiAttributes) == 544);

struct CapiLibrary {
  static constexpr int kNull = -1;       // NULL_CHUNK_ID
  static constexpr int kNextTag = 1;     // CBLK_ARESULT_NEXT_TAG
  static constexpr uint64_t kUnmap = 1;  // CFLSH_ATTR_UNMAP, in flags1

  int (*init)(void*, uint64_t) = nullptr;
  int (*open)(const char*, int max_requests, int mode, uint64_t, int flags) = nullptr;
  int (*close)(int chunk, int flags) = nullptr;
  int (*get_lun_size)(int chunk, size_t* blocks, int flags) = nullptr;
  int (*get_attrs)(int chunk, CapiAttributes*, int flags) = nullptr;
  int (*read)(int chunk, void*, off_t lba, size_t blocks, int flags) = nullptr;
  int (*write)(int chunk, void*, off_t lba, size_t blocks, int flags) = nullptr;
  int (*unmap)(int chunk, void*, off_t lba, size_t blocks, int flags) = nullptr;  // may be absent
  int (*aread)(int chunk, void*, off_t lba, size_t blocks, int* tag, void* status,
               int flags) = nullptr;
  int (*awrite)(int chunk, void*, off_t lba, size_t blocks, int* tag, void* status,
                int flags) = nullptr;
  int (*aresult)(int chunk, int* tag, uint64_t* status, int flags) = nullptr;

  // path: an absolute path, or "" for the places where IBM's packages put the library. Lunar's own
  // library (which exports lunar_cblk_marker) is refused. Never unloaded. 0; -ENODEV: it is not
  // installed; -errno; with *why.
  [[nodiscard]] int load(const char* uri, const char* path, ErrorText* why);
};

// The places that are searched, for messages; null-terminated.
extern const char* const kCapiLibraryPlaces[];

}  // namespace lunar
