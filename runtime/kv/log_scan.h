// SPDX-License-Identifier: Apache-2.0
// Reads the part of the log that is on the device, in its order and in large pieces: the first part
// of a walk (store.h: Walk).
//
//   segments that are on the device alone ──► slots, read ahead ──► sound records that the index
//                       leads to and that are not marked ──► marked, returned
//
// Marks in the index (index.h) say which keys were returned, so sets and cleaning may move keys
// meanwhile. After the scan, the walk goes through the index and returns each key without a mark:
// keys of segments in DRAM, of segments that could not be read or were reused before the read
// completed, and keys that are too large for a record.
// Threading: one thread at a time, any. Takes the lock of one shard at a time. Blocks for the
// device.
// May not: exceed the store's budget, of which it takes a thirty-second (at least two segments).
#pragma once
#include <sys/uio.h>

#include <cstdint>

#include "kv/store.h"

namespace lunar::kv {

class LogScan {
 public:
  // 0; -ENOMEM; -EOPNOTSUPP: there is nothing to gain; -errno of Device::attach.
  // pre: no other walk has the marker
  [[nodiscard]] static int open(Store* store, unsigned marker, LogScan** out);
  void close();
  // Returns a pair whose key was not marked, and marks it. The record is valid until the next call.
  // nullptr: there are no more.
  const Record* next();

 private:
  static constexpr unsigned kSlotsMost = 16, kPartsMost = 16, kBatch = 32;
  struct Slot {
    char* memory = nullptr;
    uint64_t number = 0, life = 0, used = 0;
    unsigned left = 0;  // parts that are still being read
    bool busy = false, failed = false;
    iovec parts[kPartsMost];
  };
  struct Found {
    const Record* record;
    uint64_t hash;
  };
  explicit LogScan(Store* store, unsigned marker)
      : store_(store), log_(store->log_), marker_(marker) {}
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
  uint64_t at_ = 0;      // position in the current slot
  bool opened_ = false;  // the current slot
  Found batch_[kBatch];
  unsigned batch_count_ = 0, batch_at_ = 0;
};

}  // namespace lunar::kv
