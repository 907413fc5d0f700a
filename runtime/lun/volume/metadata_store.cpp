// SPDX-License-Identifier: Apache-2.0
// The metadata of a physical LUN: see metadata_store.h. The protocol is in atomic_image.cpp, the
// validation in metadata_image.cpp.
// Threading: the caller locks. May not be used on the fault path.
#include "lun/volume/metadata_store.h"

#include <errno.h>

#include "base/units.h"
#include "sys/arena.h"

namespace lunar {
namespace {

constexpr size_t kScratchBytes = (sizeof(SoundScratch) + 4095) / 4096 * 4096;

}  // namespace

int MetadataStore::prepare(Device* raw, const Geometry& geometry, const LunIdentity& identity) {
  scratch_ = static_cast<SoundScratch*>(map_private(kScratchBytes, ForkPolicy::kInherit));
  if (!scratch_) return -ENOMEM;
  geometry_ = geometry;
  identity_ = identity;
  const int status = images_.prepare(raw, image_spec(geometry, identity),
                                     {2, {geometry.front_offset, geometry.back_offset}}, this);
  if (status < 0) release();
  return status;
}

void MetadataStore::release() {
  images_.release();
  if (scratch_) unmap_private(scratch_, kScratchBytes);
  scratch_ = nullptr;
}

const char* MetadataStore::fault(const media::ImageHeader& header, const char* body) {
  // A header and its body are neighbours in a slot.
  auto* image = const_cast<char*>(body) - sizeof header;
  const char* what = nullptr;
  return image_sound({image, &geometry_}, scratch_, &what) ? nullptr : what;
}

void MetadataStore::census(ImageCensus* out) {
  *out = {};
  const char* newest = loaded() ? images_.image() : images_.newest_intact();
  if (newest) image_census({const_cast<char*>(newest), &geometry_}, scratch_, out);
}

}  // namespace lunar
