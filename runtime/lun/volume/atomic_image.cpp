// SPDX-License-Identifier: Apache-2.0
// Reading with validation, repairing, replacing: see atomic_image.h.
// Threading: the caller locks. May not be used on the fault path.
#include "lun/volume/atomic_image.h"

#include <errno.h>
#include <string.h>

#include <bit>

#include "base/bytes.h"
#include "base/units.h"
#include "base/xxh3.h"
#include "lun/raw_io.h"
#include "sys/arena.h"
#include "sys/fatal.h"

namespace lunar {
namespace {

using media::ImageHeader;

const ImageHeader& header_at(const char* image) {
  return *reinterpret_cast<const ImageHeader*>(image);
}
uint64_t checksum_of(const ImageHeader& header) {
  return XXH3_64bits(&header, offsetof(ImageHeader, checksum));
}

uint64_t unknown_features(const ImageSpec& spec, const ImageHeader& header) {
  return header.features & ~spec.known_features;
}

}  // namespace

void image_seal(const ImageSpec& spec, char* image) {
  ImageHeader& header = *reinterpret_cast<ImageHeader*>(image);
  memcpy(header.magic, spec.magic, sizeof header.magic);
  header.version = spec.version;
  header.header_bytes = sizeof header;
  memcpy(header.uuid, spec.uuid, sizeof header.uuid);
  header.super_checksum = spec.super_checksum;
  header.body_bytes = spec.body_bytes;
  header.body_checksum = XXH3_64bits(image + sizeof header, spec.body_bytes);
  header.checksum = checksum_of(header);
}

bool image_header_intact(const ImageSpec& spec, const char* image) {
  const ImageHeader& header = header_at(image);
  return memcmp(header.magic, spec.magic, sizeof header.magic) == 0 &&
         header.checksum == checksum_of(header) && header.version == spec.version &&
         header.header_bytes == sizeof header &&
         memcmp(header.uuid, spec.uuid, sizeof header.uuid) == 0 &&
         header.super_checksum == spec.super_checksum && header.sequence != 0;
}

bool image_intact(const ImageSpec& spec, const char* image) {
  if (!image_header_intact(spec, image)) return false;
  const ImageHeader& header = header_at(image);
  const uint64_t used = sizeof header + spec.body_bytes;
  return !unknown_features(spec, header) && header.body_bytes == spec.body_bytes &&
         bytes_are_zero(header.reserved, sizeof header.reserved) &&
         bytes_are_zero(header.reserved_end, sizeof header.reserved_end) &&
         bytes_are_zero(image + used, spec.slot_bytes - used) &&
         header.body_checksum == XXH3_64bits(image + sizeof header, spec.body_bytes);
}

int AtomicImage::prepare(Device* raw, const ImageSpec& spec, const ImagePlaces& places,
                         ImageValidator* validator) {
  const size_t bytes = (2 * places.copies + 1) * spec.slot_bytes;
  auto* memory = static_cast<char*>(map_private(bytes, ForkPolicy::kInherit));
  if (!memory) return -ENOMEM;
  raw_ = raw;
  spec_ = spec;
  places_ = places;
  validator_ = validator;
  slots_ = memory;
  image_ = memory + 2 * places.copies * spec.slot_bytes;
  mapping_bytes_ = bytes;
  loaded_ = false;
  return 0;
}

void AtomicImage::release() {
  if (slots_) unmap_private(slots_, mapping_bytes_);
  slots_ = nullptr;
  loaded_ = false;
}

int AtomicImage::read_slots() {
  const uint64_t side = 2 * spec_.slot_bytes;
  const auto is_there = [&](uint64_t offset, uint64_t bytes) {
    return offset + bytes <= raw_->size_bytes();
  };
  int status = 0;
  for (unsigned copy = 0; copy < places_.copies && status == 0; ++copy)
    status = is_there(places_.offset[copy], side)
                 ? raw_io(raw_, Op::kRead, places_.offset[copy], slots_ + copy * side, side)
                 : -EIO;
  if (status != -EIO) return status;
  // A slot that cannot be read counts as damaged; the others may be enough.
  for (unsigned i = 0; i < slots(); ++i) {
    status = is_there(offset_of(i), spec_.slot_bytes)
                 ? raw_io(raw_, Op::kRead, offset_of(i), slot(i), spec_.slot_bytes)
                 : -EIO;
    if (status == -EIO)
      memset(slot(i), 0, spec_.slot_bytes);
    else if (status < 0)
      return status;
  }
  return 0;
}

// The fault of slot i; nullptr: it holds a sound image that belongs there. valid: of the slots
// before it.
const char* AtomicImage::fault_of(unsigned i, const bool* valid) {
  // If the bytes equal the first copy, which was validated, the slot is valid.
  const bool same = i >= 2 && valid[i - 2] && memcmp(slot(i - 2), slot(i), spec_.slot_bytes) == 0;
  if (!same && !image_intact(spec_, slot(i))) return "a checksum is wrong";
  if (!same && validator_) {
    if (const char* fault = validator_->fault(header_of(i), slot(i) + sizeof(ImageHeader)))
      return fault;
  }
  return header_of(i).sequence % 2 == i % 2 ? nullptr : "an image in the wrong slot";
}

// Finds the newest image, and the invalid slots. 0; -EBADMSG: a state that neither a crash nor
// decay of the medium can leave.
int AtomicImage::choose_newest(unsigned* newest, SlotReport* report) {
  bool valid[kSlotsMax];
  int best = -1;
  *report = {};
  for (unsigned i = 0; i < slots(); ++i) {
    const char* fault = fault_of(i, valid);
    valid[i] = !fault;
    if (fault && !*report->what) report->what = fault;
    if (valid[i] &&
        (best < 0 || header_of(i).sequence > header_of(static_cast<unsigned>(best)).sequence))
      best = static_cast<int>(i);
  }
  if (best < 0) return -EBADMSG;
  const auto top = static_cast<unsigned>(best);
  const uint64_t sequence = header_of(top).sequence;
  if (sequence < 2) return -EBADMSG;  // an incomplete format
  uint64_t before = 0;                // checksum of image N - 1
  for (unsigned i = 0; i < slots(); ++i) {
    const uint64_t due = i % 2 == top % 2 ? sequence : sequence - 1;
    if (!valid[i] || header_of(i).sequence != due) {
      report->bad |= 1u << i;
      if (valid[i]) report->older |= 1u << i;
      if (!*report->what) report->what = "a copy is older than the others";
      continue;
    }
    if (due == sequence - 1) before = header_of(i).checksum;
    const unsigned other = i ^ 2;
    const bool twice = i >= 2 && valid[other] && header_of(other).sequence == due;
    if (twice && header_of(other).checksum != header_of(i).checksum) {
      report->what = "two copies of one image differ";
      return -EBADMSG;
    }
  }
  if (before && header_of(top).previous != before) {
    report->what = "the newest image does not follow the one before it";
    return -EBADMSG;
  }
  *newest = top;
  return 0;
}

int AtomicImage::repair(unsigned bad, SlotReport* report) {
  int status = raw_flush(raw_);  // images that were read may not be on stable storage yet
  for (unsigned i = 0; places_.copies == 2 && i < slots() && status == 0; ++i) {
    if (!(bad >> i & 1)) continue;
    status = raw_write_durable(raw_, offset_of(i), slot(i ^ 2), spec_.slot_bytes);
    report->repaired += status == 0;
  }
  return status;
}

int AtomicImage::load(Repair what_to_repair, SlotReport* report) {
  loaded_ = false;
  *report = {};
  unsigned newest = 0;
  uint64_t unknown = 0;
  int status = read_slots();
  if (status < 0) return status;
  // Features of any slot count, because an older image that cannot be validated could not be
  // repaired.
  for (unsigned i = 0; i < slots(); ++i) {
    if (image_header_intact(spec_, slot(i))) unknown |= unknown_features(spec_, header_of(i));
  }
  status = unknown ? -EPROTONOSUPPORT : choose_newest(&newest, report);
  report->unknown = unknown;
  if (status < 0) return status;
  // An acknowledged image is in both slots of its parity. So if two slots are invalid but one of
  // each parity is sound, the newest sound image is the last acknowledged one, or newer.
  const unsigned bad = report->bad, bad_count = static_cast<unsigned>(std::popcount(bad));
  const bool each_parity = (bad & 5) != 5 && (bad & 10) != 10;
  report->proven = bad_count < 2 || (bad_count == 2 && each_parity);
  const bool enough = bad_count < 2 || what_to_repair == Repair::kSalvage ||
                      (what_to_repair == Repair::kProven && report->proven);
  if (!enough) return -EBADMSG;
  // With one copy, the newest image may exist only once, and may not be on stable storage yet. It
  // must be before the next change overwrites the other slot.
  if ((bad_count || places_.copies == 1) && !only_reads(what_to_repair)) {
    status = repair(bad, report);
    if (status < 0) return status;
  }
  memcpy(image_, slot(newest), spec_.slot_bytes);
  loaded_ = true;
  return 0;
}

const char* AtomicImage::newest_intact() const {
  const char* found = nullptr;
  for (unsigned i = 0; i < slots(); ++i) {
    if (image_intact(spec_, slot(i)) &&
        (!found || header_of(i).sequence > header_at(found).sequence))
      found = slot(i);
  }
  return found;
}

int AtomicImage::commit() {
  if (!loaded_) return -EIO;  // after a failure, an image that was not read again must not change
  const uint64_t next = sequence() + 1;
  header().previous = header().checksum;
  header().sequence = next;
  image_seal(spec_, image_);
  LUNAR_CHECK(!validator_ || !validator_->fault(header(), body()),
              "metadata that is about to be written");
  int status = 0;
  for (unsigned copy = 0; copy < places_.copies && status == 0; ++copy)
    status = raw_write_durable(raw_, offset_of(static_cast<unsigned>(next % 2) + 2 * copy), image_,
                               spec_.slot_bytes);
  if (status == 0) return 0;
  SlotReport report;
  if (load(Repair::kOne, &report) < 0) return status;
  return sequence() == next ? 0 : status;
}

int AtomicImage::format() {
  memset(image_, 0, spec_.slot_bytes);
  for (uint64_t number = 1; number <= 2; ++number) {
    header().previous = header().checksum;
    header().sequence = number;
    image_seal(spec_, image_);
    for (unsigned copy = 0; copy < places_.copies; ++copy) {
      const int status =
          raw_io(raw_, Op::kWrite, offset_of(static_cast<unsigned>(number % 2) + 2 * copy), image_,
                 spec_.slot_bytes);
      if (status < 0) return status;
    }
  }
  loaded_ = true;
  return raw_flush(raw_);
}

}  // namespace lunar
