// SPDX-License-Identifier: Apache-2.0
// One operation after the other, as an order says: which key, read or write, and whether what came
// back is right. Threading: a worker is used by one thread at a time. May not be used by runtime/
// (it allocates).
#pragma once
#include "tools/bench/kv/kv_driver.h"

namespace lunar::tools {

class KvWorker {
 public:
  KvWorker(KvDriver& driver, const KvOrder& order, uint64_t seed, char* value)
      : driver_(driver), order_(order), random_(seed), value_(value) {}
  // Chooses the next operation; a value that is to be written stands in value().
  void begin();
  bool writing() const { return writing_; }
  const KvKey& key() const { return key_; }
  char* value() const { return value_; }
  // The call has come back without an error. True: the operation has a second part, a write.
  bool end(int64_t length, KvTally& tally);
  // It has come back with one.
  void give_up();

 private:
  void take(uint64_t number, bool writes);
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

// A worker whose operations are asynchronous: each callback issues the next, until the phase says
// stop.
class KvChain : private KvDone {
 public:
  KvChain(KvDriver& driver, KvSession& session, const KvOrder& order, uint64_t seed, char* value)
      : driver_(driver), session_(session), worker_(driver, order, seed, value) {
    run = came_back;
  }
  void start();  // the next operation

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
