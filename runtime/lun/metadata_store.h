// SPDX-License-Identifier: Apache-2.0
// The metadata of a physical LUN on its device: reading it with judgement, mending it, replacing it. The protocol and why
// it survives every crash: physical_format.h. What is looked at on every load is everything: four images, so that rot is
// found while there is a copy.
//
// Threading: the caller locks (metadata lock and mutex). Blocking. Memory: one mapping, made by prepare().
#pragma once
#include "lun/metadata_image.h"
#include "superpipe/device.h"

namespace lunar {

enum class Mend : uint8_t {
  kNo,        // look only; the others are for who may change it
  kOne,       // what a crash can leave
  kProven,    // also two slots out of form, where the others prove that nothing newer was acknowledged
};

struct SlotReport {
  unsigned bad = 0;              // slots out of form, a bit each: 1, 2 front A, B; 4, 8 back A, B
  unsigned mended = 0;
  const char* what = "";         // of the first
  uint64_t unknown = 0;          // feature bits that made it -EPROTONOSUPPORT or -EROFS
};

class MetadataStore {
 public:
  [[nodiscard]] int prepare(Device* raw, const Geometry& geometry, const LunIdentity& identity);   // 0, -ENOMEM
  void release();
  // Reads all, decides, mends; image() is the newest then. 0; -EBADMSG; -EPROTONOSUPPORT: unknown incompatible features; -EROFS: unknown
  // read-only ones, and not Mend::kNo (nothing is written); -EIO and the like from the device.
  [[nodiscard]] int load(Mend mend, SlotReport* report);
  // Writes image(), as the caller changed it, as the next one. On failure the medium is looked at again: 0 when the change is there
  // after all; else -errno, and image() is what was before (or !loaded()).
  [[nodiscard]] int commit();
  bool loaded() const { return loaded_; }
  void census(ImageCensus* out);   // of image(), or, where none was found sound, of the newest intact one as read (all 0: none is)
  [[nodiscard]] int format();                          // images 1 and 2
  const MetadataImage& image() const { return image_; }
  uint64_t sequence() const { return image_.header().sequence; }
  const Geometry& geometry() const { return geometry_; }
  const uint8_t* uuid() const { return identity_.uuid; }

 private:
  MetadataImage slot(unsigned i) const { return {slots_ + i * geometry_.image_bytes, &geometry_}; }
  int read_slots();
  int judge(unsigned* newest, unsigned* bad, const char** what);
  int write_slot(unsigned index, const char* from);

  Device* raw_ = nullptr;
  Geometry geometry_;
  LunIdentity identity_;
  char* slots_ = nullptr;        // four images as read
  MetadataImage image_;
  SoundScratch* scratch_ = nullptr;
  size_t mapping_bytes_ = 0;
  bool loaded_ = false;
};

// All of [offset, offset + bytes) of a raw device, in commands it can take. 0 or -errno (-EIO: a short count).
[[nodiscard]] int raw_io(Device* raw, Op op, uint64_t offset, void* buffer, uint64_t bytes);
[[nodiscard]] int raw_flush(Device* raw);
[[nodiscard]] int raw_zero(Device* raw, uint64_t offset, uint64_t bytes);   // discards where that gives zeros, else writes

}  // namespace lunar
