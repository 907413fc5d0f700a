// SPDX-License-Identifier: Apache-2.0
// SlotAllocator: a Device, or a piece of one, as an array of page-sized *slots* for evicted pages, written as a log.
// Nothing of it outlives its owner.
//
// Placement. Slots are grouped in segments of 64 (one bitmap word). alloc() hands out runs: whole free segments first,
// in device order behind a moving head, so that cold pages are written sequentially; when no segment is free, the free
// runs of the emptiest segments at hand. Nothing is ever written over a live slot.
//
// Space. A page may rely on a slot only when the space is *charged* (charge(): a promise against the capacity) and
// *reserved* on the device (fallocate, grown in extents ahead of the charge): so that running out shows as ENOMEM at
// allocation, never at eviction. `cleaning_reserve` slots on top are for pages in flight between an old and a new slot.
//
// Threading: every call but open/close may come from any thread; alloc and release are lock-free on the bitmap
// (fetch_and/fetch_or a word). charge() may block in fallocate (under a lock of its own) and is not for the fault path;
// charge_fast() is.
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
  static constexpr uint32_t kCleaningReserve = 4096;  // slots beyond what can be charged (scaled down on tiny LUNs)

  // Carves `capacity_bytes` (rounded down to whole segments) at `base` of `device`. page_bytes: the slot's size.
  // 0; -EINVAL when smaller than 64 slots + reserve; -ENOMEM.
  [[nodiscard]] int open(Device* device, DeviceOffset base, uint64_t capacity_bytes, uint32_t page_bytes);
  void close();
  // in a forked child, of an ancestor's: what lies there is not ours to give back
  void forget();

  uint64_t capacity_slots() const;  // that may be charged
  uint64_t charged_slots() const;
  uint64_t used_slots() const;  // allocated now

  // Promise `slots` more. 0; -ENOMEM when capacity (or the file system) does not allow it, -EFBIG when the limit on
  // file sizes does not (which is logged): nothing is charged then.
  [[nodiscard]] int charge(uint64_t slots);
  // As charge(), but only out of space that is reserved already: never blocks. -EAGAIN: call charge() elsewhere.
  [[nodiscard]] int charge_fast(uint64_t slots);
  bool runs_short() const;  // charge_fast will soon need a charge() from elsewhere
  void uncharge(uint64_t slots);

  // Takes up to `want` slots in at most max_runs runs (fills runs[], returns the number of runs; 0 = full).
  // Prefers one run; slots are exclusively the caller's until release().
  unsigned alloc(uint32_t want, SlotRun* runs, unsigned max_runs);
  void release(Slot slot);
  void retire(Slot slot);  // after a write error: never handed out again; counted
  uint64_t retired_slots() const;

  DeviceOffset offset_of(Slot slot) const;
  Device* device() const { return device_; }
  uint32_t page_bytes() const { return page_bytes_; }
  // The slots in use, a bit each, 64 a word: copied to `words`, or added to what is there. For fork.
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
