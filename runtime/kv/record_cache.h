// SPDX-License-Identifier: Apache-2.0
// The read cache: copies of records on the device that are read often.
//
//   (address, life) ──► Index ──► copy of the record, in a chunk
//
//   admit ──► small queue, a tenth │ oldest chunk: read again? ──► main queue
//                                  └ no: dropped, noted in the ghosts
//             main queue           │ oldest chunk: read since? ──► its front
//                                  └ no: dropped
//
// The content of a segment on the device does not change during one of its lives, so a copy is
// never stale: the store's index leads to an address, and the life of that segment at that moment
// identifies the copy. After a set, a delete, cleaning, or reuse of the segment, the index leads
// elsewhere. The copy is no longer found, and is dropped with its chunk. Only records with the
// right checksum are admitted.
//
// Eviction is S3-FIFO: a record that is read once leaves through the small queue without displacing
// hot ones; a record that comes back soon after it left goes to the main queue at once. Space is
// taken and freed by chunks, in the order of the queue; admitting threads do the work, a few
// records at a time.
//
// Memory: all of the budget that nothing else has taken, one chunk at a time; shrink() gives a
// chunk back. Threading: find, note_read: any, in an epoch, without a lock. admit: any; it does
// nothing while another thread admits. A chunk is reused once no reader is left that could see its
// old content (epoch.h).
// May not: read the device, wait for it.
#pragma once
#include <atomic>
#include <cstdint>

#include "kv/budget.h"
#include "kv/epoch.h"
#include "kv/index.h"
#include "kv/record.h"
#include "sys/thread.h"

namespace lunar::kv {

class RecordCache {
 public:
  // Without memory the cache stays closed, and admits nothing.
  // pre: everything else that is charged at the start has been
  void open(Budget* budget, Epochs* epochs);
  void close();

  // The copy of the record at `address` in that life of its segment, or nullptr.
  // pre: called in the epoch in which the store's index led to the address; the copy is valid in
  // that epoch
  Record* find(Address address, uint64_t life) const;
  // Notes a read of a record that find() returned. Ignores other records.
  void note_read(const Record* record) const;
  // again: the record was read before, and goes to the main queue at once. body: the body of the
  // record, if it has one; it follows the record in the copy.
  // pre: the record is what was written at that address in that life, nothing changes it, and it is
  // a pair
  void admit(const Record* record, Address address, uint64_t life, bool again = false,
             const char* body = nullptr);
  // Gives a chunk back to the budget, after its readers have left. False: the cache has no chunk.
  // pre: called in no epoch
  bool shrink();

  uint64_t bytes() const {  // of DRAM that the cache has taken
    return bytes_.load(std::memory_order_relaxed);
  }
  uint64_t entries() const { return index_.entries(); }

 private:
  struct Copy {
    uint64_t life;
    // address << kHitBits | reads since it was admitted or last examined
    std::atomic<uint64_t> address_hits;
    Record record;
  };
  struct Chunk {
    uint32_t next = 0;  // number + 1, as for all below: the next younger chunk of its queue
    uint32_t used = 0, swept = 0;  // bytes
    uint64_t retired = 0;          // epoch
  };
  struct Queue {
    uint32_t first = 0, last = 0, count = 0;  // oldest; youngest, which takes what is admitted
  };
  static constexpr unsigned kHitBits = 8, kSpareChunks = 2, kSweepFactor = 4;
  static constexpr uint64_t kHitsMost = 3;
  static constexpr uint64_t kChunkBytesMin = 64 * kKiB, kChunkBytesMax = 2 * kMiB,
                            kChunksWanted = 32;

  static uint64_t hash_of(Address address, uint64_t life);
  static uint64_t copy_bytes(const Record* record) {
    return sizeof(Copy) - sizeof(Record) + record->live_units() * kUnitBytes;
  }
  char* memory_of(uint32_t chunk) const { return base_ + (chunk - 1) * chunk_bytes_; }
  Copy* copy_at(Address at) const {
    return reinterpret_cast<Copy*>(base_ + (at.value - 1) * kUnitBytes);
  }
  Address place_of(const Copy* copy) const {
    return Address{static_cast<uint64_t>(reinterpret_cast<const char*>(copy) - base_) / kUnitBytes +
                   1};
  }
  // pre of all below: the lock
  static void push(Queue* queue, Chunk* chunks, uint32_t chunk);
  static uint32_t pop(Queue* queue, const Chunk* chunks);
  bool may_grow() const;
  bool spare_is_safe() const;
  uint32_t take_chunk();
  void retire(uint32_t chunk);
  void discard(uint32_t chunk);
  Copy* put(Queue* queue, const Record* record, const char* body, Address address, uint64_t life);
  static const char* behind(const Record* record) {
    return reinterpret_cast<const char*>(record) + record->units() * kUnitBytes;
  }
  void sweep(uint64_t bytes);
  void look_at_again(const Copy* copy, bool small, bool keep);
  void empty(Queue* queue);
  bool remembered(uint64_t hash);
  void remember(uint64_t hash);

  char* mapping_ = nullptr;
  char* base_ = nullptr;  // the first chunk; nullptr: closed
  uint64_t mapping_bytes_ = 0, chunk_bytes_ = 0, tables_bytes_ = 0;
  uint32_t count_ = 0;  // number of chunks that the budget could hold at most
  Chunk* chunks_ = nullptr;
  uint32_t* ghosts_ = nullptr;  // indexed by hash; each holds part of a hash
  uint64_t ghost_count_ = 0;    // a power of two
  Budget* budget_ = nullptr;
  Epochs* epochs_ = nullptr;
  sys::SpinLock lock_;
  Queue small_, main_;
  Queue retired_;  // charged; waits for its readers; oldest first
  Queue blank_;    // not charged
  std::atomic<uint64_t> bytes_{0};
  Index index_;
};

}  // namespace lunar::kv
