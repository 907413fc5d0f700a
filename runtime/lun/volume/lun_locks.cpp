// SPDX-License-Identifier: Apache-2.0
// Locks of a physical LUN: see lun_locks.h.
// Threading: the caller locks. May not be used on the fault path.
#include "lun/volume/lun_locks.h"

#include <errno.h>

#include <algorithm>

#include "lun/volume/lock_fds.h"
#include "lun/volume/physical_lun.h"
#include "superpipe/device_files.h"
#include "superpipe/lock_holders.h"
#include "sys/file.h"
#include "sys/memory_copy.h"
#include "sys/proc.h"
#include "sys/thread.h"

namespace lunar {
namespace {

constexpr uint64_t kMetadata = owner_bytes::kFirstLunByte, kOwners = kMetadata + 64,
                   kUsers = kMetadata + 4096;
constexpr uint64_t kWaitMaxNs = 10'000'000'000;
constexpr uint64_t kPauseMinNs = 50'000, kPauseMaxNs = 4'000'000;

constexpr uint64_t owner_byte(unsigned index) { return kOwners + 2 * uint64_t{index}; }
constexpr uint64_t exclusive_byte(unsigned index) { return owner_byte(index) + 1; }
constexpr uint64_t user_byte(unsigned index) { return kUsers + index; }
static_assert(owner_byte(kVirtualLunsMax) <= kUsers);

}  // namespace

void LunLocks::init(Device* device) {
  device_ = device;
  opener_ = sys::memory_copy();
}

// Opens new descriptions of all files that the locks are on.
int LunLocks::open_metadata() {
  metadata_count_ = 0;
  own_files_ = true;
  for (unsigned i = 0; i < device_->lock_count(); ++i) {
    const sys::MakingDescriptor making;
    const int fd = sys::open_again(device_->fd(i));
    if (fd < 0) {
      close_metadata();
      return fd;
    }
    metadata_fd_[metadata_count_++] = sys::move_high(fd);
    if (const int noted = register_lock_fd(metadata_fd_[i]); noted < 0) {
      close_metadata();
      return noted;
    }
  }
  return 0;
}

void LunLocks::close_metadata() {
  for (; metadata_count_ > 0; --metadata_count_) {
    if (!own_files_) continue;
    const sys::MakingDescriptor ending;
    unregister_lock_fd(metadata_fd_[metadata_count_ - 1]);
    sys::close_file(metadata_fd_[metadata_count_ - 1]);
  }
  own_files_ = false;
}

int LunLocks::lock_metadata(bool shared, ErrorText* why) {
  if (none()) return 0;
  if (const int opened = open_metadata(); opened < 0) {
    if (sys::memory_copy() != opener_)
      return why->set(
          -EACCES,
          "LUN %s: a forked child can change it only where /proc/self/fd can be opened (%s)",
          device_->name(), errno_name(opened));
    for (; metadata_count_ < device_->lock_count(); ++metadata_count_)
      metadata_fd_[metadata_count_] = device_->fd(metadata_count_);
  }
  const uint64_t start = sys::now_ns();
  uint64_t pause = kPauseMinNs;
  int status;
  const sys::RangeLock kind = shared ? sys::RangeLock::kShared : sys::RangeLock::kExclusive;
  for (;;) {
    status = files_lock(metadata_fd_, metadata_count_, kind, kMetadata, 1);
    if (status != -EAGAIN && status != -EINTR) break;
    if (sys::now_ns() - start > kWaitMaxNs) break;
    sys::sleep_ns(pause);
    pause = std::min(pause * 2, kPauseMaxNs);
  }
  if (status == 0) return 0;
  close_metadata();
  if (status == -EAGAIN || status == -EINTR)
    return why->set(-EBUSY,
                    "LUN %s: another process has been changing its metadata for 10 s; see who "
                    "(lsof, /proc/locks), try again",
                    device_->name());
  if (status == -EBADF)
    return why->set(-EROFS, "LUN %s: open for reading only; open it for writing", device_->name());
  return why->set(status, "LUN %s: cannot be locked (%s); its file system must know file locks",
                  device_->name(), errno_name(status));
}

void LunLocks::unlock_metadata() {
  if (metadata_count_ == 0) return;
  (void)files_lock(metadata_fd_, metadata_count_, sys::RangeLock::kNone, kMetadata, 1);
  close_metadata();
}

int LunLocks::alone() {
  if (none()) return 1;
  const int others = device_locked(device_, owner_bytes::kPartsByte, 1);
  return others < 0 ? others : !others;
}

int LunLocks::own(unsigned index, bool exclusive) {
  const int status =
      device_lock(device_, sys::RangeLock::kShared, owner_byte(index), exclusive ? 2 : 1);
  return status == -EAGAIN ? -EBUSY : status;
}

int LunLocks::share_lock(int fd, unsigned index, bool exclusive) {
  const int status =
      sys::lock_range(fd, sys::RangeLock::kShared, owner_byte(index), exclusive ? 2 : 1);
  return status == -EAGAIN ? -EBUSY : status;
}

void LunLocks::disown(unsigned index) {
  (void)device_lock(device_, sys::RangeLock::kNone, owner_byte(index), 2);
}

int LunLocks::owned(unsigned index) { return device_locked(device_, owner_byte(index), 1); }
int LunLocks::owned_exclusively(unsigned index) {
  return device_locked(device_, exclusive_byte(index), 1);
}

bool LunLocks::any_process_owns(unsigned index) const {
  int fds[kLockFilesMax];
  unsigned count = 0;
  for (; count < device_->lock_count() && count < kLockFilesMax; ++count)
    fds[count] = device_->fd(count);
  const LockedBytes owners = {owner_byte(index), 2};
  return any_process_locks(fds, count, &owners, 1);
}

int LunLocks::owned_by_any(unsigned index) {
  if (!own_files_ || metadata_count_ == 0) return owned(index);
  return files_locked(metadata_fd_, metadata_count_, owner_byte(index), 1);
}

int LunLocks::join(unsigned index) {
  if (none() || (user_fd_ >= 0 && user_ == sys::memory_copy())) return 0;
  const sys::MakingDescriptor making;
  const int opened = sys::open_again(device_->fd(0));
  if (opened < 0) return opened;
  const int fd = sys::move_high(opened);
  int status = register_lock_fd(fd);
  if (status == 0) {
    status = sys::lock_range(fd, sys::RangeLock::kShared, user_byte(index), 1);
    if (status < 0) unregister_lock_fd(fd);
  }
  if (status < 0) {
    sys::close_file(fd);
    return status;
  }
  user_fd_ = fd;
  user_ = sys::memory_copy();
  return 0;
}

void LunLocks::part() {
  if (user_fd_ < 0 || user_ != sys::memory_copy()) return;
  const sys::MakingDescriptor ending;
  unregister_lock_fd(user_fd_);
  sys::close_file(user_fd_);
  user_fd_ = -1;
}

int LunLocks::used(unsigned index) {
  if (none()) return 0;
  const bool joined = user_fd_ >= 0 && user_ == sys::memory_copy();
  return sys::range_locked(joined ? user_fd_ : device_->fd(0), user_byte(index), 1);
}

int LunLocks::renew() {
  const sys::MakingDescriptor making;
  int fresh[kLockFilesMax];
  unsigned count = 0;
  int status = 0;
  for (; count < device_->lock_count() && status == 0; ++count) {
    fresh[count] = sys::open_again(device_->fd(count));
    if (fresh[count] < 0) {
      status = fresh[count];
      break;
    }
    fresh[count] = sys::move_high(fresh[count]);
    status = device_->share_lock(count, fresh[count]);
  }
  for (unsigned i = 0; i < count; ++i) {
    const int old = device_->fd(i);
    if (status == 0) {
      device_->reopen(i, fresh[i]);
      if (sys::in_program_files() && sys::is_own_descriptor(old)) {
        sys::note_own_descriptor(old, false);
        sys::note_own_descriptor(fresh[i], true);
      }
    }
    sys::close_file(status == 0 ? old : fresh[i]);
  }
  return status;
}

}  // namespace lunar
