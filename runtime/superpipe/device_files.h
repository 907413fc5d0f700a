// SPDX-License-Identifier: Apache-2.0
// The descriptors of a device: number 0 its file or node, and where that is a node, number 1 its *lock file*. Locks (F_OFD_SETLK byte
// ranges) lie on all of them, so whoever shares either sees them.
//
// Why a lock file: locks lie on inodes, and one medium has several nodes: /dev/ng0n1 and /dev/nvme0n1, the second controller's
// /dev/ng1n1, what mknod or a container made. So there is an empty file in /dev/shm that is named after the medium:
//
//   lunar-namespace-HASH-NSID[pPART]   an NVMe namespace by its subsystem's name (subsysnqn), whatever node or controller. (Private
//                                      namespaces that share a number, which only controllers without namespace management have, are taken for one)
//   lunar-node-bMAJOR:MINOR, -cM:M     any other node, by its device number
//
// It has the owner, group and mode of the node by which it was made (0666 where that has an ACL): who may open the device may lock it. A file
// of anybody else's is refused. It holds nothing and stays until the host is booted again; where it is removed while somebody has
// it, or there is no /dev/shm, the locks of the node itself remain.
// Not seen by each other: two nodes in containers with a /dev/shm of their own each, and other disks than NVMe by two numbers (sda and
// sdb of one disk: give dm-multipath's node).
// Threading: opened and closed by one thread; the numbers are atomic.
#pragma once
#include <atomic>
#include <cstdint>

#include "base/error.h"
#include "sys/file.h"

namespace lunar {

class Device;

class DeviceFiles {
 public:
  DeviceFiles() = default;
  DeviceFiles(int file) { set(0, file); }   // implicit: a plain file's
  int file() const { return fd(0); }
  const std::atomic<int>* file_number() const { return &fd_[0]; }   // for whoever must follow set()
  unsigned count() const { return fd(1) >= 0 ? 2 : 1; }
  int lock_file() const { return fd(1); }               // -1: none
  int fd(unsigned i) const { return fd_[i].load(std::memory_order_relaxed); }
  void set(unsigned i, int fd) { fd_[i].store(fd, std::memory_order_relaxed); }
  // Opens the lock file of a node; a regular file needs none. Pre: file() is open. 0 or -errno with *why.
  [[nodiscard]] int open_lock(const char* path, ErrorText* why);
  // The whole device for this process and its children, asked again for a second: taken exclusively, which no other holder of any part
  // lets pass, then turned into a shared lock in one step, so that another description of the same tree may hold it beside
  // (hold). Strangers, who ask for all of it exclusively, are refused while one holder is left; who takes only a byte, shared, asks
  // device_held_whole() after that. It lies on the descriptions: children that fork share it. 0, -EAGAIN, -errno.
  [[nodiscard]] int lock_whole();
  // Device::hold: `fd` is another description of number i. Holds the whole too, if this does. 0, -EBUSY (a stranger has it), -errno.
  [[nodiscard]] int hold(unsigned i, int fd) const;
  void close();   // fine when nothing is open

 private:
  std::atomic<int> fd_[2] = {-1, -1};
  bool whole_ = false;
};

// The lock file of a node, as it is, for asking: a descriptor, -ENOENT when it was never made (so nobody has a lock), or -errno.
[[nodiscard]] int open_lock_file(const struct stat& node);
// Whether `fd` is the lock file of a medium that is known by whatever node (an NVMe namespace).
bool locks_know_medium(int fd);

// A lock on all of these files, or on none: 0, -EAGAIN, -errno.
[[nodiscard]] int files_lock(const int* fds, unsigned count, sys::RangeLock kind, uint64_t offset, uint64_t length);
// Whether another description holds, on any of them, what an exclusive lock would run into: 1, 0, or -errno.
[[nodiscard]] int files_locked(const int* fds, unsigned count, uint64_t offset, uint64_t length);

constexpr unsigned kLockFilesMax = 2;   // of one device: Device::lock_count()
// The same on everything that locks of `device` lie on. None are needed where it has no descriptor.
// kShared after kExclusive downgrades; what could not be made exclusive is not held any more.
[[nodiscard]] int device_lock(const Device* device, sys::RangeLock kind, uint64_t offset, uint64_t length);
[[nodiscard]] int device_locked(const Device* device, uint64_t offset, uint64_t length);
// Whether another description holds it as a whole, by the first byte, which nobody locks alone: 1, 0, or -errno.
[[nodiscard]] int device_held_whole(const Device* device);

}  // namespace lunar
