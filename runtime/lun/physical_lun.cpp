// SPDX-License-Identifier: Apache-2.0
// A physical LUN that is open: what it is asked. See physical_lun.h; its changes are in physical_space.cpp.
// Threading: any, under the session's locks. May not be used on the fault path.
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include <bit>

#include "base/format.h"
#include "base/arena.h"
#include "base/units.h"
#include "lun/physical_impl.h"

namespace lunar {

PhysicalLunImpl::Session::Session(PhysicalLunImpl* lun, Mend mend, ErrorText* why) : lun_(lun) {
  const int pid = getpid();
  if (lun->pid_.exchange(pid) != pid) lun->mutex_.reset_in_child();   // a thread of the parent's may have held it
  lun->mutex_.lock();
  ErrorText unsaid;
  if (!why) why = &unsaid;
  status_ = lun->locks_.lock_metadata(why);
  if (status_ < 0) return;
  status_ = lun->store_.load(mend, &report_);
  lun->repaired_ |= report_.mended != 0;
  if (status_ == -EBADMSG)
    why->set(status_, "LUN %s: its metadata is damaged beyond its copies (%s); stop using it", lun->raw_->name(), report_.what);
  else if (status_ < 0)
    why->set(status_, "LUN %s: cannot read or mend its metadata: %s (%s)", lun->raw_->name(), errno_text(status_), errno_name(status_));
}

PhysicalLunImpl::Session::~Session() {
  lun_->locks_.unlock_metadata();
  lun_->mutex_.unlock();
}

unsigned PhysicalLunImpl::find(const char* name) {
  for (unsigned i = 0; i < geometry().entry_count; ++i) {
    if (used(i) && entries()[i].name[0] && strncmp(entries()[i].name, name, kLunNameBytes) == 0) return i;
  }
  return kNoEntry;
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
  out->in_use = index == own_ || locks_.owned_by_any(index) != 0;   // unknown counts as in use
}

int PhysicalLunImpl::info(PhysicalLunInfo* out) {
  Session session(this, Mend::kOne, nullptr);
  if (session.status() < 0) return session.status();
  (void)reclaim();
  *out = {};
  memcpy(out->uuid, store_.uuid(), sizeof out->uuid);
  out->version = media::kVersion;
  out->device_bytes = geometry().device_bytes;
  out->extent_bytes = geometry().extent_bytes;
  out->usable_bytes = geometry().extent_count * geometry().extent_bytes;
  out->free_bytes = free_extents() * geometry().extent_bytes;
  out->sequence = store_.sequence();
  for (unsigned i = 0; i < geometry().entry_count; ++i) out->luns += used(i);
  out->repaired = repaired_;
  return store_.loaded() ? 0 : -EIO;
}

int PhysicalLunImpl::list(VirtualLunInfo* out, unsigned max, unsigned first) {
  Session session(this, Mend::kOne, nullptr);
  if (session.status() < 0) return session.status();
  unsigned n = 0;
  for (unsigned i = first; i < geometry().entry_count && n < max; ++i) {
    if (used(i)) describe(i, &out[n++]);
  }
  return static_cast<int>(n);
}

int PhysicalLunImpl::remove(const char* name, ErrorText* why) {
  if (!lun_name_legal(name)) return why->set(-EINVAL, "LUN %s: '%s' is no name of a virtual LUN; 1 to 31 of A-Z a-z 0-9 . _ -", raw_->name(), name);
  Session session(this, Mend::kOne, why);
  if (session.status() < 0) return session.status();
  const unsigned index = find(name);
  if (index == kNoEntry) return why->set(-ENOENT, "LUN %s: has no virtual LUN %s; see `lunar lun list`", raw_->name(), name);
  const int others = index == own_ ? 1 : locks_.owned(index);
  if (others != 0) return why->set(others < 0 ? others : -EBUSY, "LUN %s#%s: in use; end who has it open first", raw_->name(), name);
  const uint64_t count = order(index);
  free_entry_of(index);
  const int status = store_.commit();
  if (status < 0) return why->set(status, "LUN %s#%s: cannot be removed: %s (%s)", raw_->name(), name, errno_text(status), errno_name(status));
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
  ErrorText why;
  Session session(this, Mend::kNo, &why);
  const SlotReport seen = session.report();
  for (unsigned i = 0; i < 4; ++i) {
    if (!(seen.bad >> i & 1)) continue;
    ++report->problems;
    tell("metadata copy %s: %s", names[i], seen.what);
  }
  if (session.status() == -EBADMSG) {
    report->problems += report->problems == 0;
    tell("fatal: %s", why.text);
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
    SlotReport mended;
    status = store_.load(Mend::kProven, &mended);
    if (status < 0) return status;
    report->repaired += mended.mended;
  }
  for (unsigned i = 0; i < geometry().entry_count; ++i) {
    if (!dead(i)) continue;
    tell("scratch LUN %u: its owners are gone; its %u extents are free for who needs them", i, static_cast<unsigned>(entries()[i].extents));
    report->repaired += repair;
  }
  if (repair && !seen.bad) status = reclaim();
  report->extents_free = free_extents();
  report->extents_used = geometry().extent_count - report->extents_free;
  return status;
}

// The image in memory was found sound; this holds the two superblocks against what is used.
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
    if (report->line) report->line(report->argument, i ? "the superblock's copy at the end is damaged" : "the superblock is damaged");
    if (!repair) continue;
    status = raw_io(raw_, Op::kWrite, places[i], fresh, sizeof expected);
    if (status == 0) status = raw_flush(raw_);
    report->repaired += status == 0;
  }
  unmap_private(memory, 2 * sizeof expected);
  return status;
}

}  // namespace lunar
