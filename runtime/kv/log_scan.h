// SPDX-License-Identifier: Apache-2.0
// Reads what of the log lies on the device, in its order and in large pieces: the first part of a walk (store.h: Walk).
//
//   segments that lie on the device alone ──► slots, read ahead ──► sound records that the index leads to and that are
//                                                                  not marked ──► marked, given
//
// Marks in the index (index.h) say which keys have been given, so sets and cleaning may move keys meanwhile. What this
// scan leaves out is given later, when the walk goes through the index and gives each key without a mark: segments in
// DRAM, large pairs, and segments that cannot be read or were reused before the read came back.
// Threading: one thread at a time, any. Takes the lock of one shard at a time. Blocks for the device.
// May not: go beyond the store's budget, of which it takes a thirty-second (two segments at least).
#pragma once
#include <sys/uio.h>

#include <cstdint>

#include "kv/store.h"

namespace lunar::kv {

class LogScan {
 public:
  // 0; -ENOMEM, -EOPNOTSUPP (nothing to gain by it), -errno of Device::attach. Pre: the marker is the caller's alone.
  [[nodiscard]] static int open(Store* store, unsigned marker, LogScan** out);
  void close();
  // A pair whose key was not marked; now it is. It stays until the next call. nullptr: that was all.
  const Record* next();

 private:
  static constexpr unsigned kSlotsMost = 16, kPartsMost = 16, kBatch = 32;
  struct Slot {
    char* memory = nullptr;
    uint64_t number = 0, life = 0, used = 0;
    unsigned left = 0;  // parts that are being read
    bool busy = false, failed = false;
    iovec parts[kPartsMost];
  };
  struct Found {
    const Record* record;
    uint64_t hash;
  };
  explicit LogScan(Store* store, unsigned marker) : store_(store), log_(store->log_), marker_(marker) {}
  int prepare();
  void clear_marks();
  bool on_device_alone(uint64_t number) const;
  void begin(Slot* slot);
  bool wait_for(const Slot& slot);
  void gather(const Slot& slot);
  bool take(const Found& found);

  Store* store_;
  Log& log_;
  unsigned marker_;
  Context* context_ = nullptr;
  char* memory_ = nullptr;  // of all slots
  uint64_t charged_ = 0;
  Slot slots_[kSlotsMost];
  unsigned slot_count_ = 0, turn_ = 0;
  uint64_t next_segment_ = 0;
  uint64_t at_ = 0;      // in the slot whose turn it is
  bool opened_ = false;  // that slot
  Found batch_[kBatch];
  unsigned batch_count_ = 0, batch_at_ = 0;
};

}  // namespace lunar::kv
