// SPDX-License-Identifier: Apache-2.0
// Opening, formatting and closing a physical LUN: see physical_lun.h and physical_format.h.
//
// Idea: refuse if in doubt. Only a valid superblock of Lunar's opens. Unless forced, only zeros are
// formatted, and only if libblkid finds nothing. A lost head is restored from the copy at the end
// on explicit request (kRepair), or if the head still has Lunar's magic.
// Threading: open-time code, any thread. May not be used on the fault path.
#include <errno.h>
#include <string.h>
#include <time.h>

#include <bit>
#include <new>

#include "base/format.h"
#include "lun/raid/member_label.h"
#include "lun/raid/path_device.h"
#include "lun/volume/physical_impl.h"
#include "sys/arena.h"
#include "sys/file.h"
#include "sys/memory_copy.h"

namespace lunar {
namespace {

using media::Superblock;

constexpr size_t kSuperBytes = sizeof(Superblock);

uint64_t end_of(Device* raw) { return round_down(raw->size_bytes(), media::kBlockBytes); }

// A block of memory that is aligned for any device.
class Block {
 public:
  Block() : super_(static_cast<Superblock*>(map_private(kSuperBytes, ForkPolicy::kDontFork))) {}
  ~Block() {
    if (super_) unmap_private(super_, kSuperBytes);
  }
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;
  Superblock* get() const { return super_; }
  int read(Device* raw, uint64_t offset) {
    return super_ ? raw_io(raw, Op::kRead, offset, super_, kSuperBytes) : -ENOMEM;
  }
  int write(Device* raw, uint64_t offset) {
    return super_ ? raw_write_durable(raw, offset, super_, kSuperBytes) : -ENOMEM;
  }

