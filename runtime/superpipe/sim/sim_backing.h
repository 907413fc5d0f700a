// SPDX-License-Identifier: Apache-2.0
// The backing device of sim: devices: the memory that commands see, and, with a volatile cache,
// also what a power loss would leave of it.
//
//   write ──► memory_             what reads see
//        └──► log_ ──────────►    durable_          what is on stable storage
//             content of the      destaged in order: by a flush, or when the log is full
//             cache
//
// A power loss leaves the device as a disk may leave it: each record in the log, in order, is there
// in full, in part (any of its sectors of 512 bytes) or not at all. A record that is *whole* is
// never there in part. Data written with fua are always there. Without a cache every write is on
// stable storage when it completes.
//
// Each name has one backing device, for as long as the process lives.
// Threading: any thread; a spin lock protects what the log and the memory must agree on. Allocates
// only in find_or_make.
#pragma once
#include <sys/uio.h>

#include <atomic>
#include <cstdint>

#include "base/error.h"
#include "sys/thread.h"

namespace lunar {

class SimBacking {
 public:
  static constexpr uint64_t kSector = 512;
  static constexpr size_t kNameBytes = 40;

  // Finds the backing device of that name, or makes a new one ("": without a name). cache_bytes:
  // size of its volatile cache; 0: none, or that of the existing one. 0; -EINVAL: the name has
  // another size or cache; -ENOMEM; with *why.
  [[nodiscard]] static int find_or_make(const char* uri, const char* name, uint64_t bytes,
                                        uint64_t cache_bytes, SimBacking** out, ErrorText* why);
  void close();  // frees it if it has no name

  char* memory() const { return memory_; }
  bool cached() const { return log_ != nullptr; }
  bool powered() const { return powered_.load(std::memory_order_acquire); }
  uint32_t epoch() const { return epoch_.load(std::memory_order_acquire); }  // counts power losses
  // A mark for everything that has completed until now: a flush that is submitted now must cover
  // it.
  uint64_t completed() const { return next_.load(std::memory_order_acquire); }

  // Writes the first `bytes` bytes of a vector at `at`. whole: a power loss keeps or loses them
  // together. fua: it keeps them. False: the power went off at this moment; they may be there, or
  // not, or in part.
  bool write(uint64_t at, const iovec* iov, uint64_t bytes, bool whole, bool fua);
  bool zero(uint64_t at, uint64_t bytes);
  bool flush(uint64_t until);  // makes durable what completed before `until`

  // Cuts the power: until restore_power() nothing works. seed: selects what survives; 0: nothing
  // that may be lost.
  void cut_power(uint64_t seed);
  // The same in the middle of one of the coming writes, discards and flushes: the n-th (1: the
  // next). 0: never.
  void cut_power_at(uint64_t n, uint64_t seed);
  void restore_power() { powered_.store(true, std::memory_order_release); }

 private:
  struct Record {
    uint64_t number, at, bytes;
    bool data, whole, fua;  // !data: zeros
  };
  // Whether writes need no record.
  bool plain() const { return !cached() && cut_in_.load(std::memory_order_acquire) == 0; }
  bool begin();
  void put(const Record& record, const iovec* iov);
  void destage();
  void apply(const Record& record, uint64_t place, uint64_t seed);
  void lose_power(uint64_t seed);
  uint64_t log_bytes(const Record& record) const {
    return sizeof(Record) + (record.data ? record.bytes : 0);
  }
  void ring_write(uint64_t place, const void* from, uint64_t bytes);
  void ring_read(uint64_t place, void* to, uint64_t bytes) const;

  sys::SpinLock lock_;
  char* memory_ = nullptr;
  char* durable_ = nullptr;
  char* log_ = nullptr;  // a ring of log_size_ bytes: head_ .. tail_
  uint64_t bytes_ = 0, log_size_ = 0, head_ = 0, tail_ = 0;
  std::atomic<uint64_t> next_{0};    // number of the next record
  std::atomic<uint64_t> cut_in_{0};  // commands until the power goes off; 0: it stays on
  uint64_t cut_seed_ = 0;
  std::atomic<bool> powered_{true};
  std::atomic<uint32_t> epoch_{0};
  SimBacking* next_named_ = nullptr;
  char name_[kNameBytes] = {};
};

}  // namespace lunar
