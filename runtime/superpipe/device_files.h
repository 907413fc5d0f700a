// SPDX-License-Identifier: Apache-2.0
// The descriptors of a device: number 0 its file or node, and where that is a node, number 1 its *lock file*.
//
// Why a lock file: locks (F_OFD_SETLK) lie on inodes, and one medium has several nodes: /dev/ng0n1 and /dev/nvme0n1, the second
// controller's /dev/ng1n1, what mknod or a container made. So the locks of nodes lie on an empty file of /dev/shm that is named
// after the medium:
//
//   lunar-namespace-HASH-NSID[pPART]   an NVMe namespace by its subsystem's name (subsysnqn), whatever node or controller
//   lunar-node-bMAJOR:MINOR, -cM:M     any other node, by its device number
//
// It is made with mode 0666 (whoever may open the node must be able to lock it; it holds nothing), and stays until the host is booted
// again: removing it while somebody has it would part its users. Not seen by each other: containers with a /dev/shm of their own,
// and other disks than NVMe by two numbers (sda, sdb of one disk: give dm-multipath's node).
// Where there is no /dev/shm the locks lie on the node.
// Threading: opened and closed by one thread; the numbers are atomic.
#pragma once
#include <atomic>

#include "base/error.h"

namespace lunar {

class DeviceFiles {
 public:
  int file() const { return fd_[0].load(std::memory_order_relaxed); }
  const std::atomic<int>* file_number() const { return &fd_[0]; }   // for whoever must follow set()
  int locks() const { return fd(lock_number()); }       // the descriptor that locks are taken on
  unsigned count() const { return fd(1) >= 0 ? 2 : 1; }
  unsigned lock_number() const { return count() - 1; }
  int fd(unsigned i) const { return fd_[i].load(std::memory_order_relaxed); }
  void set(unsigned i, int fd) { fd_[i].store(fd, std::memory_order_relaxed); }
  // Opens the lock file of a node; a regular file needs none. Pre: file() is open. 0 or -errno with *why.
  [[nodiscard]] int open_lock(const char* path, ErrorText* why);
  void close();   // fine when nothing is open

 private:
  std::atomic<int> fd_[2] = {-1, -1};
};

// Whether the locks of `fd`, a device's number lock_number(), are those of the medium by whatever node: a regular file, or a
// lock file of an NVMe namespace.
bool locks_know_medium(int fd);

}  // namespace lunar
