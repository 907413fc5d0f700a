// SPDX-License-Identifier: Apache-2.0
// The metadata of a physical LUN on its device: an atomic image (atomic_image.h) in two copies,
// before and after the data. Every load checks all four slots, so that damage is found while there
// is a good copy.
//
// Threading: the caller locks (metadata lock and mutex). Blocking. Memory: mappings, made by
// prepare().
#pragma once
#include "lun/volume/atomic_image.h"
#include "lun/volume/metadata_image.h"

namespace lunar {

class MetadataStore final : private ImageValidator {
 public:
  // 0, -ENOMEM
  [[nodiscard]] int prepare(Device* raw, const Geometry& geometry, const LunIdentity& identity);
  void release();
  [[nodiscard]] int load(Repair repair, SlotReport* report) { return images_.load(repair, report); }
  [[nodiscard]] int commit() { return images_.commit(); }
  [[nodiscard]] int format() { return images_.format(); }
  bool loaded() const { return images_.loaded(); }
  // Counts extents of image(), or, if no sound image was found, of the newest intact one as read
  // (all 0: there is none).
  void census(ImageCensus* out);
  MetadataImage image() const { return {images_.image(), &geometry_}; }
  uint64_t sequence() const { return images_.sequence(); }
  const Geometry& geometry() const { return geometry_; }
  const uint8_t* uuid() const { return identity_.uuid; }

 private:
  const char* fault(const media::ImageHeader& header, const char* body) override;

  AtomicImage images_;
  Geometry geometry_;
  LunIdentity identity_;
  SoundScratch* scratch_ = nullptr;
};

}  // namespace lunar
