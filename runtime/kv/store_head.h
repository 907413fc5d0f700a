// SPDX-License-Identifier: Apache-2.0
// The head of a persistent store: its two superblocks. store_format.h has the format.
//
// Both lie in the first 64 KiB, so one mistake (zeros over the beginning of a device) destroys
// both. Their content can be reconstructed. Each root, of which two lie at the end, has the store's
// uuid and the checksum of its superblock. Of the few geometries that a store can have at its
// place, only one gives that checksum.
// Threading: any. Blocks for the device.
#pragma once
#include "base/error.h"
#include "kv/store_format.h"
#include "lun/volume/atomic_image.h"

namespace lunar::kv {

// The behaviour of a read if both superblocks are gone and a root of a saved store describes them,
// or if the device is shorter than they say (a truncated copy).
enum class HeadDamage : uint8_t {
  kRefuse,   // -EBADMSG
  kSalvage,  // *out gets their former content
};
// Reads a sound superblock. -ENOENT: the place holds no store; -EPROTONOSUPPORT: another version;
// -EBADMSG; -errno of the device.
[[nodiscard]] int superblock_read(Device* device, HeadDamage damage, media::Superblock* out,
                                  ErrorText* why);
// Whether the copy at `at` is that superblock; else *fault says what is wrong.
[[nodiscard]] bool superblock_is_copy(Device* device, uint64_t at, const media::Superblock& super,
                                      const char** fault);

void superblock_seal(media::Superblock* super);  // its magic, version and checksum
[[nodiscard]] int superblock_write(Device* device, const media::Superblock& super);
// Replaces the superblock of a store: makes one copy durable, then the other, so that one is whole
// at any time.
[[nodiscard]] int superblock_replace(Device* device, const media::Superblock& super);
// Copies the root of slot 0 or 1 from the back to the front, durably.
[[nodiscard]] int root_copy_to_front(Device* device, const media::Superblock& super, uint64_t slot);
ImageSpec root_spec(const media::Superblock& super);

}  // namespace lunar::kv
