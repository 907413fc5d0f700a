// SPDX-License-Identifier: Apache-2.0
// Validating the metadata on a device: see metadata_image.h.
// Threading: no state. May not: trust a number it has not compared with the device's size,
// allocate, do I/O.
#include "lun/volume/metadata_image.h"

#include <errno.h>
#include <string.h>

#include <bit>

#include "base/bytes.h"
#include "base/units.h"
#include "base/xxh3.h"
#include "lun/volume/physical_lun.h"

namespace lunar {
namespace {

using namespace media;

constexpr uint64_t kSmallDevice = 64 * kMiB, kSmallExtent = 64 * kKiB;
constexpr uint64_t kDeviceBytesMax = uint64_t{1} << 60;
constexpr uint32_t kEntriesMin = 64;

uint64_t image_bytes_for(uint64_t entries, uint64_t extents) {
  return round_up(sizeof(ImageHeader) + entries * sizeof(LunEntry) + extents * sizeof(ExtentOwner),
                  kBlockBytes);
}

uint64_t data_align(uint64_t extent_bytes) { return extent_bytes < kMiB ? kSmallExtent : kMiB; }

uint64_t checksum_of(const Superblock& super) {
  return XXH3_64bits(&super, offsetof(Superblock, checksum));
}

bool name_sound(const char (&name)[kLunNameBytes], bool scratch) {
  const size_t length = strnlen(name, sizeof name);
  if (length == sizeof name || !bytes_are_zero(name + length, sizeof name - length)) return false;
  return scratch ? length == 0 : lun_name_legal(name);
}

uint64_t name_hash(const char* name) { return XXH3_64bits(name, kLunNameBytes); }

const char* entry_fault(const LunEntry& entry, const Geometry& geometry) {
  if (!(entry.flags & kEntryUsed)) {
    return bytes_are_zero(&entry, sizeof entry) ? nullptr : "a free entry that is not empty";
  }
  if (entry.flags & ~uint32_t{kEntryUsed | kEntryScratch}) return "an entry with unknown flags";
  if (!name_sound(entry.name, (entry.flags & kEntryScratch) != 0))
    return "an entry with an impossible name";
  if (!bytes_are_zero(entry.reserved, sizeof entry.reserved))
    return "an entry with unknown content";
  if (entry.extents > geometry.extent_count) return "an entry with more extents than there are";
  if (entry.size_bytes > entry.extents * geometry.extent_bytes)
    return "an entry larger than its extents";
  return entry.size_bytes % kBlockBytes ? "an entry whose size is not whole blocks" : nullptr;
}

}  // namespace

bool lun_name_legal(const char* name) {
  if (*name == '\0' || *name == '-' || *name == '.') return false;
  size_t length = 0;
  for (; name[length]; ++length) {
    const char c = name[length];
    const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
    if (length + 1 >= kLunNameBytes || (!letter && c != '.' && c != '_' && c != '-')) return false;
  }
  return true;
}

int geometry_for(uint64_t device_bytes, Geometry* out) {
  if (device_bytes < PhysicalLun::kBytesMin) return -ENOSPC;
  if (device_bytes > kDeviceBytesMax) device_bytes = kDeviceBytesMax;
  Geometry g;
  g.device_bytes = round_down(device_bytes, kBlockBytes);
  g.extent_bytes = device_bytes < kSmallDevice ? kSmallExtent : kMiB;
  while (g.device_bytes / g.extent_bytes > kExtentsMax) g.extent_bytes *= 2;
  g.extent_count = g.device_bytes / g.extent_bytes;
  g.entry_count = static_cast<uint32_t>(g.extent_count < kEntriesMin   ? kEntriesMin
                                        : g.extent_count < kEntriesMax ? g.extent_count
                                                                       : kEntriesMax);
  g.image_bytes = image_bytes_for(g.entry_count, g.extent_count);
  g.front_offset = sizeof(Superblock);
  g.data_offset = round_up(g.front_offset + 2 * g.image_bytes, data_align(g.extent_bytes));
  g.back_offset = g.device_bytes - sizeof(Superblock) - 2 * g.image_bytes;
  // The image keeps room for the few extents that did not fit.
  g.extent_count = (g.back_offset - g.data_offset) / g.extent_bytes;
  g.image_bytes = image_bytes_for(g.entry_count, g.extent_count);
  g.back_offset = g.device_bytes - sizeof(Superblock) - 2 * g.image_bytes;
  *out = g;
  return 0;
}

void superblock_make(const Geometry& geometry, const uint8_t uuid[16], uint64_t created_s,
                     Superblock* out) {
  memset(out, 0, sizeof *out);
  memcpy(out->magic, kSuperMagic, sizeof out->magic);
  out->version = kVersion;
  out->header_bytes = sizeof(Superblock);
  memcpy(out->uuid, uuid, sizeof out->uuid);
  out->device_bytes = geometry.device_bytes;
  out->extent_bytes = geometry.extent_bytes;
  out->extent_count = geometry.extent_count;
  out->image_bytes = geometry.image_bytes;
  out->front_offset = geometry.front_offset;
  out->data_offset = geometry.data_offset;
  out->back_offset = geometry.back_offset;
  out->created_s = created_s;
  out->entry_count = geometry.entry_count;
  out->checksum = checksum_of(*out);
}

SuperState superblock_look(const Superblock& super) {
  if (memcmp(super.magic, kEndedMagic, sizeof super.magic) == 0) {
    Superblock before = super;
    memcpy(before.magic, kSuperMagic, sizeof before.magic);
    return before.checksum == checksum_of(before) ? SuperState::kEnded : SuperState::kForeign;
  }
  if (memcmp(super.magic, kSuperMagic, sizeof super.magic) != 0)
    return bytes_are_zero(&super, sizeof super) ? SuperState::kBlank : SuperState::kForeign;
  if (super.checksum != checksum_of(super)) return SuperState::kDamaged;
  if (super.version != kVersion) return SuperState::kVersion;
  const bool sound = super.header_bytes == sizeof super && super.reserved0 == 0 &&
                     bytes_are_zero(super.reserved, sizeof super.reserved);
  return sound ? SuperState::kValid : SuperState::kDamaged;
}

void superblock_end(Superblock* super) { memcpy(super->magic, kEndedMagic, sizeof super->magic); }

int superblock_geometry(const Superblock& super, uint64_t device_bytes, Geometry* out) {
  Geometry g;
  g.device_bytes = super.device_bytes;
  g.extent_bytes = super.extent_bytes;
  g.extent_count = super.extent_count;
  g.image_bytes = super.image_bytes;
  g.front_offset = super.front_offset;
  g.data_offset = super.data_offset;
  g.back_offset = super.back_offset;
  g.entry_count = super.entry_count;
  // Sizes are checked first, each against a checked one, so that no sum below can overflow.
  const bool sizes =
      g.device_bytes >= PhysicalLun::kBytesMin && g.device_bytes <= kDeviceBytesMax &&
      g.device_bytes % kBlockBytes == 0 && std::has_single_bit(g.extent_bytes) &&
      g.extent_bytes >= kSmallExtent && g.extent_bytes <= g.device_bytes && g.extent_count >= 1 &&
      g.extent_count <= kExtentsMax && g.extent_count <= g.device_bytes / g.extent_bytes &&
      g.entry_count >= 1 && g.entry_count <= kEntriesMax;
  if (!sizes || g.image_bytes != image_bytes_for(g.entry_count, g.extent_count)) return -EBADMSG;
  const uint64_t tail = 2 * g.image_bytes + sizeof(Superblock);
  if (tail > g.device_bytes) return -EBADMSG;
  const bool places =
      g.front_offset == sizeof(Superblock) && g.data_offset >= g.front_offset + 2 * g.image_bytes &&
      g.data_offset <= g.device_bytes && g.data_offset % data_align(g.extent_bytes) == 0 &&
      g.extent_count * g.extent_bytes <= g.device_bytes - g.data_offset &&
      g.data_offset + g.extent_count * g.extent_bytes <= g.back_offset &&
      g.back_offset == g.device_bytes - tail;
  if (!places) return -EBADMSG;
  *out = g;
  return device_bytes < g.device_bytes ? -ENOSPC : 0;
}

LunIdentity::LunIdentity(const Superblock& super) : checksum(super.checksum) {
  memcpy(uuid, super.uuid, sizeof uuid);
}

ImageSpec image_spec(const Geometry& geometry, const LunIdentity& identity) {
  ImageSpec spec;
  memcpy(spec.magic, kImageMagic, sizeof spec.magic);
  spec.version = kVersion;
  memcpy(spec.uuid, identity.uuid, sizeof spec.uuid);
  spec.super_checksum = identity.checksum;
  spec.body_bytes = MetadataImage{nullptr, &geometry}.body_bytes();
  spec.slot_bytes = geometry.image_bytes;
  return spec;
}

void image_census(const MetadataImage& image, SoundScratch* scratch, ImageCensus* out) {
  const Geometry& geometry = *image.geometry;
  const LunEntry* entries = image.entries();
  const ExtentOwner* extents = image.extents();
  *out = {};
  const auto fault = [out](const char* text) {
    if (!out->fault) out->fault = text;
  };
  memset(scratch->names, 0, sizeof scratch->names);
  uint64_t owned = 0;
  for (uint32_t i = 0; i < geometry.entry_count; ++i) {
    const LunEntry& entry = entries[i];
    scratch->first[i] = UINT32_MAX;  // its positions do not count
    if (const char* text = entry_fault(entry, geometry)) {
      fault(text);
      continue;
    }
    if (entry.extents > geometry.extent_count - owned) {
      fault("more extents owned than there are");
      continue;
    }
    if (!(entry.flags & kEntryUsed)) continue;
    scratch->first[i] = static_cast<uint32_t>(owned);
    owned += entry.extents;
    if (!entry.name[0]) continue;
    size_t at = name_hash(entry.name) % (2 * kEntriesMax);
    for (; scratch->names[at]; at = (at + 1) % (2 * kEntriesMax)) {
      if (memcmp(entries[scratch->names[at] - 1].name, entry.name, kLunNameBytes) == 0)
        fault("two LUNs of one name");
    }
    scratch->names[at] = static_cast<uint16_t>(i + 1);
  }
  // Positions are ranked over all LUNs: each rank may occur once, and all of `owned` must.
  memset(scratch->seen, 0, (owned + 63) / 64 * 8);
  for (uint32_t i = 0; i < geometry.extent_count; ++i) {
    const ExtentOwner owner = extents[i];
    if (owner.lun == 0) {
      if (owner.position) fault("a free extent with a position");
      ++out->free;
      continue;
    }
    const uint32_t first =
        owner.lun > geometry.entry_count ? UINT32_MAX : scratch->first[owner.lun - 1];
    if (first == UINT32_MAX || owner.position >= entries[owner.lun - 1].extents) {
      fault(first == UINT32_MAX ? "an extent whose LUN does not exist"
                                : "an extent beyond its LUN's end");
      ++out->lost;
      continue;
    }
    const uint32_t rank = first + owner.position;
    if (scratch->seen[rank / 64] >> rank % 64 & 1) {
      fault("two extents at one place of a LUN");
      ++out->twice;
      continue;
    }
    scratch->seen[rank / 64] |= uint64_t{1} << rank % 64;
    ++out->used;
  }
  out->missing = owned - out->used;
  if (out->missing) fault("a LUN with an extent missing");
}

bool image_sound(const MetadataImage& image, SoundScratch* scratch, const char** what) {
  ImageCensus census;
  image_census(image, scratch, &census);
  if (census.fault) *what = census.fault;
  return !census.fault;
}

}  // namespace lunar
