// SPDX-License-Identifier: Apache-2.0
// VirtualLun: a part of a physical LUN that acts as a device of its own.
//
//      VirtualLun      0 ........ 1 ........ 2 ....      logical extents
//                      │          │          │
//      extent map    [ 17 ]     [ 4 ]      [ 18 ]        grows at its end; entries never change while it is open
//                      ▼          ▼          ▼
//      physical LUN    extents of the data area          see physical_lun.h
//
// Scratch or named. A *scratch* LUN has no name and vanishes with its last owner, by close, exit or kill -9, and not
// before. Ownership is a shared lock on an open file description (physical_lun.h), so a forked child that inherits the
// descriptor owns it too. A *named* one persists until it is removed; several processes may have it open when all open
// it as shared.
//
// As a Device: offsets are checked against size_bytes(); I/O goes to the base device with translated offsets, cut at
// extent borders where neighbours are not adjacent. reserve() grows a scratch LUN (so growable() is true: size_bytes()
// is what it could have at open); set_size() grows and shrinks either kind.
// Threading: data path lock-free (the map is read with acquire loads); reserve, set_size, refresh block and take a
// lock.
#pragma once
#include "lun/volume/physical_lun.h"
#include "superpipe/device.h"

namespace lunar {

struct VirtualOptions {
  const char* name = "";            // "": a scratch LUN is made. Else it must exist
  LunType type = LunType::kBlocks;  // of a new one; one that is there must be of it (-EMEDIUMTYPE)
  bool create = false;              // a named one that is not there is made; one that is there is -EEXIST
  bool joins = false;               // this process joins it at once: see join()
  bool exclusive = true;            // named: no other open (-EBUSY). Scratch ones are always exclusive
  uint64_t size_bytes = 0;          // of a new one
  // new extents read as zeros: discarded where the device promises that, else written. false: they hold what a former
  // owner left, for callers that never read what they did not write
  bool zeroed = true;
};

class VirtualLun : public Device {
 public:
  // Takes `physical` over in any case: closes it with the LUN, or at once on failure. Where that was opened to look
  // (Format::kLook), a named LUN can be read; every change fails (-EROFS, or the device's own error for a write).
  [[nodiscard]] static int open(PhysicalLun* physical, const VirtualOptions& options, VirtualLun** out, ErrorText* why);

  // Sets the size, rounded up to 4096. Grows (see VirtualOptions::zeroed) or shrinks (the tail is gone; waits up to 5 s
  // for commands in flight, else -EBUSY). Atomic, durable at return.
  // -ENOSPC: size beyond what remains (nothing changed); -EBUSY: shrinking while others have it open or have joined it.
  // A forked child that has not joined must not be using the tail.
  [[nodiscard]] virtual int set_size(uint64_t bytes, ErrorText* why) = 0;
  // This process, which may share it by fork, uses all of it from now on, at the size that it has now: no other one can
  // shrink it then, until this one closes it or ends. A child must join by itself. 0 or -errno.
  [[nodiscard]] virtual int join() = 0;
  virtual bool is_joined_by_others() = 0;   // also where that cannot be told
  virtual uint64_t used_bytes() const = 0;  // the size as last set (or reserved)
  virtual uint64_t remaining_bytes() = 0;   // what set_size could add now. Blocks
  // Another process may have grown it: takes that over. 0 or -errno.
  [[nodiscard]] virtual int refresh() = 0;
  virtual const VirtualLunInfo& info() const = 0;  // as it was opened; see used_bytes() for the size
  virtual PhysicalLun& physical() = 0;
};

}  // namespace lunar
