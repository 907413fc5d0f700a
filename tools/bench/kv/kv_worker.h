// SPDX-License-Identifier: Apache-2.0
// A worker makes the operations of an order one after the other: it chooses key and kind, and
// checks the result.
// Threading: a worker is used by one thread at a time.
#pragma once
#include "tools/bench/kv/kv_driver.h"

namespace lunar::tools {

class KvWorker {
 public:
  KvWorker(KvDriver& driver, const KvOrder& order, uint64_t seed, char* value)
      : driver_(driver), order_(order), random_(seed), value_(value) {}
  // Chooses the next operation. For a write, value() has the new value.
  void begin();
  bool writing() const { return writing_; }
  const KvKey& key() const { return key_; }
  char* value() const { return value_; }
  // Call after a success. True: the operation has a second part, a write.
  bool end(int64_t length, KvTally& tally);
  // Call after an error.
  void give_up();

 private:
  void prepare(uint64_t number, bool writes);
  uint64_t draw();
  KvDriver& driver_;
  const KvOrder& order_;
  Random random_;
  char* value_;
  KvKey key_{};
  uint64_t number_ = 0;
  uint32_t least_ = 0;
  bool writing_ = false, writes_next_ = false;
};

// A worker with asynchronous operations: each callback issues the next one, until the phase is
// kStop.
class KvChain : private KvDone {
 public:
  KvChain(KvDriver& driver, KvSession& session, const KvOrder& order, uint64_t seed, char* value)
      : driver_(driver), session_(session), worker_(driver, order, seed, value) {
    run = came_back;
  }
  void start();  // begins the next operation

 private:
  static void came_back(KvDone* self, int code, int64_t length);
  void issue();
  void end();
  KvDriver& driver_;
  KvSession& session_;
  KvWorker worker_;
  uint64_t issued_ns_ = 0;
};

}  // namespace lunar::tools
