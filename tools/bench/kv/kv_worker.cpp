// SPDX-License-Identifier: Apache-2.0
// See kv_worker.h.
#include "tools/bench/kv/kv_worker.h"

#include <algorithm>
#include <cerrno>
#include <thread>

#include "tools/support/clock.h"

namespace lunar::tools {

uint64_t KvWorker::draw() {
  const uint64_t keys = driver_.states_.keys();
  if (order_.draw == KvDraw::kUniform) return random_.below(keys);
  const uint64_t rank = driver_.zipf_->rank(random_);
  return order_.draw == KvDraw::kZipf ? driver_.zipf_->scattered(rank)
                                      : keys - 1 - std::min(rank, keys - 1);
}

void KvWorker::prepare(uint64_t number, bool writes) {
  number_ = number;
  key_ = driver_.content_.key(number);
  writing_ = writes;
  if (writes)
    driver_.content_.fill(number, driver_.states_.next(number), value_);
  else
    least_ = driver_.states_.least(number);
}

void KvWorker::begin() {
  const uint64_t dice = random_.below(100);
  const KvMix& mix = order_.mix;
  writes_next_ = false;
  if (dice < mix.reads) {
    uint64_t number = draw();
    while (driver_.states_.least(number) == 0 && number > 0)
      --number;  // its insert is not acknowledged yet
    return prepare(number, false);
  }
  uint64_t number;
  const bool inserts =
      dice >= mix.reads + mix.updates && dice < mix.reads + mix.updates + mix.inserts;
  if (inserts && driver_.states_.add(&number)) return prepare(number, true);
  do { number = draw(); } while (!driver_.states_.claim(number));
  writes_next_ = dice >= mix.reads + mix.updates + mix.inserts;
  prepare(number, !writes_next_);
}

bool KvWorker::end(int64_t length, KvTally& tally) {
  if (writing_) {
    driver_.states_.release(number_, true);
    ++tally.writes;
    return false;
  }
  ++tally.reads;
  const uint32_t version = driver_.content_.check(number_, value_, length);
  if (!driver_.states_.right(number_, least_, version)) ++tally.mismatches;
  if (!writes_next_) return false;
  writes_next_ = false;
  prepare(number_, true);
  return true;
}

void KvWorker::give_up() {
  if (writing_ || writes_next_) driver_.states_.release(number_, false);
}

void KvChain::start() {
  worker_.begin();
  issue();
}

void KvChain::issue() {
  issued_ns_ = now_ns();
  for (;;) {
    const int code = worker_.writing() ? session_.start_set(worker_.key(), worker_.value(), this)
                                       : session_.start_get(worker_.key(), worker_.value(), this);
    if (code == 0) return;
    if (code == EAGAIN && driver_.phase_.load(std::memory_order_acquire) != KvDriver::kStop) {
      std::this_thread::yield();
      continue;
    }
    worker_.give_up();
    if (code != EAGAIN) driver_.fail(code, "asynchronous call");
    return end();
  }
}

void KvChain::came_back(KvDone* self, int code, int64_t length) {
  auto* chain = static_cast<KvChain*>(self);
  if (code != 0) {
    chain->worker_.give_up();
    chain->driver_.fail(code, chain->worker_.writing() ? "set" : "get");
    return chain->end();
  }
  KvTally& tally = chain->driver_.tally();
  if (chain->worker_.end(length, tally)) return chain->issue();
  tally.latencies.add(now_ns() - chain->issued_ns_);
  if (chain->driver_.phase_.load(std::memory_order_acquire) == KvDriver::kStop) return chain->end();
  chain->start();
}

// When the count is 0, the chains may be destroyed, so only the driver is used here.
void KvChain::end() {
  std::atomic<uint32_t>& alive = driver_.chains_alive_;
  if (alive.fetch_sub(1, std::memory_order_acq_rel) == 1) alive.notify_all();
}

}  // namespace lunar::tools
