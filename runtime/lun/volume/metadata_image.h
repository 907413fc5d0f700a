// SPDX-License-Identifier: Apache-2.0
// Parses and validates, in memory, the metadata of a physical LUN (physical_format.h): geometry,
// superblock and images. Does no I/O, so that a fuzzer reaches every line.
//
// Rule: a value read from a device is not used as a length, offset or index before it was checked
// here. Threading: no state; any thread. Does not allocate.
#pragma once
#include <cstddef>
#include <cstdint>

#include "lun/volume/atomic_image.h"
#include "lun/volume/physical_format.h"

namespace lunar {

constexpr unsigned kExtentsMax = 65536;
constexpr unsigned kEntriesMax = 1024;

// Identifies the superblock that images belong to.
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

// The geometry for formatting a device. 0; -ENOSPC: it is too small.
[[nodiscard]] int geometry_for(uint64_t device_bytes, Geometry* out);

void superblock_make(const Geometry& geometry, const uint8_t uuid[16], uint64_t created_s,
                     media::Superblock* out);

enum class SuperState : uint8_t {
  kBlank,    // zeros
  kForeign,  // no magic of Lunar's
  kValid,
  kVersion,  // Lunar's, of another version
  kDamaged,  // Lunar's magic, but checksum or content are wrong
  kEnded,    // the mark of a format that was being removed: counts as blank
};
SuperState superblock_look(const media::Superblock& super);
// Turns a valid superblock into the mark of kEnded. Only its first bytes change, so a torn write
// leaves one or the other.
void superblock_end(media::Superblock* super);
// The geometry in a valid superblock. 0; -EBADMSG: it is impossible; -ENOSPC: the device has become
// smaller (`out` is filled in nevertheless).
[[nodiscard]] int superblock_geometry(const media::Superblock& super, uint64_t device_bytes,
                                      Geometry* out);

// An image in memory: image_bytes, aligned to 8.
struct MetadataImage {
  char* base = nullptr;
  const Geometry* geometry = nullptr;
  media::ImageHeader& header() const { return *reinterpret_cast<media::ImageHeader*>(base); }
  media::LunEntry* entries() const {
    return reinterpret_cast<media::LunEntry*>(base + sizeof(media::ImageHeader));
  }
  media::ExtentOwner* extents() const {
    return reinterpret_cast<media::ExtentOwner*>(entries() + geometry->entry_count);
  }
  uint64_t body_bytes() const {
    return geometry->entry_count * sizeof(media::LunEntry) +
           geometry->extent_count * sizeof(media::ExtentOwner);
  }
};

// Memory in which image_sound() counts; too large for a stack.
struct SoundScratch {
  uint64_t seen[kExtentsMax / 64];
  uint32_t first[kEntriesMax];
  uint16_t names[2 * kEntriesMax];
};

// The specification of the images of such a LUN.
ImageSpec image_spec(const Geometry& geometry, const LunIdentity& identity);
inline void image_seal(const MetadataImage& image, const LunIdentity& identity) {
  image_seal(image_spec(*image.geometry, identity), image.base);
}

// The extents by an intact image, even if its content is impossible.
struct ImageCensus {
  uint64_t free = 0;
  uint64_t used = 0;  // at their position in a LUN
  // Assigned to a LUN that does not exist, or beyond its end: neither free nor used.
  uint64_t lost = 0;
  uint64_t twice = 0;           // at a position in a LUN that another extent has already
  uint64_t missing = 0;         // positions in LUNs without an extent
  const char* fault = nullptr;  // the first fault, if any
};
void image_census(const MetadataImage& image, SoundScratch* scratch, ImageCensus* out);
// Whether the content is possible: every owner is in range and used; each LUN has positions 0..n-1
// once each; names are legal and unique; sizes are within the extents; reserved bytes are zero and
// flags are known. `what` receives the first fault.
bool image_sound(const MetadataImage& image, SoundScratch* scratch, const char** what);

// 1 to 31 of [A-Za-z0-9._-], not starting with '-' or '.'.
bool lun_name_legal(const char* name);

}  // namespace lunar
