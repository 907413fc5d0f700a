// SPDX-License-Identifier: Apache-2.0
// Growing if zeros must be written or very much must be discarded, which takes too long for the
// metadata lock. See physical_impl.h.
//
//   staged       the extents are assigned to a nameless scratch LUN of this process
//   prepare      they are zeroed, without the lock
//   take over    one change moves them to the LUN and sets its size
//
// A process that is killed meanwhile leaves a dead scratch LUN, which the next caller that needs
// space frees. A named LUN made in this way gets its name last (adopt_name).
// Threading: a session a step. May not be used on the fault path.
#include <errno.h>
#include <string.h>

#include "base/units.h"
#include "lun/volume/physical_impl.h"
#include "sys/arena.h"

namespace lunar {

using media::kEntryUsed;
using media::LunEntry;

int PhysicalLunImpl::grow_staged(uint64_t count, uint64_t bytes, OwnedLun* lun, ErrorText* why) {
  OwnedLun staged;
  int status = stage(count, &staged, why);
  if (status < 0) return status;
  status = prepare_staged(staged, count, lun->zeroed, !lun->scratch);
  if (status < 0)
    why->set(status, "LUN %s: cannot grow: %s (%s)", raw_->name(), errno_text(status),
             errno_name(status));
  else
    status = take_over(staged, bytes, lun, why);
  staged_ = kNoEntry;
  locks_.disown(staged.index);
  return status;
}

// Assigns `count` extents to a scratch LUN of this process.
int PhysicalLunImpl::stage(uint64_t count, OwnedLun* staged, ErrorText* why) {
  Session session(this, Repair::kOne, why);
  int status = session.status();
  if (status == 0) status = make_room(count, why);
  if (status < 0) return status;
  const unsigned index = add_entry(true, NewLun{}, 0);
  if (index == kNoEntry)
    return why->set(-ENOSPC, "LUN %s: has %u virtual LUNs, which is the limit; remove one",
                    raw_->name(), geometry().entry_count);
  status = locks_.own(index, true);
  if (status == 0) {
    assign(index, count);
    status = store_.commit();
    if (status < 0) locks_.disown(index);
  }
  if (status < 0)
    return why->set(status, "LUN %s: cannot grow: %s (%s)", raw_->name(), errno_text(status),
                    errno_name(status));
  staged_ = staged->index = index;
  memcpy(staged->uuid, entries()[index].uuid, sizeof staged->uuid);
  return 0;
}

// named: the LUN that gets the extents is named.
int PhysicalLunImpl::prepare_staged(const OwnedLun& staged, uint64_t count, bool zeroed,
                                    bool named) {
  const size_t bytes = round_up(count * sizeof(uint32_t), 4096);
  auto* list = static_cast<uint32_t*>(map_private(bytes, ForkPolicy::kDontFork));
  if (!list) return -ENOMEM;
  int status;
  {
    Session session(this, Repair::kOne, nullptr);
    status = session.status();
    ErrorText why;
    if (status == 0) status = ours(staged, &why);
    if (status == 0) {
      order(staged.index);
      memcpy(list, order_, count * sizeof(uint32_t));
    }
  }
  if (status == 0) status = prepare_extents(list, count, zeroed, named);
  unmap_private(list, bytes);
  return status;
}

int PhysicalLunImpl::take_over(const OwnedLun& staged, uint64_t bytes, OwnedLun* lun,
                               ErrorText* why) {
  Session session(this, Repair::kOne, why);
  int status = session.status();
  if (status == 0) status = ours(*lun, why);
  if (status == 0) status = ours(staged, why);
  if (status < 0) return status;
  LunEntry& entry = entries()[lun->index];
  if (bytes > entry.size_bytes) {
    const uint64_t need = extents_for(bytes, geometry()), given = order(staged.index);
    status = zero_slack(lun->index, bytes);
    const uint64_t total = order(staged.index);
    for (uint64_t i = 0; i < total && entry.extents < need; ++i)
      extents()[order_[i]] = {lun->index + 1, static_cast<uint32_t>(entry.extents++)};
    if (status == 0 && entry.extents < need)  // another owner shrank it meanwhile
      return why->set(
          -EAGAIN, "LUN %s: was shrunk by another process while it grew by %lu extents; try again",
          raw_->name(), static_cast<unsigned long>(given));
    entry.size_bytes = bytes;
  }
  if (status == 0) {
    entries()[staged.index].extents = 0;
    free_entry_of(staged.index);
    status = store_.commit();
  }
  if (status < 0)
    return why->set(status, "LUN %s: cannot grow: %s (%s)", raw_->name(), errno_text(status),
                    errno_name(status));
  publish(lun);
  return 0;
}

int PhysicalLunImpl::adopt_name(const NewLun& wanted, OwnedLun* lun, ErrorText* why) {
  Session session(this, Repair::kOne, why);
  if (session.status() < 0) return session.status();
  if (find(wanted.name) != kNoEntry)
    return why->set(-EEXIST, kExistsAlready, raw_->name(), wanted.name);
  LunEntry& entry = entries()[lun->index];
  entry.flags = kEntryUsed;
  strncpy(entry.name, wanted.name, sizeof entry.name - 1);
  entry.size_bytes = wanted.size_bytes;
  const int status = store_.commit();
  if (status < 0)
    return why->set(status, "LUN %s#%s: cannot be made: %s (%s)", raw_->name(), wanted.name,
                    errno_text(status), errno_name(status));
  publish(lun);
  return 0;
}

}  // namespace lunar
