// SPDX-License-Identifier: Apache-2.0
// The head of a store: see store_head.h.
// Threading: as there.
#include "kv/store_head.h"

#include <errno.h>
#include <stddef.h>
#include <string.h>

#include <algorithm>
#include <initializer_list>

#include "base/xxh3.h"
#include "kv/index.h"
#include "kv/record_log.h"
#include "lun/raw_io.h"
#include "sys/arena.h"

namespace lunar::kv {
namespace {

constexpr unsigned kSegmentBitsMin = 16, kSegmentBitsMax = 20, kShardBitsMax = 8;

uint64_t checksum_of(const media::Superblock& super) {
  return XXH3_64bits(&super, offsetof(media::Superblock, checksum));
}

class Block {  // aligned, for I/O
 public:
  explicit Block(uint64_t bytes = media::kBlockBytes)
      : memory_(static_cast<char*>(map_private(bytes, ForkPolicy::kInherit))), bytes_(bytes) {}
  ~Block() {
    if (memory_) unmap_private(memory_, bytes_);
  }
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;
  char* get() const { return memory_; }

 private:
  char* memory_;
  const uint64_t bytes_;
};

bool geometry_is_possible(const media::Superblock& super, uint64_t device_bytes) {
  if (super.segment_bits < kSegmentBitsMin || super.segment_bits > kSegmentBitsMax ||
      super.shard_bits > kShardBitsMax)
    return false;
  if (super.index_bits < Index::kBitsMin || super.index_bits > Index::kBitsMax) return false;
  if (super.segment_count < Log::kSegmentsMin ||
      super.segment_count > kLogBytesMax >> super.segment_bits)
    return false;
  return super.back_offset == media::kHeadBytes + (super.segment_count << super.segment_bits) &&
         super.device_bytes == super.back_offset + media::kTailBytes &&
         super.device_bytes <= device_bytes;
}

void seal(media::Superblock* super, uint32_t version) {
  memcpy(super->magic, media::kSuperMagic, sizeof super->magic);
  super->version = version;
  super->header_bytes = sizeof *super;
  super->checksum = checksum_of(*super);
}

// Finds the superblock, of any version, whose checksum a root has. The second copy of the roots
// lies at `back`.
bool superblock_of(const lunar::media::ImageHeader& root, uint64_t back, uint64_t device_bytes,
                   media::Superblock* out) {
  *out = {};
  memcpy(out->uuid, root.uuid, sizeof out->uuid);
  out->back_offset = back;
  out->device_bytes = back + media::kTailBytes;
  const uint64_t log_bytes = back - media::kHeadBytes;
  for (out->segment_bits = kSegmentBitsMin; out->segment_bits <= kSegmentBitsMax;
       ++out->segment_bits) {
    out->segment_count = log_bytes >> out->segment_bits;
    if (out->segment_count << out->segment_bits != log_bytes) break;
    for (out->shard_bits = 0; out->shard_bits <= kShardBitsMax; ++out->shard_bits) {
      for (out->index_bits = Index::kBitsMin; out->index_bits <= Index::kBitsMax;
           ++out->index_bits) {
        for (uint32_t version = 1; version <= media::kVersion; ++version) {
          seal(out, version);
          if (out->checksum == root.super_checksum) return geometry_is_possible(*out, device_bytes);
        }
      }
    }
  }
  return false;
}

// Finds the superblock by a root at the end of the device. A store that takes the whole device ends
// less than a segment before its end.
bool find_by_roots(Device* device, media::Superblock* out) {
  constexpr uint64_t kEndBytes = media::kTailBytes + (uint64_t{1} << kSegmentBitsMax),
                     kBlock = media::kBlockBytes;
  constexpr uint64_t kSavedNever = 2;  // sequence of the roots that format() writes
  const uint64_t size = round_down(device->size_bytes(), kBlock);
  if (size <= 2 * media::kHeadBytes) return false;
  const uint64_t bytes = std::min(size - media::kHeadBytes, kEndBytes), from = size - bytes;
  const Block end(bytes);
  if (!end.get()) return false;
  for (uint64_t at = 0; at < bytes; at += kBlock)
    if (raw_io(device, Op::kRead, from + at, end.get() + at, kBlock) < 0)
      memset(end.get() + at, 0, kBlock);
  for (uint64_t at = 0; at < bytes; at += kBlock) {
    const auto& root = *reinterpret_cast<const lunar::media::ImageHeader*>(end.get() + at);
    if (memcmp(root.magic, media::kRootMagic, sizeof root.magic) != 0 ||
        root.sequence <= kSavedNever)
      continue;
    if (root.checksum != XXH3_64bits(&root, offsetof(lunar::media::ImageHeader, checksum)))
      continue;
    const uint64_t slot = root.sequence % 2 * kBlock;
    if (from + at >= slot && superblock_of(root, from + at - slot, size, out)) return true;
  }
  return false;
}

int check_version(const Device* device, const media::Superblock& super, ErrorText* why) {
  if (super.version == 1)
    return why->set(-EPROTONOSUPPORT,
                    "key/value store on %s: format version 1, of an earlier Lunar; "
                    "`lunar kv dump` of that one and `lunar kv load` of this one "
                    "carry its pairs over",
                    device->name());
  if (super.version != media::kVersion)
    return why->set(-EPROTONOSUPPORT,
                    "key/value store on %s: format version %u; this Lunar knows %u", device->name(),
                    super.version, media::kVersion);
  return 0;
}

}  // namespace

void superblock_seal(media::Superblock* super) { seal(super, media::kVersion); }

int superblock_write(Device* device, const media::Superblock& super) {
  const Block block;
  if (!block.get()) return -ENOMEM;
  memcpy(block.get(), &super, sizeof super);
  const int status = raw_io(device, Op::kWrite, 0, block.get(), media::kBlockBytes);
  return status < 0
             ? status
             : raw_io(device, Op::kWrite, media::kSecondSuperAt, block.get(), media::kBlockBytes);
}

int superblock_replace(Device* device, const media::Superblock& super) {
  const Block block;
  if (!block.get()) return -ENOMEM;
  memcpy(block.get(), &super, sizeof super);
  const int status = raw_write_durable(device, 0, block.get(), media::kBlockBytes);
  return status < 0
             ? status
             : raw_write_durable(device, media::kSecondSuperAt, block.get(), media::kBlockBytes);
}

int root_copy_to_front(Device* device, const media::Superblock& super, uint64_t slot) {
  const Block block;
  const uint64_t at = slot * media::kBlockBytes;
  if (!block.get()) return -ENOMEM;
  const int status =
      raw_io(device, Op::kRead, super.back_offset + at, block.get(), media::kBlockBytes);
  return status < 0 ? status
                    : raw_write_durable(device, media::kFrontRootsAt + at, block.get(),
                                        media::kBlockBytes);
}

ImageSpec root_spec(const media::Superblock& super) {
  ImageSpec spec;
  memcpy(spec.magic, media::kRootMagic, sizeof spec.magic);
  memcpy(spec.uuid, super.uuid, sizeof spec.uuid);
  spec.super_checksum = super.checksum;
  spec.body_bytes = sizeof(media::Root);
  spec.slot_bytes = media::kBlockBytes;
  spec.known_features = media::kFeatureLog;
  return spec;
}

int superblock_read(Device* device, HeadDamage damage, media::Superblock* out, ErrorText* why) {
  const Block block;
  if (!block.get()) return why->set(-ENOMEM, "key/value store on %s: no memory", device->name());
  bool any = false;
  int unread = 0;
  for (const uint64_t at : {uint64_t{0}, media::kSecondSuperAt}) {
    if (at + media::kBlockBytes > device->size_bytes()) continue;
    if (const int status = raw_io(device, Op::kRead, at, block.get(), media::kBlockBytes);
        status < 0) {
      unread = status;
      continue;
    }
    memcpy(out, block.get(), sizeof *out);
    if (memcmp(out->magic, media::kSuperMagic, sizeof out->magic) != 0) continue;
    any = true;
    if (out->checksum != checksum_of(*out)) continue;
    if (const int status = check_version(device, *out, why); status < 0) return status;
    if (geometry_is_possible(*out,
                             damage == HeadDamage::kSalvage ? UINT64_MAX : device->size_bytes()))
      return 0;
    if (out->device_bytes > device->size_bytes())
      return why->set(-EBADMSG,
                      "key/value store on %s: it was made on %llu bytes, and %llu are there; "
                      "`lunar kv dump --salvage` gives what is in these",
                      device->name(), static_cast<unsigned long long>(out->device_bytes),
                      static_cast<unsigned long long>(device->size_bytes()));
  }
  const bool found = find_by_roots(device, out);
  if (found)
    if (const int status = check_version(device, *out, why); status < 0) return status;
  if (found && damage == HeadDamage::kSalvage) return 0;
  *out = {};
  if (found)
    return why->set(-EBADMSG,
                    "key/value store on %s: both superblocks are damaged; "
                    "`lunar kv dump --salvage` finds it by its roots",
                    device->name());
  if (unread < 0)
    return why->set(unread, "key/value store on %s: cannot be read: %s", device->name(),
                    errno_text(unread));
  return any ? why->set(-EBADMSG,
                        "key/value store on %s: both superblocks are damaged, "
                        "and no root at the end tells what they were",
                        device->name())
             : why->set(-ENOENT, "%s: holds no key/value store", device->name());
}

bool superblock_is_copy(Device* device, uint64_t at, const media::Superblock& super,
                        const char** fault) {
  const Block block;
  const int status =
      block.get() ? raw_io(device, Op::kRead, at, block.get(), media::kBlockBytes) : -ENOMEM;
  *fault = status < 0 ? errno_text(status) : "it is not what was written";
  return status == 0 && memcmp(block.get(), &super, sizeof super) == 0;
}

}  // namespace lunar::kv
