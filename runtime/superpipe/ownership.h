// SPDX-License-Identifier: Apache-2.0
// Who owns a device: the one rule of everybody who opens a file, a block device or an NVMe, pmem or CAPI node.
//
//   claim    who                                                                     beside it may be opened
//   kLook    `lunar lun list, info, paths`, a first look of `create`: reads only     everything (it holds nothing)
//   kWhole   a physical chunk (cblk_open), also of a group or a RAID 0               kWhole
//   kAlone   a chunk with CBLK_OPN_RESERVE; a plain scratch LUN (`lunar run` with a  nothing
//            file of its own, benches): device_open with `scratch`
//   kForced  a chunk with CBLK_OPN_FORCED_RESERVE: kAlone where that is to be had,   as kAlone or kWhole, whichever it came to hold
//            else kWhole without asking who is there (but with its lock)
//   kParts   virtual LUNs: a chunk with CBLK_OPN_VIRT_LUN, `lunar lun create,        kParts
//            resize, remove, check`, `lunar run` on a formatted or blank device
//
// Each member of a stripe is claimed; of paths that are wanted alone, the first.
//
// What is not permitted is -EBUSY, with a line that says what the device is used for, after a second: a killed owner's ring holds its files some
// milliseconds longer. Formatting is a write by who has kParts, so it never meets a kWhole or kAlone. The labels of a blank stripe are written by
// who has its members kAlone for that moment.
// The kernel's own users (mount, swap, device-mapper, a loop device over a file) are asked about after the open. A block device that is opened
// for writing is then claimed from the kernel too (O_EXCL), which keeps mount, swapon, mkfs and mdadm out. Only one description can have
// that claim: whoever comes second of the uses that share goes on without it, when a lock says that it is one of ours that has it. What is left: when
// the claim's owner ends first, the others go on without it until the next one opens, and mkfs could come in; those of ours that come by a partition,
// the whole disk or a loop device are told by locks (device_in_use.h). Nor has an NVMe character device such a claim.
//
// Held by locks of the open file description (F_OFD_SETLK), on the node and on its lock file (device_files.h): whoever forks shares them
// with the child, and they end with the last descriptor, also after kill -9. Byte ranges far beyond any data:
//
//   all              kAlone: taken exclusively, which is the test, then held shared in one step, so that share_lock() can give it to another description
//   0                nobody locks it alone: who finds it locked has met a kAlone
//   kWholeByte       kWhole, shared
//   kPartsByte       kParts, shared
//   kClaimedByte     shared by the description with the kernel's claim
//   kFirstLunByte..  of virtual LUNs and their metadata: lun/volume/lun_locks.h
//
// kWhole and kParts take their byte, then look for the others'; two who meet in that moment both step back, and try again after a while that
// differs.
// Threading: opening is one thread's.
#pragma once
#include <cstdint>

namespace lunar {

enum class Claim : uint8_t { kLook, kWhole, kAlone, kForced, kParts };

namespace owner_bytes {
constexpr uint64_t kBase = uint64_t{1} << 62;
constexpr uint64_t kClaimedByte = kBase - 2, kWholeByte = kBase - 1;
constexpr uint64_t kFirstLunByte = kBase, kPartsByte = kBase + 1;   // kBase: the metadata's (lun_locks.h)
}  // namespace owner_bytes

}  // namespace lunar
