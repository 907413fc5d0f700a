// SPDX-License-Identifier: Apache-2.0
// Entries and extents: creating, growing, shrinking and freeing. See physical_impl.h.
//
// If zeros (or any content) and space are available at once, this is one change under one metadata
// lock; otherwise see physical_staging.cpp.
//
// Threading: each call is one session. May not be used on the fault path.
#include <errno.h>
#include <string.h>
#include <time.h>

#include <algorithm>

#include "base/units.h"
#include "lun/volume/physical_impl.h"
#include "superpipe/lock_holders.h"
#include "sys/arena.h"
#include "sys/file.h"

namespace lunar {
namespace {

using media::kEntryScratch;
using media::kEntryUsed;
using media::LunEntry;

constexpr uint64_t kQuickDiscardBytes = 4 * kGiB, kQuickWriteBytes = 32 * kMiB;
constexpr uint64_t kDiscardNsMax = 2'000'000'000;  // after a change, under the lock: best effort

// Calls visit(first extent, count) for each run of neighbours in list; stops at an error.
template <class Visit>
int for_each_run(const uint32_t* list, uint64_t count, Visit visit) {
  for (uint64_t i = 0; i < count;) {
    uint64_t end = i + 1;
    while (end < count && list[end] == list[end - 1] + 1) ++end;
    const int status = visit(list[i], end - i);
    if (status < 0) return status;
    i = end;
  }
  return 0;
}

}  // namespace

unsigned PhysicalLunImpl::free_entry() {
  for (unsigned i = 0; i < geometry().entry_count; ++i) {
    if (!used(i) && locks_.owned_by_any(i) == 0) return i;
  }
  return kNoEntry;
}

void PhysicalLunImpl::free_entry_of(unsigned index) {
  for (uint64_t i = 0; i < geometry().extent_count; ++i) {
    if (extents()[i].lun == index + 1) extents()[i] = {};
  }
  memset(&entries()[index], 0, sizeof(LunEntry));
}

uint64_t PhysicalLunImpl::order(unsigned index) {
  for (uint64_t i = 0; i < geometry().extent_count; ++i) {
    if (extents()[i].lun == index + 1) order_[extents()[i].position] = static_cast<uint32_t>(i);
  }
  return entries()[index].extents;
}

void PhysicalLunImpl::discard_freed(uint64_t from, uint64_t count) {
  if (!raw_->capabilities().discard || count <= from) return;
  const uint64_t start = sys::now_ns(), bytes = geometry().extent_bytes;
  (void)for_each_run(order_ + from, count - from, [&](uint32_t first, uint64_t extents) {
    if (sys::now_ns() - start > kDiscardNsMax) return -ETIME;
    raw_->release(DeviceOffset{geometry().data_offset + first * bytes}, extents * bytes);
    return 0;
  });
}

bool PhysicalLunImpl::dead(unsigned index) {
  return used(index) && (entries()[index].flags & kEntryScratch) && index != own_ &&
         index != staged_ && locks_.owned_by_any(index) == 0;
}

int PhysicalLunImpl::reclaim() {
  // Each dead LUN is freed by a change of its own, so that its extents are discarded under the same
  // lock. There are few.
  for (unsigned i = 0; i < geometry().entry_count; ++i) {
    if (!dead(i)) continue;
    const uint64_t count = order(i);
    free_entry_of(i);
    const int status = store_.commit();
    if (status < 0) return status;
    discard_freed(0, count);
  }
  return 0;
}

int PhysicalLunImpl::ours(const OwnedLun& lun, ErrorText* why) {
  if (used(lun.index) && memcmp(entries()[lun.index].uuid, lun.uuid, sizeof lun.uuid) == 0)
    return 0;
  return why->set(-ESTALE,
                  "LUN %s: virtual LUN %u belongs to another process now: its lock was lost (its "
                  "descriptor closed?); stop using it",
                  raw_->name(), lun.index);
}

int PhysicalLunImpl::make_room(uint64_t count, ErrorText* why) {
  if (count > free_extents()) {
    const int status = reclaim();
    if (status < 0)
      return why->set(status, "LUN %s: cannot free what dead processes left (%s)", raw_->name(),
                      errno_name(status));
  }
  if (count <= free_extents()) return 0;
  return why->set(
      -ENOSPC,
      "LUN %s: %s more wanted, %s remain; remove or shrink a virtual LUN (lunar lun list), or ask "
      "for less",
      raw_->name(),
      format_size(count > UINT64_MAX / geometry().extent_bytes ? UINT64_MAX / 2
                                                               : count * geometry().extent_bytes)
          .text,
      format_size(free_extents() * geometry().extent_bytes).text);
}

unsigned PhysicalLunImpl::add_entry(bool scratch, const NewLun& wanted, uint64_t size_bytes) {
  const unsigned index = free_entry();
  if (index == kNoEntry) return kNoEntry;
  LunEntry& entry = entries()[index];
  if (sys::random_bytes(entry.uuid, sizeof entry.uuid) < 0) return kNoEntry;
  entry.flags = kEntryUsed | (scratch ? kEntryScratch : 0u);
  if (!scratch) strncpy(entry.name, wanted.name, sizeof entry.name - 1);
  entry.size_bytes = size_bytes;
  entry.created_s = static_cast<uint64_t>(time(nullptr));
  entry.type = static_cast<uint32_t>(wanted.type);
  return index;
}

// Takes extents behind the LUN's last one first, so that neighbours stay neighbours, then the
// lowest.
void PhysicalLunImpl::assign(unsigned index, uint64_t count) {
  LunEntry& entry = entries()[index];
  const uint64_t total = geometry().extent_count;
  uint64_t at = 0;
  if (entry.extents) {
    for (uint64_t i = 0; i < total; ++i) {
      if (extents()[i].lun == index + 1 && extents()[i].position == entry.extents - 1) at = i + 1;
    }
  }
  for (uint64_t step = 0; step < total && count; ++step) {
    auto& extent = extents()[(at + step) % total];
    if (extent.lun) continue;
    extent = {index + 1, static_cast<uint32_t>(entry.extents++)};
    --count;
  }
}

// Zeros in a scratch LUN need not be durable, because it ends with a power loss. In a named LUN
// they are durable before the image that assigns them.
int PhysicalLunImpl::prepare_extents(const uint32_t* list, uint64_t count, bool zeroed,
                                     bool named) {
  const uint64_t bytes = geometry().extent_bytes;
  const int status = for_each_run(list, count, [&](uint32_t first, uint64_t extents) {
    const uint64_t offset = geometry().data_offset + first * bytes;
    const int err = zeroed ? raw_zero(raw_, offset, extents * bytes) : 0;
    return err < 0 ? err
                   // reserved blocks of a file also read as zeros
                   : raw_->reserve(DeviceOffset{offset}, extents * bytes);
  });
  return status < 0 || !zeroed || !named || count == 0 ? status : raw_flush(raw_);
}

// Zeros the content of a LUN's extents beyond its size, up to to_bytes, which is left from before
// it shrank.
int PhysicalLunImpl::zero_slack(unsigned index, uint64_t to_bytes) {
  const LunEntry& entry = entries()[index];
  const uint64_t bytes = geometry().extent_bytes, end = std::min(entry.extents * bytes, to_bytes);
  if (end <= entry.size_bytes) return 0;
  order(index);
  for (uint64_t at = entry.size_bytes; at < end;) {
    const uint64_t within = at % bytes, length = std::min(bytes - within, end - at);
    const int status =
        raw_zero(raw_, geometry().data_offset + order_[at / bytes] * bytes + within, length);
    if (status < 0) return status;
    at += length;
  }
  return is_named(index) ? raw_flush(raw_) : 0;
}

bool PhysicalLunImpl::is_quick(uint64_t count, bool zeroed) const {
  if (!zeroed || count == 0) return true;
  const uint64_t bytes = count * geometry().extent_bytes,
                 sixteenth = geometry().extent_count * geometry().extent_bytes / 16;
  if (raw_->capabilities().discard) return bytes <= kQuickDiscardBytes;
  return bytes <= std::min(kQuickWriteBytes, sixteenth);
}

void PhysicalLunImpl::publish(OwnedLun* lun) {
  const LunEntry& entry = entries()[lun->index];
  for (uint64_t i = 0; i < geometry().extent_count; ++i) {
    if (extents()[i].lun != lun->index + 1) continue;
    std::atomic<uint32_t>& place = lun->map[extents()[i].position];
    if (place.load(std::memory_order_relaxed) != i)
      place.store(static_cast<uint32_t>(i), std::memory_order_relaxed);
  }
  memcpy(lun->uuid, entry.uuid, sizeof lun->uuid);
  lun->scratch = (entry.flags & kEntryScratch) != 0;
  lun->size_bytes = entry.size_bytes;
  lun->extents = entry.extents;
  lun->limit_bytes = (entry.extents + free_extents()) * geometry().extent_bytes;
  describe(lun->index, &lun->info);
  lun->info.in_use = true;
}

int PhysicalLunImpl::create(const NewLun& wanted, OwnedLun* lun, ErrorText* why) {
  const uint64_t count = extents_for(wanted.size_bytes, geometry());
  if (is_quick(count, lun->zeroed)) return create_quick(wanted, lun, why);
  // The LUN is made without name and size, and gets both after its zeros.
  NewLun nameless = wanted;
  nameless.name = "";
  nameless.size_bytes = 0;
  const bool named = *wanted.name != '\0';
  if (named) {
    const Session session(this, Repair::kOne, why);
    if (session.status() < 0) return session.status();
    if (find(wanted.name) != kNoEntry)
      return why->set(-EEXIST, kExistsAlready, raw_->name(), wanted.name);
  }
  int status = create_quick(nameless, lun, why);
  if (status == 0) status = grow(wanted.size_bytes, lun, why);
  if (status == 0 && named && lun->zeroed) {  // its space was a scratch LUN's
    status = raw_flush(raw_);
    if (status < 0)
      why->set(status, "LUN %s#%s: cannot be made: %s (%s)", raw_->name(), wanted.name,
               errno_text(status), errno_name(status));
  }
  if (status == 0 && named) status = adopt_name(wanted, lun, why);
  if (status < 0 && lun->index != kNoEntry) {
    own_ = kNoEntry;
    locks_.disown(lun->index);  // it is dead now; the next caller that needs space frees it
    lun->index = kNoEntry;
  }
  return status;
}

int PhysicalLunImpl::create_quick(const NewLun& wanted, OwnedLun* lun, ErrorText* why) {
  Session session(this, Repair::kOne, why);
  if (session.status() < 0) return session.status();
  const bool scratch = *wanted.name == '\0';
  if (!scratch && find(wanted.name) != kNoEntry)
    return why->set(-EEXIST, kExistsAlready, raw_->name(), wanted.name);
  const uint64_t count = extents_for(wanted.size_bytes, geometry());
  int status = make_room(count, why);
  if (status < 0) return status;
  if (free_entry() == kNoEntry) (void)reclaim();
  const unsigned index = add_entry(scratch, wanted, wanted.size_bytes);
  if (index == kNoEntry)
    return why->set(-ENOSPC, "LUN %s: has %u virtual LUNs, which is the limit; remove one",
                    raw_->name(), geometry().entry_count);
  status = locks_.own(index, lun->exclusive);
  if (status == 0) {
    assign(index, count);
    order(index);
    status = prepare_extents(order_, count, lun->zeroed, !scratch);
    if (status == 0) status = store_.commit();
    if (status < 0) locks_.disown(index);
  }
  if (status < 0)
    return why->set(status, "LUN %s: no virtual LUN can be made: %s (%s)", raw_->name(),
                    errno_text(status), errno_name(status));
  own_ = lun->index = index;
  publish(lun);
  return 0;
}

int PhysicalLunImpl::open_named(const char* name, LunType type, OwnedLun* lun, ErrorText* why) {
  LockWait wait(raw_->name());
  unsigned index = kNoEntry;
  int status;
  do status = try_named(name, type, lun, &index, why);
  while (status == -EBUSY &&
         wait.pause([&] { return index == kNoEntry || locks_.any_process_owns(index); }));
  return status;
}

// *entry: the index of the LUN's entry, also on -EBUSY.
int PhysicalLunImpl::try_named(const char* name, LunType type, OwnedLun* lun, unsigned* entry,
                               ErrorText* why) {
  Session session(this, to_look(), why);
  if (session.status() < 0) return session.status();
  const unsigned index = *entry = find(name);
  if (index == kNoEntry)
    return why->set(
        -ENOENT,
        "LUN %s: has no virtual LUN %s; see `lunar lun list`, or make it (lunar lun create)",
        raw_->name(), name);
  if (entries()[index].type != static_cast<uint32_t>(type))
    return why->set(-EMEDIUMTYPE, "LUN %s#%s: is %s, not %s; give another one", raw_->name(), name,
                    lun_type_text(static_cast<LunType>(entries()[index].type)),
                    lun_type_text(type));
  if (entries()[index].cipher_id != 0)
    return why->set(-EOPNOTSUPP,
                    "LUN %s#%s: an earlier version has encrypted it (cipher %u), which Lunar does "
                    "no longer; read it by that version, or remove it",
                    raw_->name(), name, entries()[index].cipher_id);
  const int others = lun->exclusive ? locks_.owned(index) : locks_.owned_exclusively(index);
  if (others > 0)
    return why->set(-EBUSY, "LUN %s#%s: in use by another process%s; wait for it", raw_->name(),
                    name, lun->exclusive ? "" : " exclusively");
  int status = others;
  if (status == 0) status = locks_.own(index, lun->exclusive);
  if (status < 0)
    return why->set(status, "LUN %s#%s: cannot be locked (%s)", raw_->name(), name,
                    errno_name(status));
  own_ = lun->index = index;
  publish(lun);
  return 0;
}

int PhysicalLunImpl::grow(uint64_t bytes, OwnedLun* lun, ErrorText* why) {
  uint64_t more = 0;
  {
    Session session(this, Repair::kOne, why);
    int status = session.status();
    if (status == 0) status = ours(*lun, why);
    if (status < 0) return status;
    LunEntry& entry = entries()[lun->index];
    if (bytes <= entry.size_bytes) {
      publish(lun);  // another owner has grown it
      return 0;
    }
    const uint64_t need = extents_for(bytes, geometry()), have = entry.extents;
    more = need > have ? need - have : 0;
    status = make_room(more, why);
    if (status < 0) return status;
    if (is_quick(more, lun->zeroed)) {
      status = lun->zeroed ? zero_slack(lun->index, bytes) : 0;
      if (status == 0) {
        assign(lun->index, more);
        order(lun->index);
        status = prepare_extents(order_ + have, more, lun->zeroed, is_named(lun->index));
      }
      if (status == 0) {
        entry.size_bytes = bytes;
        status = store_.commit();
      }
      if (status == 0) publish(lun);
      return status < 0 ? why->set(status, "LUN %s: cannot grow: %s (%s)", raw_->name(),
                                   errno_text(status), errno_name(status))
                        : 0;
    }
  }
  return grow_staged(more, bytes, lun, why);
}

int PhysicalLunImpl::shrink(uint64_t bytes, OwnedLun* lun, ErrorText* why) {
  Session session(this, Repair::kOne, why);
  int status = session.status();
  if (status == 0) status = ours(*lun, why);
  if (status < 0) return status;
  int others = locks_.owned(lun->index);
  if (others == 0) others = locks_.used(lun->index);
  if (others != 0)
    return why->set(others < 0 ? others : -EBUSY,
                    "LUN %s: other processes have it open; it can shrink when they are gone",
                    raw_->name());
  LunEntry& entry = entries()[lun->index];
  const uint64_t count = order(lun->index), keep = extents_for(bytes, geometry());
  for (uint64_t i = keep; i < count; ++i) extents()[order_[i]] = {};
  if (keep < count) entry.extents = keep;
  if (bytes < entry.size_bytes) entry.size_bytes = bytes;
  status = store_.commit();
  if (status < 0)
    return why->set(status, "LUN %s: cannot shrink: %s (%s)", raw_->name(), errno_text(status),
                    errno_name(status));
  discard_freed(keep, count);
  publish(lun);
  return 0;
}

int PhysicalLunImpl::refresh(OwnedLun* lun) {
  Session session(this, to_look(), nullptr);
  ErrorText why;
  int status = session.status();
  if (status == 0) status = ours(*lun, &why);
  if (status == 0) publish(lun);
  return status;
}

int PhysicalLunImpl::free_bytes(uint64_t* out) {
  Session session(this, to_look(), nullptr);
  if (session.status() < 0) return session.status();
  const int status = looks_ ? 0 : reclaim();
  if (status == 0) *out = (free_extents() + dead_extents()) * geometry().extent_bytes;
  return status;
}

void PhysicalLunImpl::abandon(const OwnedLun& lun) {
  constexpr int kTries = 5;
  // A ring that is being torn down holds the file for some milliseconds.
  constexpr uint64_t kPauseNs = 4'000'000;
  own_ = kNoEntry;
  locks_.part();
  if (locks_.renew() < 0) return;  // the next caller that needs space finds it without an owner
  for (int i = 0; i < kTries && locks_.owned(lun.index) != 0; ++i) sys::sleep_ns(kPauseNs);
  Session session(this, Repair::kOne, nullptr);
  ErrorText why;
  if (session.status() == 0 && ours(lun, &why) == 0 && locks_.owned(lun.index) == 0)
    (void)reclaim();
}

}  // namespace lunar
