// SPDX-License-Identifier: Apache-2.0
// The head of a store that is kept: its two superblocks. The form: store_format.h.
//
// Both lie in the first 64 KiB, so one mistake (zeros over the beginning of a device) destroys
// both. Their content can be reconstructed: each root, of which two lie at the end, has the store's
// uuid and the checksum of its superblock, and of the few geometries that a store can have at its
// place only one gives that checksum.
// Threading: any. Blocks for the device.
#pragma once
#include "base/error.h"
#include "kv/store_format.h"
#include "lun/volume/atomic_image.h"

namespace lunar::kv {

// What a read does if both superblocks are gone and a root describes them (of a store that was
// saved, so that there is something to lose), or if the device is shorter than they say (a
// truncated copy).
enum class HeadDamage : uint8_t {
  kRefuse,   // -EBADMSG
  kSalvage,  // *out is what they were
};
// The sound one of the two. -ENOENT: there is none; -EPROTONOSUPPORT: of another version; -EBADMSG;
// -errno of the device.
[[nodiscard]] int superblock_read(Device* device, HeadDamage damage, media::Superblock* out,
                                  ErrorText* why);
// Whether the copy at `at` is that superblock; else *fault says what is wrong.
[[nodiscard]] bool superblock_is_copy(Device* device, uint64_t at, const media::Superblock& super,
                                      const char** fault);

void superblock_seal(media::Superblock* super);  // its magic, version and checksum
[[nodiscard]] int superblock_write(Device* device, const media::Superblock& super);
// The same over one that counts: durable one copy after the other, so that one of both is whole at
// any time.
[[nodiscard]] int superblock_replace(Device* device, const media::Superblock& super);
// Writes the front copy of the root in slot 0 or 1 as it is behind; durable.
[[nodiscard]] int root_copy_to_front(Device* device, const media::Superblock& super, uint64_t slot);
ImageSpec root_spec(const media::Superblock& super);

}  // namespace lunar::kv
