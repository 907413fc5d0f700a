// SPDX-License-Identifier: Apache-2.0
// The reads of records that one thread of the pool has in progress: a context of the device with
// many commands in flight, instead of one waiting thread per read.
//
// A lane (ark_pool.h) has one read in flight at a time. Later operations of the lane wait here, in
// order. The context and its memory are created for the first read.
// Threading: used by its thread only. A write to the queue's cold_event wakes it.
#pragma once
#include "kv/ark/ark_pool.h"
#include "kv/store.h"

namespace lunar::ark {

class ColdRing {
 public:
  static constexpr unsigned kDepth = 128, kBatch = 32;

  explicit ColdRing(Pool::Queue& queue) : queue_(queue) {}
  ColdRing(const ColdRing&) = delete;
  ColdRing& operator=(const ColdRing&) = delete;
  void close();  // pre: nothing is in flight

  unsigned in_flight() const { return in_flight_; }
  bool full() const { return in_flight_ == kDepth || batch_full(); }
  bool batch_full() const { return queued_ == kBatch; }  // collect() is due
  // Whether a read of that lane is in flight; if so, call wait(op).
  bool busy(uint32_t lane) const;
  void wait(Op* op) { waiting_.append(op); }
  Op* take_waiting(uint32_t lane);  // the first waiting one of the lane; nullptr
  // -EINPROGRESS: the read is queued; otherwise the result of Store::cold_begin.
  // pre: not full()
  [[nodiscard]] int64_t begin(Op* op);
  // Starts the reads that begin() has queued, and waits until `least` reads are done; a signal
  // counts as one. 0: does not wait. op->result of those done: as of Store::cold_finish.
  void collect(unsigned least, OpList* done);

 private:
  struct Entry;
  bool prepare();
  void finish(unsigned entry, int64_t moved, OpList* done);

  Pool::Queue& queue_;
  kv::Store* engine_ = nullptr;
  Context* context_ = nullptr;
  bool refused_ = false;  // no context could be attached
  bool watched_ = false;
  int event_ = -1;
  Entry* entries_ = nullptr;
  unsigned in_flight_ = 0, queued_ = 0;
  Command commands_[kBatch];  // to be started
  uint16_t lanes_[kDepth], free_[kDepth];
  OpList waiting_;
};

}  // namespace lunar::ark
