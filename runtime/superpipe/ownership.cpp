// SPDX-License-Identifier: Apache-2.0
// The rule of ownership, by locks and the kernel's claim: see ownership.h.
// Threading: at open, one thread, blocking. Not for the fault path.
#include "superpipe/ownership.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>

#include "superpipe/device_files.h"
#include "superpipe/device_in_use.h"
#include "sys/file.h"
#include "sys/thread.h"

namespace lunar {
namespace {

using namespace owner_bytes;
using sys::RangeLock;

constexpr uint64_t kWaitMaxNs = 1'000'000'000;
constexpr uint64_t kClaimLeftNs = 20'000'000;  // a closed chunk's ring may hold its claim so long
constexpr uint64_t kPauseMinNs = 2'000'000;
constexpr uint64_t kPauseSpread = 1u << 24;  // 16 ms

// False when so much time has passed since `start`. The pauses of two opens that stepped back from each other differ.
bool pause(uint64_t start) {
  const uint64_t now = sys::now_ns();
  if (now - start > kWaitMaxNs) return false;
  sys::sleep_ns(kPauseMinNs + now * 0x9e3779b97f4a7c15 % kPauseSpread);
  return true;
}

const char* use_of(const int* fds, unsigned count) {
  if (files_locked(fds, count, 0, 1) == 1)
    return "it has it as a whole and alone (a scratch LUN, a bench, or CBLK_OPN_RESERVE)";
  if (files_locked(fds, count, kWholeByte, 1) == 1) return "it has it as a whole (a physical chunk of cblk_open)";
  if (files_locked(fds, count, kPartsByte, 1) == 1) return "virtual LUNs on it are open";
  return "it has locked a part of it";
}

bool in_use(const struct stat& node, bool alone, char* who, size_t size) {
  if (S_ISREG(node.st_mode)) return file_in_use(node, who, size);
  return (S_ISBLK(node.st_mode) && block_in_use(node.st_rdev, who, size)) || namespace_in_use(node, alone, who, size);
}

}  // namespace

// Exclusively, which no other holder of any part lets pass; then shared, in one step. What is open for reading only
// takes no exclusive lock, and asks for other holders when it has the shared one.
int DeviceFiles::lock_alone() {
  const int fds[] = {fd(0), fd(1)};
  int status = files_lock(fds, count(), RangeLock::kExclusive, 0, 0);
  if (status < 0 && status != -EBADF) return status;
  const bool reads = status == -EBADF;
  status = files_lock(fds, count(), RangeLock::kShared, 0, 0);
  if (status < 0 || !reads) return status;
  status = files_locked(fds, count(), 0, 0);
  if (status != 0) (void)files_lock(fds, count(), RangeLock::kNone, 0, 0);
  return status > 0 ? -EAGAIN : status;
}

int DeviceFiles::lock_beside(uint64_t own, uint64_t other) {
  const int fds[] = {fd(0), fd(1)};
  int status = files_lock(fds, count(), RangeLock::kShared, own, 1);
  if (status < 0) return status;
  status = files_locked(fds, count(), 0, 1);
  if (status == 0) status = files_locked(fds, count(), other, 1);
  if (status != 0) (void)files_lock(fds, count(), RangeLock::kNone, own, 1);
  return status > 0 ? -EAGAIN : status;
}

int DeviceFiles::lock_claim(Claim claim) {
  const uint64_t start = sys::now_ns();
  int status;
  do {
    if (claim == Claim::kWhole)
      status = lock_beside(kWholeByte, kPartsByte);
    else if (claim == Claim::kParts)
      status = lock_beside(kPartsByte, kWholeByte);
    else if (claim == Claim::kFurther)
      return lock_among();
    else
      status = lock_alone();
  } while ((status == -EAGAIN || status == -EINTR) && pause(start));
  claim_ = claim == Claim::kForced ? Claim::kAlone : claim;
  return status == 0 || claim != Claim::kForced ? status : lock_among();
}

// A lock in any case: later opens must see this one. Only a test of the whole range can be in the way, for moments.
int DeviceFiles::lock_among() {
  const int fds[] = {fd(0), fd(1)};
  claim_ = Claim::kWhole;
  const uint64_t start = sys::now_ns();
  int status;
  do status = files_lock(fds, count(), RangeLock::kShared, kWholeByte, 1);
  while ((status == -EAGAIN || status == -EINTR) && pause(start));
  return status;
}

int DeviceFiles::refuse(const char* path, ErrorText* why) const {
  const int fds[] = {fd(0), fd(1)};
  return why->set(-EBUSY,
                  "LUN %s: in use by another process: %s; wait for its end (fuser %s names it), or give another LUN",
                  path, use_of(fds, count()), path);
}

// O_EXCL belongs to the description that was opened with it: that one takes the place of the first, with what it holds.
int DeviceFiles::claim_from_kernel(const char* path, ErrorText* why) {
  const uint64_t start = sys::now_ns();
  int status;
  do {
    const int claimed = sys::open_again(file(), O_EXCL);
    if (claimed >= 0) {
      status = share_lock(0, claimed);
      if (status < 0) {
        sys::close_file(claimed);
        break;
      }
      sys::close_file(file());
      set(0, claimed);
      const int fds[] = {fd(0), fd(1)};
      (void)files_lock(fds, count(), RangeLock::kShared, kClaimedByte, 1);  // opens that need it wait for it
      return 0;
    }
    status = claimed;
    const int fds[] = {fd(0), fd(1)};
    const bool ours = status == -EBUSY && claim_ != Claim::kAlone && files_locked(fds, count(), kClaimedByte, 1) == 1;
    if (ours && sys::now_ns() - start > kClaimLeftNs) return 0;
  } while (status == -EBUSY && pause(start));
  if (status == -EBUSY)
    return why->set(status,
                    "LUN %s: the block device is in use (mounted, swap, or another program has it: lsblk, fuser %s); "
                    "give one that is not in use",
                    path, path);
  return why->set(status, "LUN %s: cannot be claimed from the kernel: %s (%s)", path, errno_text(status),
                  errno_name(status));
}

int DeviceFiles::claim(Claim claim, bool read_only, const char* path, ErrorText* why) {
  struct stat node;
  int status = sys::file_status(file(), &node);
  if (status < 0) return why->set(status, "LUN %s: cannot look at it: %s", path, errno_text(status));
  if (claim != Claim::kLook) {
    status = open_lock(path, why);
    if (status < 0) return status;
    status = lock_claim(claim);
    if (status == -EAGAIN || status == -EINTR) return refuse(path, why);
    if (status < 0)
      return why->set(status, "LUN %s: cannot be locked (%s); its file system must know file locks", path,
                      errno_name(status));
  }
  if (claim == Claim::kFurther || (read_only && claim != Claim::kAlone)) return 0;
  // A loop device that is being detached stays until its last open ends, such as one that reads its backing file's
  // name.
  char who[256];
  const uint64_t start = sys::now_ns();
  while (in_use(node, claim_ == Claim::kAlone, who, sizeof who)) {
    if (claim == Claim::kLook || !pause(start))
      return why->set(-EBUSY, "LUN %s: the %s is %s; give one that is not in use", path,
                      S_ISREG(node.st_mode) ? "file" : "device", who);
  }
  if (claim == Claim::kLook || !S_ISBLK(node.st_mode)) return 0;
  status = claim_from_kernel(path, why);
  return claim == Claim::kForced && status == -EBUSY ? 0 : status;
}

int DeviceFiles::share_lock(unsigned i, int fd) const {
  if (i >= count() || claim_ == Claim::kLook) return 0;
  const int status = claim_ == Claim::kAlone ? sys::lock_range(fd, RangeLock::kShared, 0, 0)
                                             : sys::lock_range(fd, RangeLock::kShared,
                                                               claim_ == Claim::kWhole ? kWholeByte : kPartsByte, 1);
  return status == -EAGAIN ? -EBUSY : status;
}

}  // namespace lunar
