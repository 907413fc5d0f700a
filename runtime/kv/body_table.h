// SPDX-License-Identifier: Apache-2.0
// Where the bodies of records lie (record.h: RecordNotes::kBody), so that a get of one reads
// nothing but its blocks.
//
//   address of the record ──► line of eight entries
//   entry   │ checksum │ units 13 │ blocks - 1: 3 │ block 8 │ address 40 │
//
// A cache that may forget and may be wrong: the checksum covers the key and the value, seeded by
// the address and the segment's life, so what is read by an entry is proved by it, or the record
// says where its body is. So nothing is ever invalidated, and stores need no order. It learns what
// is written to the device and, after an open, what is read.
//
// It doubles when entries push each other out, up to an eighth of the budget. What was known stays
// where it was: find looks there too, and moves what it finds. When others need the memory it
// halves.
// Threading: any; grow() and shrink() take a lock. May not: allocate, block.
#pragma once
#include <atomic>
#include <cstdint>

#include "kv/budget.h"
#include "kv/record.h"
#include "sys/thread.h"

namespace lunar::kv {

struct BodyPlace {
  uint64_t checksum = 0;
  uint32_t block = 0;   // of the segment
  uint32_t blocks = 0;  // 0: not known
  uint32_t units = 0;   // of the record
};

class BodyTable {
 public:
  static constexpr uint64_t kBlocksMost = 8, kUnitsMost = (1u << 13) - 1, kShareOfBudget = 8;

  // Without memory it stays closed, and knows nothing.
  void open(Budget* budget);
  void close();
  bool find(Address address, BodyPlace* out);
  void note(Address address, const BodyPlace& place);
  void forget(Address address);
  // Whether more of it would be of use.
  bool wants_more() const {
    return pushed_out_.load(std::memory_order_relaxed) > bytes() / sizeof(Line) / 8;
  }
  uint64_t bytes() const { return sizeof(Line) << bits_.load(std::memory_order_relaxed); }
  bool may_grow() const { return lines_ && 2 * bytes() <= bytes_most_; }
  bool
  grow();  // by as much as it has. False: it is as large as it may be, or the budget has no more
  bool shrink();  // by half. False: it is as small as it may be

 private:
  static constexpr unsigned kEntries = 8, kBitsMin = 5;
  struct Entry {
    std::atomic<uint64_t> checksum, packed;  // packed 0: empty
  };
  struct alignas(64) Line {
    Entry entries[kEntries];
  };
  Line& line_of(Address address, unsigned bits) const;
  static Entry* entry_of(Line& line, Address address);

  Line* lines_ = nullptr;
  uint64_t bytes_most_ = 0;
  Budget* budget_ = nullptr;
  sys::SpinLock lock_;
  std::atomic<unsigned> bits_{kBitsMin};
  std::atomic<uint64_t> pushed_out_{0};  // entries, since it grew
};

}  // namespace lunar::kv
