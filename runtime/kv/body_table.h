// SPDX-License-Identifier: Apache-2.0
// The places of bodies (record.h: RecordNotes::kBody), so that a get reads only the blocks of the
// body.
//
//   address of the record ──► line of eight entries
//   entry   │ checksum │ units 13 │ blocks - 1: 3 │ block 8 │ address 40 │
//
// The table is a cache that may forget entries and may have wrong ones. The checksum of an entry
// covers key and value, seeded by the address and the segment's life, so it proves the bytes that
// are read. If it does not, the record is read. So nothing is ever invalidated, and the two words
// of an entry may be stored in any order. The table learns bodies that are written to the device
// and, after an open, bodies that are read.
//
// The table doubles when entries push each other out, up to an eighth of the budget. Entries stay
// where they were; find() looks there too, and copies an entry that it finds. When other users of
// the budget need memory, the table halves. A note() that runs during the halving may still write
// to the half that was given back. So each thread may make one page resident there, outside the
// budget until the table grows again.
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

  // Without memory the table stays closed: it finds nothing and notes nothing.
  void open(Budget* budget);
  void close();
  bool find(Address address, BodyPlace* out);
  void note(Address address, const BodyPlace& place);
  void forget(Address address);
  // Whether more room would be of use.
  bool wants_more() const {
    return pushed_out_.load(std::memory_order_relaxed) > bytes() / sizeof(Line) / 8;
  }
  uint64_t bytes() const { return sizeof(Line) << bits_.load(std::memory_order_relaxed); }
  bool may_grow() const { return lines_ && 2 * bytes() <= bytes_most_; }
  bool grow();    // doubles the table. False: it has its full size, or the budget has no more
  bool shrink();  // halves the table. False: it has its least size

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
