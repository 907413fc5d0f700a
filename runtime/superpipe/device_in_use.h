// SPDX-License-Identifier: Apache-2.0
// Finds users of a block device or file that hold no lock on it: the system (mounted, swap,
// device-mapper), or an open by Lunar through another name of the same bytes (a partition or the
// whole disk, a loop device on it or below it). Threading: at open, any thread, blocking. Allocates
// through map_private.
#pragma once
#include <sys/stat.h>

#include <cstddef>
#include <cstdint>

namespace lunar {

// Whether block device `rdev` is in use: the device itself, a partition of it, or the disk it is a
// part of; a loop device on one of these; for a loop device: the files and devices below it, and
// other loop devices on the same bytes. True with a short description in `who`, e.g. "mounted on
// /data".
bool block_in_use(uint64_t rdev, char* who, size_t size);
// The other block devices of the NVMe namespace (or partition) of `node`: the block device of a
// character device, and those of further controllers if the kernel does not join them. count is 0
// if the device is no such node.
struct NamespaceNodes {
  static constexpr unsigned kMax = 4;
  struct Node {
    char path[64];  // "/dev/nvme0n1"; the node need not exist
    uint64_t rdev;
  } node[kMax];
  unsigned count = 0;
  bool more = false;  // there are more than kMax
};
void namespace_nodes(const struct stat& node, NamespaceNodes* out);
// block_in_use() of these.
bool namespace_in_use(const NamespaceNodes& nodes, char* who, size_t size);
// Whether Lunar has claimed the block device from the kernel, according to the lock for that
// (ownership.h).
bool claimed_by_ours(uint64_t rdev);
// As block_in_use(), for a regular file: swap space, or the file of a loop device.
bool file_in_use(const struct stat& file, char* who, size_t size);
// The kernel's name under /dev of a device ("nvme0n1", "ng0n1"). False if sysfs does not tell.
bool device_node_name(bool block, uint64_t rdev, char* name, size_t size);

}  // namespace lunar