 private:
  Superblock* super_;
};

constexpr char kDamageAdvice[] =
    "nothing was changed. `lunar lun check --repair` restores what can be proven; else recreate it";

}  // namespace

int PhysicalLun::open(Device* raw, Format format, PhysicalLun** out, ErrorText* why) {
  *out = nullptr;
  if (const int order = paths_in_order(raw, why); order < 0) {
    raw->close();
    return order;
  }
  PhysicalLunImpl* lun = nullptr;
  const int status = PhysicalLunImpl::make(raw, format, &lun, why);
  *out = lun;
  return status;
}

int PhysicalLunImpl::make(Device* raw, Format format, PhysicalLunImpl** out, ErrorText* why) {
  *out = nullptr;
  void* memory = map_private(sizeof(PhysicalLunImpl), ForkPolicy::kInherit);
  if (!memory) {
    raw->close();
    return why->set(-ENOMEM, "LUN: out of memory");
  }
  auto* lun = new (memory) PhysicalLunImpl;
  lun->mapping_bytes_ = sizeof(PhysicalLunImpl);
  lun->raw_ = raw;
  lun->copy_.store(sys::memory_copy());
  lun->locks_.init(raw);
  lun->looks_ = only_looks(format);
  int status;
  if (raw->size_bytes() < kBytesMin) {
    status = why->set(
        -ENOSPC, "LUN %s: %s is too small for virtual LUNs; give a device or file of %s or more",
        raw->name(), format_size(raw->size_bytes()).text, format_size(kBytesMin).text);
  } else {
    status = lun->locks_.lock_metadata(lun->looks_, why);
    if (status == 0) {
      status = lun->open_locked(format, why);
      lun->locks_.unlock_metadata();
    }
  }
  if (status < 0)
    lun->close();
  else
    *out = lun;
  return status;
}

void PhysicalLunImpl::close() {
  locks_.part();
  store_.release();
  if (order_) unmap_private(order_, order_bytes_);
  raw_->close();
  unmap_private(this, mapping_bytes_);
}

void PhysicalLunImpl::forget() {
  store_.release();
  if (order_) unmap_private(order_, order_bytes_);
  raw_->forget();
  unmap_private(this, mapping_bytes_);
}

int PhysicalLunImpl::damaged(const char* what, ErrorText* why) {
  SlotReport report;
  report.what = what;
  return explain(-EBADMSG, report, kDamageAdvice, why);
}

int PhysicalLunImpl::open_locked(Format format, ErrorText* why) {
  int status;
  if (format == Format::kForce) {
    status = locks_.alone();
    if (status == 0)
      return why->set(-EBUSY, "LUN %s: in use by another process; end it before formatting",
                      raw_->name());
    return status < 0 ? why->set(status, "LUN %s: its locks cannot be read (%s)", raw_->name(),
                                 errno_name(status))
                      : format_now(why);
  }
  Block head, backup;
  status = head.read(raw_, 0);
  if (status < 0) return explain(status, {}, kDamageAdvice, why);
  const SuperState state = superblock_look(*head.get());
  if (state == SuperState::kVersion)
    return why->set(
        -EPROTONOSUPPORT,
        "LUN %s: carries format version %u, this Lunar knows %u; use the Lunar that made it",
        raw_->name(), head.get()->version, media::kVersion);
  // The superblock to rewrite after the images were found sound.
  uint64_t repair_at = UINT64_MAX;
  if (state == SuperState::kValid) {
    status = take_geometry(*head.get(), why);
    if (status < 0) return status;
    const uint64_t at = geometry().backup_offset();
    status = backup.read(raw_, at);
    if (status == 0 && superblock_look(*backup.get()) == SuperState::kValid &&
        memcmp(backup.get()->uuid, head.get()->uuid, 16) == 0 &&
        backup.get()->checksum != head.get()->checksum)
      return damaged("two superblocks that differ", why);
    if (status < 0 && status != -EIO) return explain(status, {}, kDamageAdvice, why);
    if (status == -EIO || memcmp(backup.get(), head.get(), kSuperBytes) != 0) repair_at = at;
  } else {
    const int read = backup.read(raw_, end_of(raw_) - kSuperBytes);
    if (read < 0 && read != -EIO) return explain(read, {}, kDamageAdvice, why);
    status = open_without_head(format, state, *head.get(), read == 0 ? backup.get() : nullptr, why);
    if (status != 0) return status < 0 ? status : 0;
    repair_at = 0;
  }
  SlotReport report;
  status = store_.load(format == Format::kRepair ? Repair::kProven : to_look(), &report);
  if (status < 0 && !(status == -EBADMSG && format == Format::kCheck))
    return explain(status, report, kDamageAdvice, why);
  repaired_ |= report.repaired != 0;
  if (looks_)
    damaged_ = static_cast<unsigned>(std::popcount(report.bad)) + (repair_at != UINT64_MAX);
  if (looks_) return 0;
  if (repair_at != UINT64_MAX) {
    status = restore_super(repair_at == 0 ? *backup.get() : *head.get(), repair_at);
    if (status < 0) return explain(status, {}, kDamageAdvice, why);
    repaired_ = true;
  }
  (void)reclaim();
  return 0;
}

// Opens a device without a valid primary superblock. backup: the superblock at the end, if it can
// be read. 0: the backup is used; 1: the device was formatted, or its format is to be ended;
// -errno.
int PhysicalLunImpl::open_without_head(Format format, SuperState state, const Superblock& super,
                                       const Superblock* backup, ErrorText* why) {
  if (state == SuperState::kEnded) {
    const int refused = format == Format::kEnd ? 0 : refuse_blank(format, why);
    const int done = refused < 0              ? refused
                     : format == Format::kEnd ? take_geometry(super, why)
                                              : format_now(why);
    return done < 0 ? done : 1;
  }
  Geometry ignored;
  const bool there = backup && superblock_look(*backup) == SuperState::kValid &&
                     superblock_geometry(*backup, raw_->size_bytes(), &ignored) == 0;
  if (state == SuperState::kDamaged || (there && format == Format::kRepair)) {
    if (!there && super.version != media::kVersion)
      return why->set(
          -EPROTONOSUPPORT,
          "LUN %s: carries format version %u, this Lunar knows %u; use the Lunar that made it",
          raw_->name(), super.version, media::kVersion);
    if (!there) return damaged("both superblocks", why);
    if (state == SuperState::kForeign) {
      DeviceContent content = DeviceContent::kForeign;
      char what[64];
      const int status = device_content(raw_, &content, what, sizeof what);
      if (status < 0) return explain(status, {}, kDamageAdvice, why);
      if (content != DeviceContent::kForeign || strcmp(what, kUnknownData) != 0)
        return refuse_contents(format, true, why);
    }
    return take_geometry(*backup, why);
  }
  const int status = refuse_contents(format, there, why);
  if (status < 0) return status;
  const int made = format_now(why);
  return made < 0 ? made : 1;
}

// 0: the device may be formatted.
// pre: no valid superblock in front
int PhysicalLunImpl::refuse_contents(Format format, bool backup, ErrorText* why) {
  const char* name = raw_->name();
  DeviceContent content = DeviceContent::kForeign;
  char what[64] = "";
  const int status = device_content(raw_, &content, what, sizeof what);
  if (status < 0)
    return why->set(status, "LUN %s: cannot look at what it holds: %s (%s)", name,
                    errno_text(status), errno_name(status));
  if (backup && (content == DeviceContent::kBlank || strcmp(what, kUnknownData) == 0))
    return why->set(-EBADMSG,
                    "LUN %s: its head was erased or overwritten, but its end says that it carries "
                    "virtual LUNs; `lunar lun check --repair %s` restores it, "
                    "formatting by name (--format) erases them",
                    name, name);
  MemberLabel label;
  if (content == DeviceContent::kMember && label_read(raw_, &label) == -EOPNOTSUPP)
    return refuse_mirror(name, "it", why);
  if (content == DeviceContent::kBlank) return refuse_blank(format, why);
  if (content == DeviceContent::kStore)
    return why->set(
        -EEXIST,
        "LUN %s: holds %s (`lunar kv info %s`); nothing was changed. Give another device or file",
        name, what, name);
  if (format != Format::kIfBlank)  // the caller does not want to format it
    return why->set(-EEXIST, "LUN %s: holds %s, no virtual LUNs; is the name right?", name, what);
  return why->set(-EEXIST,
                  "LUN %s: holds %s; nothing was changed. If that may go, erase it (wipefs -a, or "
                  "truncate -s 0 and truncate -s SIZE of a file), or format it by name",
                  name, what);
}

int PhysicalLunImpl::refuse_blank(Format format, ErrorText* why) {
  return format == Format::kIfBlank
             ? 0
             : why->set(-ENODEV, "LUN %s: carries no virtual LUNs; `lunar lun create` formats it",
                        raw_->name());
}

int PhysicalLunImpl::take_geometry(const Superblock& super, ErrorText* why) {
  Geometry geometry;
  int status = superblock_geometry(super, raw_->size_bytes(), &geometry);
  if (status == -ENOSPC)
    return why->set(
        status, "LUN %s: %s, but it was %s when it was formatted; give the device its size back",
        raw_->name(), format_size(raw_->size_bytes()).text, format_size(super.device_bytes).text);
  if (status < 0) return damaged("a superblock that makes no sense", why);
  locks_.part();
  store_.release();
  status = store_.prepare(raw_, geometry, LunIdentity(super));
  if (status == 0 && !order_) {
    order_bytes_ = round_up(geometry.extent_count * sizeof(uint32_t), 4096);
    order_ = static_cast<uint32_t*>(map_private(order_bytes_, ForkPolicy::kInherit));
    if (!order_) status = -ENOMEM;
  }
  created_s_ = super.created_s;
  return status < 0 ? why->set(status, "LUN %s: out of memory", raw_->name()) : 0;
}

int PhysicalLunImpl::restore_super(const Superblock& from, uint64_t offset) {
  Block block;
  if (!block.get()) return -ENOMEM;
  memcpy(block.get(), &from, kSuperBytes);
  return block.write(raw_, offset);
}

int PhysicalLunImpl::format_now(ErrorText* why) {
  Geometry geometry;
  uint8_t uuid[16];
  int status = geometry_for(raw_->size_bytes(), &geometry);
  if (status == 0) status = sys::random_bytes(uuid, sizeof uuid);
  if (status < 0)
    return why->set(status, "LUN %s: cannot be formatted (%s)", raw_->name(), errno_name(status));
  Superblock super;
  superblock_make(geometry, uuid, static_cast<uint64_t>(time(nullptr)), &super);
  status = take_geometry(super, why);
  if (status < 0) return status;
  // Reserves the space in the file system, and zeros it, also where signatures of other formats
  // lie.
  const uint64_t tail = raw_->size_bytes() - geometry.back_offset;
  status = raw_->reserve(DeviceOffset{0}, geometry.data_offset);
  if (status == 0) status = raw_->reserve(DeviceOffset{geometry.back_offset}, tail);
  if (status == 0) status = raw_zero(raw_, 0, geometry.data_offset);
  if (status == 0) status = raw_zero(raw_, geometry.back_offset, tail);
  if (status == 0) status = raw_flush(raw_);
  if (status == 0) status = store_.format();
  if (status == 0) status = restore_super(super, 0);
  if (status == 0) status = restore_super(super, geometry.backup_offset());
  return status < 0 ? why->set(status, "LUN %s: cannot be formatted: %s (%s)", raw_->name(),
                               errno_text(status), errno_name(status))
                    : 0;
}

// 0: ending the format would lose no LUN.
// pre: loaded
int PhysicalLunImpl::refuse_end(ErrorText* why) {
  const char* first = nullptr;
  unsigned others = 0;
  for (unsigned i = 0; i < geometry().entry_count; ++i) {
    if (!used(i) || (entries()[i].flags & media::kEntryScratch)) continue;
    if (first)
      ++others;
    else
      first = entries()[i].name;
  }
  if (!first) return 0;
  char more[32] = "";
  if (others) format_to(more, sizeof more, " (and %u more)", others);
  return why->set(-EBUSY,
                  "LUN %s: holds the virtual LUN %s%s; if that may go: lunar lun remove '%s#%s'",
                  raw_->name(), first, more, raw_->name(), first);
}

int PhysicalLunImpl::end(ErrorText* why) {
  int status = 0;
  if (store_.loaded()) {
    status = refuse_end(why);
    if (status < 0) return status;
    Block head;
    status = head.read(raw_, 0);
    if (status == 0) superblock_end(head.get());
    if (status == 0) status = head.write(raw_, 0);
  }
  const Geometry& g = geometry();
  if (status == 0) status = raw_zero(raw_, kSuperBytes, g.data_offset - kSuperBytes);
  if (status == 0) status = raw_zero(raw_, g.back_offset, g.device_bytes - g.back_offset);
  if (status == 0) status = raw_flush(raw_);
  if (status == 0) status = raw_zero(raw_, 0, kSuperBytes);
  if (status == 0) status = raw_flush(raw_);
  return status < 0 ? why->set(status, "LUN %s: its virtual LUNs cannot be ended: %s (%s)",
                               raw_->name(), errno_text(status), errno_name(status))
                    : 0;
}

}  // namespace lunar
