// SPDX-License-Identifier: Apache-2.0
// VirtualLun: a part of a physical LUN that acts as a separate device.
//
//      VirtualLun      0 ........ 1 ........ 2 ....      logical extents
//                      │          │          │
//      extent map    [ 17 ]     [ 4 ]      [ 18 ]        grows at its end; entries never change
//                                                        while it is open
//                      ▼          ▼          ▼
//      physical LUN    extents of the data area          see physical_lun.h
//
// A virtual LUN is scratch or named. A *scratch* LUN has no name and vanishes with its last owner,
// by close, exit or kill -9, and not before. Ownership is a shared lock on an open file description
// (physical_lun.h), so a forked child that inherits the descriptor is an owner too. A *named* LUN
// persists until it is removed; several processes may have it open if all open it as shared.
//
// As a Device: offsets are checked against size_bytes(); I/O goes to the base device with
// translated offsets, split at extent boundaries where neighbours are not adjacent. reserve() grows
// a scratch LUN (so growable() is true, and size_bytes() is the size that it could reach, at open);
// set_size() grows and shrinks either kind.
// Threading: the data path is lock-free (the map is read with acquire loads); reserve, set_size,
// refresh block and take a lock.
#pragma once
#include "lun/volume/physical_lun.h"
#include "superpipe/device.h"

namespace lunar {

struct VirtualOptions {
  const char* name = "";  // "": creates a scratch LUN. Otherwise it must exist
  // The type of a new LUN. An existing one must have this type (-EMEDIUMTYPE).
  LunType type = LunType::kBlocks;
  bool create = false;      // creates the named LUN; -EEXIST if it exists
  bool joins = false;       // this process joins it at once: see join()
  bool exclusive = true;    // named: no other open (-EBUSY). Scratch LUNs are always exclusive
  uint64_t size_bytes = 0;  // of a new LUN
  // New extents read as zeros: they are discarded if the device then guarantees zeros, otherwise
  // written. false: they contain data of a former owner, for callers that read only what they
  // wrote.
  bool zeroed = true;
};

class VirtualLun : public Device {
 public:
  // Takes ownership of `physical` in any case: it is closed with the LUN, or at once on failure. If
  // it was opened with Format::kLook, a named LUN can be read; every change fails (-EROFS, or the
  // device's own error for a write).
  [[nodiscard]] static int open(PhysicalLun* physical, const VirtualOptions& options,
                                VirtualLun** out, ErrorText* why);

  // Sets the size, rounded up to 4096. Grows (see VirtualOptions::zeroed) or shrinks (the tail is
  // lost; waits up to 5 s for commands in flight, then -EBUSY). Atomic, durable at return.
  // -ENOSPC: the size is beyond what remains (nothing changed); -EBUSY: shrinking while others have
  // it open or have joined it. A forked child that has not joined must not be using the tail.
  [[nodiscard]] virtual int set_size(uint64_t bytes, ErrorText* why) = 0;
  // From now on this process, which may share the LUN by a fork, uses all of it, at its present
  // size: no other process can shrink it until this one closes it or ends. A child must join
  // itself. 0 or -errno.
  [[nodiscard]] virtual int join() = 0;
  virtual bool is_joined_by_others() = 0;   // also true if that cannot be determined
  virtual uint64_t used_bytes() const = 0;  // the size as last set (or reserved)
  virtual uint64_t remaining_bytes() = 0;   // what set_size could add now. Blocks
  // Adopts the size of the LUN, which another process may have grown. 0 or -errno.
  [[nodiscard]] virtual int refresh() = 0;
  // As at open; see used_bytes() for the size.
  virtual const VirtualLunInfo& info() const = 0;
  virtual PhysicalLun& physical() = 0;
};

}  // namespace lunar
