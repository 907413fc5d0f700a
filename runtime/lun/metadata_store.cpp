// SPDX-License-Identifier: Apache-2.0
// Reading, mending and replacing metadata: see metadata_store.h.
// Threading: the caller locks. May not be used on the fault path.
#include "lun/metadata_store.h"

#include <errno.h>
#include <string.h>

#include <bit>

#include "base/arena.h"
#include "base/units.h"

namespace lunar {
namespace {

constexpr uint64_t kPieceMax = kMiB;   // of one metadata command

}  // namespace

int raw_io(Device* raw, Op op, uint64_t offset, void* buffer, uint64_t bytes) {
  const uint64_t most = raw->capabilities().transfer_bytes_max, piece = most < kPieceMax ? most : kPieceMax;
  for (uint64_t done = 0; done < bytes;) {
    const iovec part = {static_cast<char*>(buffer) + done, bytes - done < piece ? bytes - done : piece};
    Command command;
    command.op = op;
    command.offset = DeviceOffset{offset + done};
    command.iov = &part;
    command.iov_count = 1;
    const int64_t moved = raw->transfer(command);
    if (moved < 0) return static_cast<int>(moved);
    if (moved != static_cast<int64_t>(part.iov_len)) return -EIO;
    done += part.iov_len;
  }
  return 0;
}

int raw_flush(Device* raw) {
  Command command;
  command.op = Op::kFlush;
  const int64_t status = raw->transfer(command);
  return status < 0 ? static_cast<int>(status) : 0;
}

int raw_zero(Device* raw, uint64_t offset, uint64_t bytes) {
  if (raw->capabilities().discard) {
    Command command;
    command.op = Op::kDiscard;
    command.offset = DeviceOffset{offset};
    command.length = bytes;
    const int64_t status = raw->transfer(command);
    if (status != -EOPNOTSUPP && status != -EINVAL && status != -ENOSYS) return status < 0 ? static_cast<int>(status) : 0;
  }
  const uint64_t piece = bytes < kPieceMax ? bytes : kPieceMax;
  void* zeros = map_private(piece, ForkPolicy::kDontFork);
  if (!zeros) return -ENOMEM;
  int status = 0;
  for (uint64_t done = 0; done < bytes && status == 0; done += piece)
    status = raw_io(raw, Op::kWrite, offset + done, zeros, bytes - done < piece ? bytes - done : piece);
  unmap_private(zeros, piece);
  return status;
}

int MetadataStore::prepare(Device* raw, const Geometry& geometry, const LunIdentity& identity) {
  const size_t images = 5 * geometry.image_bytes, bytes = images + round_up(sizeof(SoundScratch), 4096);
  auto* memory = static_cast<char*>(map_private(bytes, ForkPolicy::kInherit));
  if (!memory) return -ENOMEM;
  raw_ = raw;
  geometry_ = geometry;
  identity_ = identity;
  slots_ = memory;
  image_ = {memory + 4 * geometry.image_bytes, &geometry_};
  scratch_ = reinterpret_cast<SoundScratch*>(memory + images);
  mapping_bytes_ = bytes;
  loaded_ = false;
  return 0;
}

void MetadataStore::release() {
  if (slots_) unmap_private(slots_, mapping_bytes_);
  slots_ = nullptr;
  loaded_ = false;
}

int MetadataStore::read_slots() {
  const uint64_t side = 2 * geometry_.image_bytes;
  int status = raw_io(raw_, Op::kRead, geometry_.front_offset, slots_, side);
  if (status == 0) status = raw_io(raw_, Op::kRead, geometry_.back_offset, slots_ + side, side);
  if (status != -EIO) return status;
  // A place that cannot be read is a damaged one: the others may do.
  for (unsigned i = 0; i < 4; ++i) {
    status = raw_io(raw_, Op::kRead, geometry_.slot_offset(i), slots_ + i * geometry_.image_bytes, geometry_.image_bytes);
    if (status == -EIO) memset(slots_ + i * geometry_.image_bytes, 0, geometry_.image_bytes);
    else if (status < 0) return status;
  }
  return 0;
}

// Finds the newest image and which slots are out of form. 0; -EBADMSG for what no crash and no rot leaves.
int MetadataStore::judge(unsigned* newest, unsigned* bad, const char** what) {
  bool valid[4];
  int best = -1;
  *bad = 0;
  *what = "";
  for (unsigned i = 0; i < 4; ++i) {
    const MetadataImage image = slot(i);
    // The same bytes as the front one, which was judged: nothing more to say.
    const bool same = i >= 2 && valid[i - 2] && memcmp(slot(i - 2).base, image.base, geometry_.image_bytes) == 0;
    const char* fault = "a checksum is wrong";
    valid[i] = same || (image_intact(image, identity_) && image_sound(image, scratch_, &fault));
    if (valid[i] && image.header().sequence % 2 != i % 2) {
      valid[i] = false;
      fault = "an image in the wrong slot";
    }
    if (!valid[i] && !**what) *what = fault;
    if (valid[i] && (best < 0 || image.header().sequence > slot(static_cast<unsigned>(best)).header().sequence)) best = static_cast<int>(i);
  }
  if (best < 0) return -EBADMSG;
  const auto top = static_cast<unsigned>(best);
  const uint64_t sequence = slot(top).header().sequence;
  if (sequence < 2) return -EBADMSG;
  uint64_t before = 0;   // checksum of image N - 1
  for (unsigned i = 0; i < 4; ++i) {
    const uint64_t due = i % 2 == top % 2 ? sequence : sequence - 1;
    if (!valid[i] || slot(i).header().sequence != due) {
      *bad |= 1u << i;
      if (!**what) *what = "a copy is older than the others";
      continue;
    }
    if (due == sequence - 1) before = slot(i).header().checksum;
    const unsigned other = i ^ 2;
    const bool twice = i >= 2 && valid[other] && slot(other).header().sequence == due;
    if (twice && slot(other).header().checksum != slot(i).header().checksum) {
      *what = "two copies of one image differ";
      return -EBADMSG;
    }
  }
  if (before && slot(top).header().previous != before) {
    *what = "the newest image does not follow the one before it";
    return -EBADMSG;
  }
  *newest = top;
  return 0;
}

int MetadataStore::write_slot(unsigned index, const char* from) {
  // `from` may be any memory of ours: images start at multiples of 4096.
  const int status = raw_io(raw_, Op::kWrite, geometry_.slot_offset(index), const_cast<char*>(from), geometry_.image_bytes);
  return status < 0 ? status : raw_flush(raw_);
}

int MetadataStore::load(Mend mend, SlotReport* report) {
  loaded_ = false;
  unsigned newest = 0, bad = 0;
  int status = read_slots();
  if (status < 0) return status;
  for (unsigned i = 0; i < 4; ++i) {   // any of them: an older image that cannot be judged could not be mended
    if (image_header_intact(slot(i), identity_)) report->unknown |= unknown_incompatible(slot(i).header());
  }
  if (report->unknown) return -EPROTONOSUPPORT;
  status = judge(&newest, &bad, &report->what);
  report->bad = bad;
  report->mended = 0;
  if (status < 0) return status;
  report->unknown = unknown_read_only(slot(newest).header());
  if (report->unknown && mend != Mend::kNo) return -EROFS;
  // Two out of form: an acknowledged image is in both slots of its parity, so while one of each parity is sound, the newest
  // sound one is what was acknowledged last or newer.
  const unsigned bad_count = static_cast<unsigned>(std::popcount(bad));
  const bool each_parity = (bad & 5) != 5 && (bad & 10) != 10;
  if (bad_count > 2 || (bad_count == 2 && !(mend == Mend::kProven && each_parity))) return -EBADMSG;
  if (bad_count && mend != Mend::kNo) {
    status = raw_flush(raw_);   // what was read may be on its way to the medium still
    for (unsigned i = 0; i < 4 && status == 0; ++i) {
      if (!(bad >> i & 1)) continue;
      status = write_slot(i, slot(i ^ 2).base);
      report->mended += status == 0;
    }
    if (status < 0) return status;
  }
  memcpy(image_.base, slot(newest).base, geometry_.image_bytes);
  loaded_ = true;
  return 0;
}

void MetadataStore::census(ImageCensus* out) {
  *out = {};
  uint64_t newest = 0;
  if (loaded_) image_census(image_, scratch_, out);
  for (unsigned i = 0; i < 4 && !loaded_; ++i) {
    if (!image_intact(slot(i), identity_) || slot(i).header().sequence <= newest) continue;
    newest = slot(i).header().sequence;
    image_census(slot(i), scratch_, out);
  }
}

int MetadataStore::commit() {
  if (!loaded_) return -EIO;   // what an earlier failure left unread is no ground for a change
  media::ImageHeader& header = image_.header();
  const uint64_t next = header.sequence + 1;
  header.previous = header.checksum;
  header.sequence = next;
  image_seal(image_, identity_);
  const unsigned place = next % 2;
  const char* what = "";
  LUNAR_CHECK(image_sound(image_, scratch_, &what), "metadata that is about to be written");
  int status = write_slot(place, image_.base);
  if (status == 0) status = write_slot(place + 2, image_.base);
  if (status == 0) return 0;
  SlotReport report;
  if (load(Mend::kOne, &report) < 0) return status;
  return sequence() == next ? 0 : status;
}

int MetadataStore::format() {
  memset(image_.base, 0, geometry_.image_bytes);
  image_.header().checksum = 0;
  for (uint64_t sequence = 1; sequence <= 2; ++sequence) {
    image_.header().previous = image_.header().checksum;
    image_.header().sequence = sequence;
    image_seal(image_, identity_);
    for (unsigned side = 0; side < 4; side += 2) {
      const int status = raw_io(raw_, Op::kWrite, geometry_.slot_offset(static_cast<unsigned>(sequence % 2) + side), image_.base, geometry_.image_bytes);
      if (status < 0) return status;
    }
  }
  loaded_ = true;
  return raw_flush(raw_);
}

}  // namespace lunar
