// SPDX-License-Identifier: Apache-2.0
// Distinguishes content that may be overwritten (a scratch LUN of Lunar's, or a blank device) from
// data.
//
//   offset 0          4096                    64 KiB              1 MiB
//   │ ScratchHeader   │ zeros                 │ not examined      │ data: device offset 0 of a LUN
//   └─────────────────┴───────────────────────┴───────────────────┴───────────────────────────────
//
// Regular files and block devices given by path start with this header; files that Lunar creates in
// a directory have none.
// Threading: open-time code, any thread, blocking. Allocates through map_private and (in libblkid)
// under a HostGuard.
#pragma once
#include <sys/stat.h>

#include <cstddef>
#include <cstdint>

#include "base/error.h"

namespace lunar {

constexpr uint64_t kScratchDataOffset = 1024 * 1024;
constexpr size_t kScratchProbeBytes = 64 * 1024;  // must be zeros, except for Lunar's header

enum ScratchFlags : uint64_t {
  // The file was empty when Lunar first used it, so the next open truncates it again.
  kScratchGrowable = 1u << 0,
};

// On-media layout, native byte order (a scratch LUN never leaves its host).
struct ScratchHeader {
  char magic[16];         // "LunarScratchLUN"
  uint32_t version;       // 1
  uint32_t header_bytes;  // 4096
  uint64_t data_offset;   // kScratchDataOffset
  uint64_t flags;         // ScratchFlags
  uint8_t reserved[4096 - 48];
  uint64_t checksum;  // XXH64 of the bytes before it
};
static_assert(sizeof(ScratchHeader) == 4096);
static_assert(offsetof(ScratchHeader, version) == 16 && offsetof(ScratchHeader, data_offset) == 24);
static_assert(offsetof(ScratchHeader, flags) == 32 && offsetof(ScratchHeader, checksum) == 4088);

enum class Contents : uint8_t { kEmpty, kOurs, kForeign };

// Reads the head of `fd` (opened with O_DIRECT or not). 0 or -errno; *flags only for kOurs.
[[nodiscard]] int signature_read(int fd, Contents* contents, uint64_t* flags);
// Writes the header. 0 or -errno.
[[nodiscard]] int signature_write(int fd, uint64_t flags);
// The same for devices that are not read by descriptor: signature_of examines a head that was read
// (kScratchProbeBytes, or the whole device if that is smaller); signature_make fills in the header
// to be written at offset 0.
Contents signature_of(const void* head, size_t bytes, uint64_t* flags);
void signature_make(ScratchHeader* header, uint64_t flags);

// Loads libblkid in advance, for callers that must not wait for the dynamic linker when they open a
// device.
void signature_prepare();
// Asks libblkid for the content of a device ("ext4", "gpt"). 1: `what` is filled in; 0: it finds
// nothing; -errno: it could not be asked (-ENOSYS: it is not installed). only_head: examine only
// the first MiB (the rest is Lunar's).
[[nodiscard]] int block_signature(const char* path, bool only_head, char* what, size_t size);

}  // namespace lunar
