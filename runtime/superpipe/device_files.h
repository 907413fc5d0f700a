// SPDX-License-Identifier: Apache-2.0
// The descriptors of a device: number 0 is its file or node; if it is a node, number 1 is its *lock
// file*. Locks (F_OFD_SETLK byte ranges) are taken on these two, so that opens through either see
// them. After them come the other block devices of an NVMe namespace, each opened with O_EXCL only
// to claim it from the kernel (ownership.h).
//
// Why a lock file: locks are on inodes, and one backing device has several nodes: /dev/ng0n1 and
// /dev/nvme0n1, the second controller's /dev/ng1n1, and any that mknod or a container made. So
// there is an empty file in /dev/shm that is named after the backing device:
//
//   lunar-namespace-HASH-NSID[pPART]   an NVMe namespace by its subsystem's name (subsysnqn),
//                                      through any node or controller. (Private namespaces that
//                                      share a number, which only controllers without namespace
//                                      management have, count as one)
//   lunar-node-bMAJOR:MINOR, -cM:M     any other node, by its device number
//
// The lock file has the owner and group of the node through which it was opened last, and the
// rights (mode and ACL) of all nodes through which it was opened: exactly the users who may open
// the device may lock it. If a user who may not open the device has put a file, link or directory
// in its place, root renames that (/dev/shm is root's, and sticky); for other users the open fails
// with a message. The file is empty and stays until the host reboots. If it is removed while in
// use, or there is no /dev/shm, the locks of the node itself remain. An attacker without rights to
// the device can create the name first, and so keep users other than root out until root opens it.
// An attacker with rights can lock the device, but could also overwrite it. Two nodes in containers
// that each have their own /dev/shm do not see each other; nor do, on disks other than NVMe, two
// device numbers (sda and sdb of one disk: use dm-multipath's node).
// Threading: opened and closed by one thread; the numbers are atomic.
#pragma once
#include <atomic>
#include <cstdint>

#include "base/error.h"
#include "superpipe/device_in_use.h"
#include "superpipe/ownership.h"
#include "sys/file.h"

namespace lunar {

class Device;

constexpr unsigned kLockFilesMax = 2;  // of one device: Device::lock_count()

class DeviceFiles {
 public:
  DeviceFiles() = default;
  DeviceFiles(int file) { set(0, file); }  // implicit: a plain file's
  int file() const { return fd(0); }
  unsigned count() const { return lock_count_ + claim_count_; }
  unsigned lock_count() const { return lock_count_; }
  int fd(unsigned i) const { return fd_[i].load(std::memory_order_relaxed); }
  void set(unsigned i, int fd) { fd_[i].store(fd, std::memory_order_relaxed); }
  // Takes the device for `claim`, as ownership.h describes: opens the lock file of a node, locks,
  // checks whether the system uses the device, and claims the block devices from the kernel.
  // (read_only and kLook: only the locks, or nothing.) Waits up to a second, or 30 s if only the
  // kernel has the locks. 0, -EBUSY, -errno; all but 0 with *why. close() releases what it took.
  // pre: file() is open
  [[nodiscard]] int claim(Claim claim, bool read_only, const char* path, ErrorText* why);
  // Device::share_lock: takes the locks of the claim on `fd`, another description of number i. 0,
  // -EBUSY (another process has it), -errno.
  [[nodiscard]] int share_lock(unsigned i, int fd) const;
  void close();  // does nothing if nothing is open

 private:
  int open_lock(const char* path, ErrorText* why);
  int lock_claim(Claim claim, const char* path);
  bool others_hold(Claim claim) const;
  int lock_alone();
  int lock_among();
  int lock_unless(uint64_t own, uint64_t other);  // byte `own`, unless `other` is locked
  int claim_from_kernel(const struct stat& node, const NamespaceNodes& others, const char* path,
                        ErrorText* why);
  int take_claims(bool block, const NamespaceNodes& others, unsigned* failed);
  void drop_claims();
  int refuse(const char* path, ErrorText* why) const;
  bool others_have_claim() const;

  std::atomic<int> fd_[kLockFilesMax + NamespaceNodes::kMax] = {-1, -1, -1, -1, -1, -1};
  unsigned lock_count_ = 1, claim_count_ = 0;
  Claim claim_ = Claim::kLook;  // the claim it has: never kForced or kFurther
};

// The files that one context serves, of one device or of several; a command names its file by the
// index here (Command::file).
struct JoinedFiles {
  static constexpr unsigned kMax = 8;
  const DeviceFiles* files[kMax] = {};  // of the devices, which outlive the context; O_DIRECT
  struct Place {
    uint64_t data_offset = 0;  // of the device's offset 0 in its file
    uint64_t bytes = 0;        // of a block device, which has an end; 0: of a file
    bool keeps_space() const { return bytes == 0; }  // a discard keeps the space of a file
    // The length for the kernel, which cuts a discard at a block device's end, and refuses (EINVAL)
    // one of length 0.
    uint64_t discard_length(uint64_t offset, uint64_t length) const {
      const bool is_inside = offset <= bytes && length <= bytes - offset;
      return bytes == 0 || is_inside ? length : 0;
    }
  } place[kMax];
  unsigned count = 0;

  bool add(const DeviceFiles& device, const Place& at) {
    if (count == kMax) return false;
    files[count] = &device;
    place[count++] = at;
    return true;
  }
};

// HASH-NSID[pPART] of the namespace that the device with that name under /dev is a node of. False:
// it is not a node of one.
bool namespace_key(const char* name, char* out, size_t size);
// Opens the lock file of a node for a query: a descriptor, -ENOENT if it was never made (so there
// is no lock), or -errno.
[[nodiscard]] int open_lock_file(const struct stat& node);
// Whether `fd` is the lock file of a backing device that is known through any node (an NVMe
// namespace).
bool locks_know_backing_device(int fd);

// Locks all of these files, or, on failure, none. 0, -EAGAIN, -errno.
[[nodiscard]] int files_lock(const int* fds, unsigned count, sys::RangeLock kind, uint64_t offset,
                             uint64_t length);
// Whether another description holds, on any of them, a lock that conflicts with an exclusive one:
// 1, 0, or -errno.
[[nodiscard]] int files_locked(const int* fds, unsigned count, uint64_t offset, uint64_t length);

// The same on all files that locks of `device` are taken on. Succeeds without locks if it has no
// descriptor. kShared after kExclusive downgrades; if a lock could not be made exclusive, it is no
// longer held.
[[nodiscard]] int device_lock(const Device* device, sys::RangeLock kind, uint64_t offset,
                              uint64_t length);
[[nodiscard]] int device_locked(const Device* device, uint64_t offset, uint64_t length);
}  // namespace lunar
