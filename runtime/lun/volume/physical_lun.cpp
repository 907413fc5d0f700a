// SPDX-License-Identifier: Apache-2.0
// Queries of an open physical LUN. See physical_lun.h; its changes are in physical_space.cpp.
// Threading: any, under the session's locks. May not be used on the fault path.
#include <errno.h>
#include <string.h>

#include <bit>

#include "base/format.h"
#include "base/units.h"
#include "lun/volume/physical_impl.h"
#include "sys/arena.h"
#include "sys/memory_copy.h"

namespace lunar {

PhysicalLunImpl::Session::Session(PhysicalLunImpl* lun, Repair repair, ErrorText* why) : lun_(lun) {
  const uint32_t copy = sys::memory_copy();
  if (lun->copy_.exchange(copy) != copy)
    lun->mutex_.reset_in_child();  // a thread of the parent may have held it
  lun->mutex_.lock();
  ErrorText unsaid;
  if (!why) why = &unsaid;
  if (lun->looks_ && repair != Repair::kNo) {
    status_ = why->set(-EROFS, "LUN %s: open for looking only", lun->raw_->name());
    return;
  }
  status_ = lun->locks_.lock_metadata(lun->looks_, why);
  if (status_ < 0) return;
  status_ = lun->store_.load(repair, &report_);
  lun->repaired_ |= report_.repaired != 0;
  if (status_ < 0) (void)lun->explain(status_, report_, "stop using it", why);
}

// Explains an error of store_.load().
int PhysicalLunImpl::explain(int err, const SlotReport& report, const char* advice,
                             ErrorText* why) {
  const char* name = raw_->name();
  if (err == -EPROTONOSUPPORT)
    return why->set(
        err,
        "LUN %s: its metadata uses features 0x%lx that this Lunar does not know; use a newer one",
        name, static_cast<unsigned long>(report.unknown));
  if (err == -EBADMSG)
    return why->set(err, "LUN %s: its metadata is damaged beyond its copies (%s); %s", name,
                    *report.what ? report.what : "no image is sound", advice);
  return why->set(
      err, "LUN %s: cannot read or repair its metadata: %s (%s); see the kernel log for the device",
      name, errno_text(err), errno_name(err));
}

PhysicalLunImpl::Session::~Session() {
  lun_->locks_.unlock_metadata();
  lun_->mutex_.unlock();
}

unsigned PhysicalLunImpl::find(const char* name) {
  for (unsigned i = 0; i < geometry().entry_count; ++i) {
    if (used(i) && entries()[i].name[0] && strncmp(entries()[i].name, name, kLunNameBytes) == 0)
      return i;
  }
  return kNoEntry;
}

uint64_t PhysicalLunImpl::dead_extents() {
  uint64_t out = 0;
  for (unsigned i = 0; i < geometry().entry_count; ++i) {
    if (dead(i)) out += entries()[i].extents;
  }
  return out;
}

uint64_t PhysicalLunImpl::free_extents() {
  uint64_t owned = 0;
  for (unsigned i = 0; i < geometry().entry_count; ++i) owned += entries()[i].extents;
  return geometry().extent_count - owned;
}

void PhysicalLunImpl::describe(unsigned index, VirtualLunInfo* out) {
  const media::LunEntry& entry = entries()[index];
  *out = {};
  out->index = index;
  memcpy(out->name, entry.name, sizeof out->name);
  memcpy(out->uuid, entry.uuid, sizeof out->uuid);
  out->size_bytes = entry.size_bytes;
  out->extents = entry.extents;
  out->created_s = entry.created_s;
  out->cipher_id = entry.cipher_id;
  out->type = static_cast<LunType>(entry.type);
  out->in_use = index == own_ || locks_.owned_by_any(index) != 0;  // unknown counts as in use
}

int PhysicalLunImpl::info(PhysicalLunInfo* out) {
  *out = {};
  memcpy(out->uuid, store_.uuid(), sizeof out->uuid);
  out->version = media::kVersion;
  out->device_bytes = geometry().device_bytes;
  out->extent_bytes = geometry().extent_bytes;
  out->usable_bytes = geometry().extent_count * geometry().extent_bytes;
  Session session(this, to_look(), nullptr);
  if (session.status() < 0) return session.status();
  if (!looks_) (void)reclaim();
  if (!store_.loaded()) return -EIO;
  out->free_bytes = (free_extents() + dead_extents()) * geometry().extent_bytes;
  out->sequence = store_.sequence();
  for (unsigned i = 0; i < geometry().entry_count; ++i) out->luns += used(i) && !dead(i);
  out->repaired = repaired_;
  out->damaged = damaged_;
  out->features = store_.image().header().features;
  return 0;
}

int PhysicalLunImpl::list(VirtualLunInfo* out, unsigned max, unsigned first) {
  Session session(this, to_look(), nullptr);
  if (session.status() < 0) return session.status();
  unsigned n = 0;
  for (unsigned i = first; i < geometry().entry_count && n < max; ++i) {
    if (used(i) && !(looks_ && dead(i))) describe(i, &out[n++]);
  }
  return static_cast<int>(n);
}

int PhysicalLunImpl::remove(const char* name, ErrorText* why) {
  if (!lun_name_legal(name))
    return why->set(-EINVAL,
                    "LUN %s: '%s' is not a name of a virtual LUN; 1 to 31 of A-Z a-z 0-9 . _ -",
                    raw_->name(), name);
  Session session(this, Repair::kOne, why);
  if (session.status() < 0) return session.status();
  const unsigned index = find(name);
  if (index == kNoEntry)
    return why->set(-ENOENT, "LUN %s: has no virtual LUN %s; see `lunar lun list`", raw_->name(),
                    name);
  const int others = index == own_ ? 1 : locks_.owned(index);
  if (others != 0)
    return why->set(others < 0 ? others : -EBUSY,
                    "LUN %s#%s: in use; end the process that has it open first", raw_->name(),
                    name);
  const uint64_t count = order(index);
  free_entry_of(index);
  const int status = store_.commit();
  if (status < 0)
    return why->set(status, "LUN %s#%s: cannot be removed: %s (%s)", raw_->name(), name,
                    errno_text(status), errno_name(status));
  discard_freed(0, count);
  return 0;
}

int PhysicalLunImpl::check(bool repair, CheckReport* report) {
  const auto tell = [&](const char* format, auto... values) {
    if (!report->line) return;
    char text[256];
    format_to(text, sizeof text, format, values...);
    report->line(report->argument, text);
  };
  const char* const names[] = {"front A", "front B", "back A", "back B"};
  if (repair && looks_) return -EROFS;
  ErrorText why;
  Session session(this, Repair::kNo, &why);
  const SlotReport seen = session.report();
  for (unsigned i = 0; i < 4; ++i) {
    if (!(seen.bad >> i & 1)) continue;
    ++report->problems;
    tell("metadata copy %s: %s", names[i], seen.what);
  }
  if (session.status() == -EBADMSG) {
    report->problems += report->problems == 0;
    tell("fatal: %s", why.text);
    count_extents(report);
    return 0;
  }
  if (session.status() < 0) return session.status();
  if (repaired_) {
    ++report->problems;
    ++report->repaired;
    tell("a damaged copy was found and written again when it was opened");
  }
  int status = check_super(repair, report);
  if (status < 0) return status;
  if (repair && seen.bad) {
    SlotReport repaired;
    status = store_.load(Repair::kProven, &repaired);
    if (status < 0) return status;
    report->repaired += repaired.repaired;
  }
  for (unsigned i = 0; i < geometry().entry_count; ++i) {
    if (!dead(i)) continue;
    const auto extents = static_cast<unsigned>(entries()[i].extents);
    tell("scratch LUN %u: its owners are gone; its %u extent%s free", i, extents,
         extents == 1 ? " is" : "s are");
    report->repaired += repair;
  }
  if (repair && !seen.bad) status = reclaim();
  count_extents(report);
  const uint64_t dead = dead_extents();  // count as free, as in info() and list()
  report->extents_used -= dead;
  report->extents_free += dead;
  return status;
}

void PhysicalLunImpl::count_extents(CheckReport* report) {
  ImageCensus census;
  store_.census(&census);
  report->extents_free = census.free;
  report->extents_used = census.used;
  report->extents_lost = census.lost;
  report->extents_double = census.twice;
  report->extents_missing = census.missing;
}

// Compares the two superblocks with the geometry in use, after the image in memory was found sound.
int PhysicalLunImpl::check_super(bool repair, CheckReport* report) {
  media::Superblock expected, *seen = nullptr;
  superblock_make(geometry(), store_.uuid(), created_s_, &expected);
  auto* memory = static_cast<char*>(map_private(2 * sizeof expected, ForkPolicy::kDontFork));
  if (!memory) return -ENOMEM;
  seen = reinterpret_cast<media::Superblock*>(memory);
  auto* fresh = reinterpret_cast<media::Superblock*>(memory + sizeof expected);
  memcpy(fresh, &expected, sizeof expected);
  int status = 0;
  const uint64_t places[] = {0, geometry().backup_offset()};
  for (unsigned i = 0; i < 2 && status == 0; ++i) {
    const int read = raw_io(raw_, Op::kRead, places[i], seen, sizeof expected);
    if (read == 0 && memcmp(seen, fresh, sizeof expected) == 0) continue;
    ++report->problems;
    if (report->line)
      report->line(report->argument,
                   i ? "the superblock's copy at the end is damaged" : "the superblock is damaged");
    if (!repair) continue;
    status = raw_io(raw_, Op::kWrite, places[i], fresh, sizeof expected);
    if (status == 0) status = raw_flush(raw_);
    report->repaired += status == 0;
  }
  unmap_private(memory, 2 * sizeof expected);
  return status;
}

}  // namespace lunar
