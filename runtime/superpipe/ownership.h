// SPDX-License-Identifier: Apache-2.0
// Ownership of devices: the rule for every open of a file, a block device or an NVMe, pmem or CAPI
// node.
//
//   claim      taken by
//              | other opens that it allows
//   kLook      `lunar lun list, info, paths`, a first look of `create`: reads only, locks nothing
//              | all
//   kWhole     a physical chunk (cblk_open), also in a group or a RAID 0
//              | kWhole
//   kAlone     a chunk with CBLK_OPN_RESERVE; a plain scratch LUN (`lunar run` with its own file,
//              benches): device_open with `scratch`
//              | none
//   kForced    a chunk with CBLK_OPN_FORCED_RESERVE: kAlone if possible, otherwise kWhole whatever
//              other opens there are (but with its lock)
//              | as kAlone or kWhole, whichever it got
//   kFurther   a further chunk of a group whose first chunk has kAlone or kForced: kWhole whatever
//              other opens there are, because the first chunk has checked
//              | kWhole
//   kParts     virtual LUNs: a chunk with CBLK_OPN_VIRT_LUN, `lunar lun create, resize, remove,
//              check`, `lunar run` on a formatted or blank device
//              | kParts
//
// Each member of a stripe is claimed; of paths that are opened as kAlone, the first.
//
// A conflicting open fails after a second with -EBUSY and a line that says what the device is used
// for. It waits because the ring of a killed owner holds its files, and so its locks, until its
// last write has ended: usually for milliseconds. While no process that can be seen has the locks,
// it waits up to 30 s (lock_holders.h). Formatting is a write under kParts, so it never meets a
// kWhole or kAlone. The labels of a blank stripe are written while its members are held as kAlone.
// Users in the kernel (mount, swap, device-mapper, a loop device over a file) are checked after the
// open. A block device that is opened for writing, or as kAlone, is then claimed from the kernel
// too (O_EXCL), which keeps mount, swapon, mkfs and mdadm out. Only one description can have that
// claim: a second open that may share the device continues without it if a lock says that the claim
// is Lunar's. Known gap: if the owner of the claim ends first, the others continue without it until
// the next open, and mkfs could use the device. Opens through a partition, the whole disk or a loop
// device are detected by locks (device_in_use.h). An NVMe namespace has further block devices: that
// of a character device, and one per controller if the kernel does not join them. These are claimed
// with it and kept claimed (DeviceFiles). A node that cannot be opened is not assumed to be free:
// the open fails, unless the node does not exist.
//
// Claims are locks of the open file description (F_OFD_SETLK), on the node and on its lock file
// (device_files.h). A forked child shares them, and they end with the last descriptor, even after
// kill -9. Byte ranges far beyond any data:
//
//   all              kAlone: taken exclusively, which is the test, then in one step made shared, so
//                    that share_lock() can take it for another description
//   0                never locked by itself: if it is locked, there is a kAlone
//   kWholeByte       kWhole, shared
//   kPartsByte       kParts, shared
//   kClaimedByte     shared by the description with the kernel's claim
//   kFirstLunByte..  of virtual LUNs and their metadata: lun/volume/lun_locks.h
//
// kWhole and kParts take their byte, then check the other's; if two meet at that moment both
// release theirs, and try again after pauses of different length.
// Threading: one thread opens.
#pragma once
#include <cstdint>

namespace lunar {

enum class Claim : uint8_t { kLook, kWhole, kAlone, kForced, kFurther, kParts };

namespace owner_bytes {
constexpr uint64_t kBase = uint64_t{1} << 62;
constexpr uint64_t kClaimedByte = kBase - 2, kWholeByte = kBase - 1;
// kBase itself: the byte of the metadata (lun_locks.h).
constexpr uint64_t kFirstLunByte = kBase, kPartsByte = kBase + 1;
}  // namespace owner_bytes

}  // namespace lunar
