// SPDX-License-Identifier: Apache-2.0
// Locks of a physical LUN: see lun_locks.h.
// Threading: the caller locks. May not be used on the fault path.
#include "lun/lun_locks.h"

#include <errno.h>
#include <pthread.h>
#include <unistd.h>

#include <atomic>

#include "base/host_guard.h"
#include "sys/file.h"
#include "sys/thread.h"

namespace lunar {
namespace {

constexpr uint64_t kBase = uint64_t{1} << 62;
constexpr uint64_t kMetadata = kBase, kPresence = kBase + 1, kOwners = kBase + 64;
constexpr uint64_t kWaitMaxNs = 10'000'000'000;
constexpr uint64_t kPauseMinNs = 50'000, kPauseMaxNs = 4'000'000;

constexpr uint64_t owner_byte(unsigned index) { return kOwners + 2 * uint64_t{index}; }
constexpr uint64_t exclusive_byte(unsigned index) { return owner_byte(index) + 1; }

// Descriptors with a metadata lock, for children forked while it is held. Only those of the program's own descriptor table,
// which is the one a child gets.
std::atomic<int> held_here[8];   // descriptor + 1; 0: free

void close_copies_in_child() {
  for (std::atomic<int>& held : held_here) {
    const int fd = held.exchange(0) - 1;
    if (fd >= 0) sys::close_file(fd);
  }
}

void note_held(int fd) {
  static std::atomic<bool> registered{false};
  if (!sys::in_program_files()) return;
  if (!registered.exchange(true)) {
    const HostGuard guard;
    (void)pthread_atfork(nullptr, nullptr, close_copies_in_child);
  }
  for (std::atomic<int>& held : held_here) {
    int none = 0;
    if (held.compare_exchange_strong(none, fd + 1)) return;
  }
}

void forget_held(int fd) {
  for (std::atomic<int>& held : held_here) {
    int mine = fd + 1;
    if (held.compare_exchange_strong(mine, 0)) return;
  }
}

}  // namespace

void LunLocks::init(Device* device) {
  device_ = device;
  opener_ = getpid();
}

int LunLocks::lock_metadata(ErrorText* why) {
  if (none()) return 0;
  metadata_fd_ = sys::open_again(fd());
  own_file_ = metadata_fd_ >= 0;
  if (own_file_) {
    metadata_fd_ = sys::move_high(metadata_fd_);
    note_held(metadata_fd_);
  } else if (getpid() != opener_) {
    return why->set(-EACCES, "LUN %s: a forked child can change it only where /proc/self/fd can be opened (%s)", device_->name(),
                    errno_name(metadata_fd_));
  } else {
    metadata_fd_ = fd();
  }
  const uint64_t start = sys::now_ns();
  uint64_t pause = kPauseMinNs;
  int status;
  while ((status = sys::lock_range(metadata_fd_, sys::RangeLock::kExclusive, kMetadata, 1)) == -EAGAIN || status == -EINTR) {
    if (sys::now_ns() - start > kWaitMaxNs) break;
    sys::sleep_ns(pause);
    pause = pause * 2 < kPauseMaxNs ? pause * 2 : kPauseMaxNs;
  }
  if (status == 0) return 0;
  if (own_file_) {
    forget_held(metadata_fd_);
    sys::close_file(metadata_fd_);
  }
  metadata_fd_ = -1;
  if (status == -EAGAIN || status == -EINTR)
    return why->set(-EBUSY, "LUN %s: another process has been changing its metadata for 10 s; see who (lsof, /proc/locks), try again",
                    device_->name());
  if (status == -EBADF)
    return why->set(-EROFS, "LUN %s: open for reading only; open it for writing", device_->name());
  return why->set(status, "LUN %s: cannot be locked (%s); its file system must know file locks", device_->name(), errno_name(status));
}

void LunLocks::unlock_metadata() {
  if (metadata_fd_ < 0) return;
  (void)sys::lock_range(metadata_fd_, sys::RangeLock::kNone, kMetadata, 1);
  if (own_file_) {
    forget_held(metadata_fd_);
    sys::close_file(metadata_fd_);
  }
  metadata_fd_ = -1;
}

int LunLocks::enter() {
  if (none()) return 0;
  const int status = sys::lock_range(fd(), sys::RangeLock::kShared, kPresence, 1);
  return status == -EAGAIN ? -EBUSY : status;
}

int LunLocks::alone() {
  if (none()) return 1;
  const int others = sys::range_locked(fd(), kPresence, 1);
  return others < 0 ? others : !others;
}

int LunLocks::own(unsigned index, bool exclusive) { return none() ? 0 : hold(fd(), index, exclusive); }

int LunLocks::hold(int fd, unsigned index, bool exclusive) {
  int status = sys::lock_range(fd, sys::RangeLock::kShared, kPresence, 1);
  if (status == 0) status = sys::lock_range(fd, sys::RangeLock::kShared, owner_byte(index), exclusive ? 2 : 1);
  return status == -EAGAIN ? -EBUSY : status;
}

void LunLocks::disown(unsigned index) {
  if (!none()) (void)sys::lock_range(fd(), sys::RangeLock::kNone, owner_byte(index), 2);
}

int LunLocks::owned(unsigned index) { return none() ? 0 : sys::range_locked(fd(), owner_byte(index), 1); }
int LunLocks::owned_by_any(unsigned index) {
  return own_file_ && metadata_fd_ >= 0 ? sys::range_locked(metadata_fd_, owner_byte(index), 1) : owned(index);
}
int LunLocks::owned_exclusively(unsigned index) { return none() ? 0 : sys::range_locked(fd(), exclusive_byte(index), 1); }

int LunLocks::renew() {
  if (none()) return 0;
  const int old = fd();
  int fresh = sys::open_again(old);
  if (fresh < 0) return fresh;
  fresh = sys::move_high(fresh);
  const int status = sys::lock_range(fresh, sys::RangeLock::kShared, kPresence, 1);
  if (status < 0) {
    sys::close_file(fresh);
    return status;
  }
  device_->reopen(device_->lock_number(), fresh);
  sys::close_file(old);
  return 0;
}

}  // namespace lunar
