// SPDX-License-Identifier: Apache-2.0
// SlotAllocator: a Device, or a piece of one, as an array of page-sized *slots* for evicted pages,
// written as a log. Nothing in it outlives its owner.
//
// Placement. Slots are grouped in segments of 64 (one bitmap word). alloc() returns runs: whole
// free segments first, in device order from a moving head, so that cold pages are written
// sequentially. If no segment is free, it returns the free runs of the emptiest segments nearby. A
// slot in use is never overwritten.
//
// Space. A page may rely on a slot only if the space is *charged* (charge(): a promise against the
// capacity) and *reserved* on the device (fallocate, grown in extents ahead of the charge), so that
// running out shows as ENOMEM at allocation, never at eviction. kCleaningReserve more slots are for
// pages in flight between an old and a new slot.
//
// Threading: any thread may make every call except open/close; alloc and release are lock-free on
// the bitmap (one fetch_and/fetch_or per word). charge() may block in fallocate (under its own
// lock) and is not for the fault path; charge_fast() is.
// On-media format: none.
#pragma once
#include <atomic>
#include <cstdint>

#include "base/error.h"
#include "base/units.h"
#include "superpipe/device.h"

namespace lunar {

struct SlotRun {
  Slot first{};
  uint32_t count = 0;
};

class SlotAllocator {
 public:
  static constexpr uint32_t kSlotsPerSegment = 64;
  // slots that cannot be charged (fewer on tiny LUNs)
  static constexpr uint32_t kCleaningReserve = 4096;

  // Carves `capacity_bytes` (rounded down to whole segments) out of `device` at `base`. page_bytes:
  // the size of a slot. 0; -EINVAL: smaller than 64 slots + reserve; -ENOMEM.
  [[nodiscard]] int open(Device* device, DeviceOffset base, uint64_t capacity_bytes,
                         uint32_t page_bytes);
  void close();
  // In a forked child, for an ancestor's allocator: the slots are not this process' to free.
  void forget();

  uint64_t capacity_slots() const;  // slots that may be charged
  uint64_t charged_slots() const;
  uint64_t used_slots() const;  // allocated now

  // Charges `slots` more. 0; -ENOMEM: capacity (or the file system) does not allow it; -EFBIG: the
  // limit on file sizes does not (logged). After an error nothing is charged.
  [[nodiscard]] int charge(uint64_t slots);
  // As charge(), but only from space that is reserved already; never blocks. -EAGAIN: a thread that
  // may block must call charge().
  [[nodiscard]] int charge_fast(uint64_t slots);
  bool runs_short() const;  // charge_fast will soon return -EAGAIN
  void uncharge(uint64_t slots);

  // Takes up to `want` slots in at most max_runs runs. Fills runs[] and returns the number of runs;
  // 0: the LUN is full. Prefers one run. The slots belong to the caller until release().
  unsigned alloc(uint32_t want, SlotRun* runs, unsigned max_runs);
  void release(Slot slot);
  void retire(Slot slot);  // after a write error: never given out again; counted
  uint64_t retired_slots() const;

  DeviceOffset offset_of(Slot slot) const;
  Device* device() const { return device_; }
  uint32_t page_bytes() const { return page_bytes_; }
  // copy_used: the slots in use, one bit each, 64 per word, are copied to `words` or added to them.
  uint32_t bitmap_words() const;
  void copy_used(uint64_t* words, bool add) const;
  bool validate() const;  // whole-structure check: counters against the bitmap

 private:
  struct Impl;
  Device* device_ = nullptr;
  uint32_t page_bytes_ = 0;
  Impl* impl_ = nullptr;
};

}  // namespace lunar
