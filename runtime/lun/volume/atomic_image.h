// SPDX-License-Identifier: Apache-2.0
// AtomicImage: a small table on a device that changes as a whole or not at all, even if the change
// is interrupted. It has two slots, written alternately (shadow paging of one page, as in LMDB's
// meta pages).
//
//   offset[0] │ slot A │ slot B │      offset[1] │ slot A │ slot B │     one copy, or two far apart
//
// Image N goes to slot N % 2 of the first copy, and when it is durable there, to slot N % 2 of the
// second; only then is it acknowledged. Each image has a sequence number, checksums, and the
// checksum of the image before it (image_format.h).
//
// Why it survives any crash: at most one slot is being written at any moment. The others hold N
// (the acknowledged image) and N - 1, or with two copies already one copy of N + 1. The highest
// intact sequence is the answer, and it is never lower than what was acknowledged. This holds for
// torn writes at any byte, lost caches and kill -9; the device only has to honour fua and flush.
//
// One copy or two: an invalid slot is either the result of a crash in the middle of N + 1, or a
// damaged N. With two copies the other copy tells which. At rest all four slots are valid (N twice,
// N - 1 twice). load() repairs the one that a crash left, and refuses two invalid ones (-EBADMSG),
// because the newest change might be among them. With one copy this cannot be told, and N - 1 would
// pass for the newest; use one copy only for tables that can be rebuilt, or whose age is known from
// elsewhere.
//
// Threading: the caller locks, also against other processes. Blocking; not for the fault path.
// Memory: one mapping, made by prepare().
#pragma once
#include "lun/volume/image_format.h"
#include "superpipe/device.h"

namespace lunar {

enum class Repair : uint8_t {
  kNo,      // only read; the other values, except kSalvage, are for callers that may write
  kOne,     // repair the damage that a crash can leave
  kProven,  // also two invalid slots, if the others prove that nothing newer was acknowledged
  // Only read, and load the newest valid image, even if a newer one may be lost
  // (SlotReport::proven).
  kSalvage,
};
constexpr bool only_reads(Repair repair) {
  return repair == Repair::kNo || repair == Repair::kSalvage;
}

struct SlotReport {
  unsigned bad = 0;  // invalid slots, one bit each: 1, 2: first copy A, B; 4, 8: second copy A, B
  // Of these, valid images that are only older than the others, as an interrupted commit() leaves.
  unsigned older = 0;
  unsigned repaired = 0;
  bool proven = false;    // no newer image than the loaded one was acknowledged
  const char* what = "";  // the fault of the first invalid slot
  uint64_t unknown = 0;   // the feature bits that caused -EPROTONOSUPPORT
};

// Identifies the images of a table: all of these must match.
struct ImageSpec {
  char magic[8] = {};
  uint32_t version = 1;
  uint8_t uuid[16] = {};
  uint64_t super_checksum = 0;
  uint64_t body_bytes = 0;
  uint64_t slot_bytes = 0;  // header and body, rounded up to a multiple of 4096
  uint64_t known_features = 0;
};
struct ImagePlaces {
  unsigned copies = 2;  // 1 or 2
  // Of slot A of each copy; slot B follows. Multiples of 4096; slots do not overlap.
  uint64_t offset[2] = {};
};
// Checks the content of the table after its checksums: returns nullptr if it is valid, otherwise
// the first fault. `body` has spec.body_bytes.
class ImageValidator {
 public:
  virtual const char* fault(const media::ImageHeader& header, const char* body) = 0;

 protected:
  ~ImageValidator() = default;
};

// Fills in the header except sequence, previous and features, which the caller sets. image:
// spec.slot_bytes, aligned to 8.
void image_seal(const ImageSpec& spec, char* image);
// Whether this is an image of `spec`, by a header with the right checksum; the rest is not checked.
bool image_header_intact(const ImageSpec& spec, const char* image);
// Whether all of its checksums are right. False if it has unknown features.
bool image_intact(const ImageSpec& spec, const char* image);

class AtomicImage {
 public:
  // validator: nullptr: any body is valid. Neither device nor validator is owned. 0, -ENOMEM.
  [[nodiscard]] int prepare(Device* raw, const ImageSpec& spec, const ImagePlaces& places,
                            ImageValidator* validator);
  void release();
  // Reads all slots, finds the newest image, repairs; image() is the newest one then. 0; -EBADMSG;
  // -EPROTONOSUPPORT: unknown features; -EIO and other errors of the device.
  [[nodiscard]] int load(Repair repair, SlotReport* report);
  // Writes image(), whose body and features the caller has changed, as the next image; durable at
  // return. Data that the change relies on must be durable before. After a failure the device is
  // read again: 0 if the change is there nevertheless; otherwise -errno, and image() has its former
  // content (or !loaded()).
  [[nodiscard]] int commit();
  [[nodiscard]] int format();  // images 1 and 2, bodies of zeros, durable at return
  bool loaded() const { return loaded_; }
  char* image() const { return image_; }  // spec.slot_bytes, aligned to 4096
  char* body() const { return image_ + sizeof(media::ImageHeader); }
  media::ImageHeader& header() const { return *reinterpret_cast<media::ImageHeader*>(image_); }
  uint64_t sequence() const { return header().sequence; }
  // The newest image with right checksums, as load() read it, valid or not; nullptr: all checksums
  // are wrong.
  const char* newest_intact() const;

 private:
  static constexpr unsigned kSlotsMax = 4;
  unsigned slots() const { return 2 * places_.copies; }
  char* slot(unsigned i) const { return slots_ + i * spec_.slot_bytes; }
  const media::ImageHeader& header_of(unsigned i) const {
    return *reinterpret_cast<const media::ImageHeader*>(slot(i));
  }
  uint64_t offset_of(unsigned i) const {
    return places_.offset[i / 2] + (i % 2) * spec_.slot_bytes;
  }
  int read_slots();
  const char* fault_of(unsigned i, const bool* valid);
  int choose_newest(unsigned* newest, SlotReport* report);
  int repair(unsigned bad, SlotReport* report);

  Device* raw_ = nullptr;
  ImageSpec spec_;
  ImagePlaces places_;
  ImageValidator* validator_ = nullptr;
  char* slots_ = nullptr;  // as read, in the order of SlotReport::bad
  char* image_ = nullptr;
  size_t mapping_bytes_ = 0;
  bool loaded_ = false;
};

}  // namespace lunar
