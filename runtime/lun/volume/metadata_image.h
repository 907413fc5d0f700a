// SPDX-License-Identifier: Apache-2.0
// What is on the device, validated in memory: geometry, superblock and images of a physical LUN (physical_format.h). No
// I/O here, so that a fuzzer reaches every line.
//
// Rule: no value read from a device serves as a length, offset or index before it was checked here.
// Threading: no state; any thread. Does not allocate.
#pragma once
#include <cstddef>
#include <cstdint>

#include "lun/volume/atomic_image.h"
#include "lun/volume/physical_format.h"

namespace lunar {

constexpr unsigned kExtentsMax = 65536;
constexpr unsigned kEntriesMax = 1024;

// Which superblock images belong to.
struct LunIdentity {
  uint8_t uuid[16] = {};
  uint64_t checksum = 0;
  LunIdentity() = default;
  explicit LunIdentity(const media::Superblock& super);
};

struct Geometry {
  uint64_t device_bytes = 0;
  uint64_t extent_bytes = 0, extent_count = 0;
  uint64_t image_bytes = 0;
  uint64_t front_offset = 0, data_offset = 0, back_offset = 0;
  uint32_t entry_count = 0;
  uint64_t backup_offset() const { return device_bytes - sizeof(media::Superblock); }
  uint64_t slot_offset(unsigned slot) const {  // 0, 1: front A, B; 2, 3: back A, B
    return (slot < 2 ? front_offset : back_offset) + (slot % 2) * image_bytes;
  }
};

// Of a device before its format. 0; -ENOSPC when it is too small.
[[nodiscard]] int geometry_for(uint64_t device_bytes, Geometry* out);

void superblock_make(const Geometry& geometry, const uint8_t uuid[16], uint64_t created_s, media::Superblock* out);

enum class SuperState : uint8_t {
  kBlank,    // zeros
  kForeign,  // no magic of ours
  kValid,
  kVersion,  // ours, of another version
  kDamaged,  // ours by its magic, but checksum or content are wrong
  kEnded,    // the mark of a format that was being ended: as good as blank
};
SuperState superblock_look(const media::Superblock& super);
// Turns a valid superblock into that mark. Only its first bytes change, so a torn write leaves one or the other.
void superblock_end(media::Superblock* super);
// Geometry out of a valid superblock. 0; -EBADMSG when it makes no sense; -ENOSPC when the device is smaller than it
// was (`out` is filled then).
[[nodiscard]] int superblock_geometry(const media::Superblock& super, uint64_t device_bytes, Geometry* out);

// An image in memory: image_bytes, aligned to 8.
struct MetadataImage {
  char* base = nullptr;
  const Geometry* geometry = nullptr;
  media::ImageHeader& header() const { return *reinterpret_cast<media::ImageHeader*>(base); }
  media::LunEntry* entries() const { return reinterpret_cast<media::LunEntry*>(base + sizeof(media::ImageHeader)); }
  media::ExtentOwner* extents() const {
    return reinterpret_cast<media::ExtentOwner*>(entries() + geometry->entry_count);
  }
  uint64_t body_bytes() const {
    return geometry->entry_count * sizeof(media::LunEntry) + geometry->extent_count * sizeof(media::ExtentOwner);
  }
};

// Room for image_sound() to count in; too large for a stack.
struct SoundScratch {
  uint64_t seen[kExtentsMax / 64];
  uint32_t first[kEntriesMax];
  uint16_t names[2 * kEntriesMax];
};

// What images of such a LUN are like.
ImageSpec image_spec(const Geometry& geometry, const LunIdentity& identity);
inline void image_seal(const MetadataImage& image, const LunIdentity& identity) {
  image_seal(image_spec(*image.geometry, identity), image.base);
}

// What an intact image says of extents, also where that is impossible.
struct ImageCensus {
  uint64_t free = 0;
  uint64_t used = 0;            // at their place of a LUN
  uint64_t lost = 0;            // given to a LUN that does not exist, or beyond its end: neither free nor used
  uint64_t twice = 0;           // at a place of a LUN that another one has already
  uint64_t missing = 0;         // places of LUNs that no extent is at
  const char* fault = nullptr;  // the first that makes it unsound
};
void image_census(const MetadataImage& image, SoundScratch* scratch, ImageCensus* out);
// Whether what it says is possible: every owner in range and used, the positions of each LUN 0..n-1 once each, names
// legal and unique, sizes within extents; without unknown features reserved bytes zero and flags known. `what` gets the
// first fault.
bool image_sound(const MetadataImage& image, SoundScratch* scratch, const char** what);

// 1 to 31 of [A-Za-z0-9._-], not starting with '-' or '.'.
bool lun_name_legal(const char* name);

}  // namespace lunar
