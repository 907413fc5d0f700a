// SPDX-License-Identifier: Apache-2.0
// The rule of ownership, by locks and the kernel's claim: see ownership.h.
// Threading: at open, one thread, blocking. Not for the fault path.
#include "superpipe/ownership.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>

#include "superpipe/device_files.h"
#include "superpipe/device_in_use.h"
#include "superpipe/lock_holders.h"
#include "sys/file.h"
#include "sys/thread.h"

namespace lunar {
namespace {

using namespace owner_bytes;
using sys::RangeLock;

constexpr uint64_t kWaitMaxNs = 1'000'000'000;
constexpr uint64_t kClaimLeftNs = 20'000'000;  // a closed chunk's ring may hold its claim so long

// Pauses (pause_apart()). False: the wait since `start` was long enough.
bool pause(uint64_t start) {
  const uint64_t now = sys::now_ns();
  if (now - start > kWaitMaxNs) return false;
  pause_apart(now);
  return true;
}

const char* use_of(const int* fds, unsigned count) {
  if (files_locked(fds, count, 0, 1) == 1)
    return "it has it as a whole and alone (a scratch LUN, a bench, or CBLK_OPN_RESERVE)";
  if (files_locked(fds, count, kWholeByte, 1) == 1)
    return "it has it as a whole (a physical chunk of cblk_open)";
  if (files_locked(fds, count, kPartsByte, 1) == 1) return "virtual LUNs on it are open";
  return "it has locked a part of it";
}

bool in_use(const struct stat& node, const NamespaceNodes& others, char* who, size_t size) {
  if (S_ISREG(node.st_mode)) return file_in_use(node, who, size);
  return (S_ISBLK(node.st_mode) && block_in_use(node.st_rdev, who, size)) ||
         namespace_in_use(others, who, size);
}

// `other`: the namespace's further block device that could not be claimed; nullptr: the device
// itself could not.
int explain_claim(int err, const char* path, const char* other, ErrorText* why) {
  if (err == -EBUSY && other)
    return why->set(err,
                    "LUN %s: the device is the same namespace as %s, which is open in another "
                    "program, for itself alone (lsblk, fuser %s); give one that is not in use",
                    path, other, other);
  if (err == -EBUSY)
    return why->set(err,
                    "LUN %s: the block device is in use (mounted, swap, or another program has it: "
                    "lsblk, fuser %s); give one that is not in use",
                    path, path);
  if (other && (err == -EACCES || err == -EPERM))
    return why->set(err,
                    "LUN %s: the same namespace is %s, and mkfs and mount cannot be kept from it "
                    "without the right to read it (%s); "
                    "grant that (chgrp, setfacl -m u:USER:r, a container's --device), "
                    "or run as root",
                    path, other, errno_text(err));
  if (err == -EMFILE || err == -ENFILE)
    return why->set(err, "LUN %s: no file descriptor left; raise the limit (ulimit -n)", path);
  return why->set(
      err,
      "LUN %s: %s cannot be claimed from the kernel: %s (%s); look at dmesg, or give another LUN",
      path, other ? other : "it", errno_text(err), errno_name(err));
}

}  // namespace

// Locks the whole range exclusively, which fails if any part is locked, then downgrades the lock to
// shared in one step. A descriptor that is open for reading only cannot lock exclusively: it takes
// the shared lock, then queries other holders.
int DeviceFiles::lock_alone() {
  const int fds[] = {fd(0), fd(1)};
  int status = files_lock(fds, lock_count(), RangeLock::kExclusive, 0, 0);
  if (status < 0 && status != -EBADF) return status;
  const bool reads = status == -EBADF;
  status = files_lock(fds, lock_count(), RangeLock::kShared, 0, 0);
  if (status < 0 || !reads) return status;
  status = files_locked(fds, lock_count(), 0, 0);
  if (status != 0) (void)files_lock(fds, lock_count(), RangeLock::kNone, 0, 0);
  return status > 0 ? -EAGAIN : status;
}

int DeviceFiles::lock_unless(uint64_t own, uint64_t other) {
  const int fds[] = {fd(0), fd(1)};
  int status = files_lock(fds, lock_count(), RangeLock::kShared, own, 1);
  if (status < 0) return status;
  status = files_locked(fds, lock_count(), 0, 1);
  if (status == 0) status = files_locked(fds, lock_count(), other, 1);
  if (status != 0) (void)files_lock(fds, lock_count(), RangeLock::kNone, own, 1);
  return status > 0 ? -EAGAIN : status;
}

// Whether a process has a lock that conflicts with the claim.
bool DeviceFiles::others_hold(Claim claim) const {
  const int fds[] = {fd(0), fd(1)};
  const LockedBytes alone[] = {{0, 0}}, parts[] = {{0, 1}, {kWholeByte, 1}},
                    whole[] = {{0, 1}, {kPartsByte, 1}};
  if (claim == Claim::kWhole) return any_process_locks(fds, lock_count(), whole, 2);
  if (claim == Claim::kParts) return any_process_locks(fds, lock_count(), parts, 2);
  return any_process_locks(fds, lock_count(), alone, 1);
}

int DeviceFiles::lock_claim(Claim claim, const char* path) {
  LockWait wait(path);
  int status;
  do {
    if (claim == Claim::kWhole)
      status = lock_unless(kWholeByte, kPartsByte);
    else if (claim == Claim::kParts)
      status = lock_unless(kPartsByte, kWholeByte);
    else if (claim == Claim::kFurther)
      return lock_among();
    else
      status = lock_alone();
  } while ((status == -EAGAIN || status == -EINTR) &&
           wait.pause([&] { return claim == Claim::kForced || others_hold(claim); }));
  claim_ = claim == Claim::kForced ? Claim::kAlone : claim;
  return status == 0 || claim != Claim::kForced ? status : lock_among();
}

// Takes the lock in any case, because later opens must see this one. Only another open's test of
// the whole range can delay it, for moments.
int DeviceFiles::lock_among() {
  const int fds[] = {fd(0), fd(1)};
  claim_ = Claim::kWhole;
  const uint64_t start = sys::now_ns();
  int status;
  do status = files_lock(fds, lock_count(), RangeLock::kShared, kWholeByte, 1);
  while ((status == -EAGAIN || status == -EINTR) && pause(start));
  return status;
}

int DeviceFiles::refuse(const char* path, ErrorText* why) const {
  const int fds[] = {fd(0), fd(1)};
  return why->set(-EBUSY,
                  "LUN %s: in use by another process: %s; wait for its end (fuser %s names it), or "
                  "give another LUN",
                  path, use_of(fds, lock_count()), path);
}

bool DeviceFiles::others_have_claim() const {
  const int fds[] = {fd(0), fd(1)};
  return files_locked(fds, lock_count(), kClaimedByte, 1) == 1;
}

void DeviceFiles::drop_claims() {
  for (; claim_count_ > 0; --claim_count_) {
    sys::close_file(fd(count() - 1));
    set(count() - 1, -1);
  }
}

// Claims the device's own node (if `block`) and the namespace's other block devices from the
// kernel: all or none. 0 or -errno, with the number of the other that failed in *failed
// (others.count: the own node). O_EXCL belongs to the description that was opened with it, so that
// description replaces the first one, with its locks.
int DeviceFiles::take_claims(bool block, const NamespaceNodes& others, unsigned* failed) {
  *failed = others.count;
  const int own = block ? sys::open_again(file(), O_EXCL) : -1;
  int status = block && own < 0 ? own : 0;
  for (unsigned i = 0; i < others.count && status == 0; ++i) {
    const int claimed = sys::open_file(others.node[i].path, O_RDONLY | O_EXCL | O_NONBLOCK);
    struct stat node;
    const bool missing = claimed == -ENOENT || claimed == -ENXIO || claimed == -ENODEV;
    const bool same = claimed >= 0 && sys::file_status(claimed, &node) == 0 &&
                      node.st_rdev == others.node[i].rdev;
    if (same) set(lock_count_ + claim_count_++, claimed);
    if (claimed >= 0 && !same) sys::close_file(claimed);
    if (claimed >= 0 || missing) continue;
    status = claimed;
    *failed = i;
  }
  if (status == 0 && own >= 0) status = share_lock(0, own);
  if (status < 0) {
    if (own >= 0) sys::close_file(own);
    drop_claims();
    return status;
  }
  if (own >= 0) {
    sys::close_file(file());
    set(0, own);
  }
  const int fds[] = {fd(0), fd(1)};  // opens that need the claim wait for this lock
  if (own >= 0 || claim_count_)
    (void)files_lock(fds, lock_count(), RangeLock::kShared, kClaimedByte, 1);
  return 0;
}

// If two opens through two nodes conflict, both release their claims and try again, so none keeps a
// part of the claims while it waits.
int DeviceFiles::claim_from_kernel(const struct stat& node, const NamespaceNodes& others,
                                   const char* path, ErrorText* why) {
  if (others.more)
    return why->set(
        -E2BIG,
        "LUN %s: its namespace has more than %u further block devices; have the kernel join them "
        "(nvme_core.multipath=Y), and give that node",
        path, NamespaceNodes::kMax);
  const uint64_t start = sys::now_ns();
  unsigned failed;
  int status;
  do {
    status = take_claims(S_ISBLK(node.st_mode), others, &failed);
    const bool ours = status == -EBUSY && claim_ != Claim::kAlone && others_have_claim();
    if (status == 0 || (ours && sys::now_ns() - start > kClaimLeftNs)) return 0;
  } while (status == -EBUSY && pause(start));
  return explain_claim(status, path, failed < others.count ? others.node[failed].path : nullptr,
                       why);
}

int DeviceFiles::claim(Claim claim, bool read_only, const char* path, ErrorText* why) {
  struct stat node;
  int status = sys::file_status(file(), &node);
  if (status < 0)
    return why->set(status, "LUN %s: cannot look at it: %s", path, errno_text(status));
  if (claim != Claim::kLook) {
    status = open_lock(path, why);
    if (status < 0) return status;
    status = lock_claim(claim, path);
    if (status == -EAGAIN || status == -EINTR) return refuse(path, why);
    if (status < 0)
      return why->set(status, "LUN %s: cannot be locked (%s); its file system must know file locks",
                      path, errno_name(status));
  }
  if (claim == Claim::kFurther || (read_only && claim != Claim::kAlone)) return 0;
  NamespaceNodes others;
  if (!S_ISREG(node.st_mode)) namespace_nodes(node, &others);
  // A loop device that is being detached stays until its last open ends, for example an open that
  // reads the name of its backing file.
  char who[256];
  const uint64_t start = sys::now_ns();
  while (in_use(node, others, who, sizeof who)) {
    if (claim == Claim::kLook || !pause(start))
      return why->set(-EBUSY, "LUN %s: the %s is %s; give one that is not in use", path,
                      S_ISREG(node.st_mode) ? "file" : "device", who);
  }
  if (S_ISREG(node.st_mode)) return 0;
  unsigned failed;
  if (claim == Claim::kLook) {
    status = take_claims(false, others, &failed);
    drop_claims();
    const bool foreign = status == -EBUSY && !claimed_by_ours(others.node[failed].rdev);
    return foreign ? explain_claim(status, path, others.node[failed].path, why) : 0;
  }
  status = claim_from_kernel(node, others, path, why);
  return claim == Claim::kForced && status == -EBUSY ? 0 : status;
}

int DeviceFiles::share_lock(unsigned i, int fd) const {
  if (i >= lock_count() || claim_ == Claim::kLook) return 0;
  const int status = claim_ == Claim::kAlone
                         ? sys::lock_range(fd, RangeLock::kShared, 0, 0)
                         : sys::lock_range(fd, RangeLock::kShared,
                                           claim_ == Claim::kWhole ? kWholeByte : kPartsByte, 1);
  return status == -EAGAIN ? -EBUSY : status;
}

}  // namespace lunar
