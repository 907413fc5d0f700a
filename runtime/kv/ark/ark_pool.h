// SPDX-License-Identifier: Apache-2.0
// Asynchronous calls: which thread carries them out, and the threads that call back.
//
//   ark_get_async_cb ─┬─ needs no wait ──► carried out by the thread that issues ──► Op, done ─┐
//                     └─ else ───────────────────────────────► Op ──────────────────────────┐ │
//                                                                                            ▼ ▼
//                                       a queue and its thread: carries out what is not done, and calls back
//
// Order of a key. Keys share *lanes* by hash. A lane counts the Ops that are queued and not carried out, and says in
// whose queue: while there are any, further operations of the lane go behind them; else one may be carried out at once.
// An operation that was issued before this one, by this thread or by one that it synchronised with, has been counted,
// so it is seen.
//
// Callbacks run on the pool's threads alone, one after the other, never within a call that issues. What a callback
// issues and is carried out at once goes to the end of its own thread's queue: no hand-over, and no nesting. Operations
// that other threads have carried out go to as many queues as there are CPUs, so that few threads are woken. Reads of
// the device go there too, as a thread has many under way (cold_ring.h); operations that block go to any of the queues.
// A queue's thread starts with its first Op, and sleeps while there is none; only a sleeping one is woken.
//
// How much may be under way: an Op is one of `nasync` that a connection has; a queue takes `nqueue`. Beyond either it
// is EAGAIN. What a callback issues goes by other rules, as a pool thread that waits for room in queues could wait for
// itself: the first operation of a callback on its own connection takes over the Op of the one that called back, and no
// queue is full for it.
// Threading: issue() by any thread. May not: be stopped by a thread of its own.
#pragma once
#include <atomic>
#include <cstdint>

#include "sys/thread.h"

namespace lunar {
class Context;
class Device;
}  // namespace lunar

namespace lunar::ark {

struct Connection;
class ColdRing;
class Pool;

using Callback = void (*)(int errcode, uint64_t dt, int64_t res);

enum class OpKind : uint8_t { kSet, kGet, kDel, kExists };

struct Request {
  OpKind kind = OpKind::kGet;
  uint64_t key_bytes = 0;
  const void* key = nullptr;
  uint64_t value_bytes = 0;  // kGet: of the buffer
  void* value = nullptr;
  uint64_t offset = 0;
  Callback callback = nullptr;
  uint64_t tag = 0;
};

struct Op {
  Op* next = nullptr;
  Connection* connection = nullptr;
  Request request;
  int64_t result = 0;   // length, or -errno, once it is done
  uint32_t lane = 0;    // of its key
  bool done = false;    // carried out; its callback is left
  bool counted = true;  // in its queue's depth
};

// Operations in the order in which they came. One thread's.
struct OpList {
  Op* first = nullptr;
  Op* last = nullptr;
  void append(Op* op) {
    op->next = nullptr;
    (last ? last->next : first) = op;
    last = op;
  }
  Op* take() {
    Op* op = first;
    if (op) first = op->next;
    if (!first) last = nullptr;
    return op;
  }
};

class Pool {
 public:
  static constexpr unsigned kThreadsMax = 256, kLanes = 4096;
  // One of its threads.
  struct alignas(128) Queue {
    std::atomic<Op*> incoming{nullptr};  // the youngest first; kAsleep: none, and the thread sleeps or is about to
    std::atomic<uint32_t> depth{0};      // counted Ops, also those that the thread has taken and not begun with
    std::atomic<uint32_t> word{0};       // changes when the thread is woken
    std::atomic<bool> started{false}, stopping{false};
    ColdRing* cold = nullptr;         // its thread's, on its stack
    std::atomic<int> cold_event{-1};  //   wakes it
    std::atomic<Context*> cold_context{nullptr};
    Pool* pool = nullptr;
    pthread_t thread = {};
  };
  // How many Ops of it are queued and not carried out, and (from bit 24 on) whose queue these go to.
  using Lane = std::atomic<uint32_t>;

  // queues: memory for `threads`, constructed; lanes: kLanes zeros.
  void open(Queue* queues, Lane* lanes, unsigned threads, unsigned depth);
  // 0, EAGAIN, ENOMEM (its thread cannot be started). Pre: the connection is in use.
  [[nodiscard]] int issue(Connection* connection, const Request& request);
  // Carries out what is queued, and ends the threads. Pre: nothing is issued any more, but by callbacks that are
  // refused.
  void stop();
  // In a forked child: no threads, nothing queued.
  void forget_in_child();
  // In a forked child that will not use the store: closes what reads from its device (may be nullptr) go by.
  void abandon_in_child(Device* device);
  // In a forked child, of any pool's thread that forked (a callback did): what is queued is the parent's.
  static void end_forked_thread();
  // Whether the calling thread is one of its.
  bool is_mine() const;

 private:
  int start_thread(Queue& queue);
  int reserve(unsigned lane, bool near, Queue** out);
  void push(Queue& queue, Op* op);
  unsigned enter_lane(unsigned lane, unsigned queue);
  static void wake(Queue& queue);
  static void thread_main(void* queue);
  static void take_incoming(Queue& queue, OpList* own);
  static bool sleep(Queue& queue);
  static bool announce_sleep(Queue& queue, Op* how);
  static void begin(Queue& queue, Op* op, OpList* own);
  static void collect(Queue& queue, unsigned least, OpList* own);
  static void carried_out(Queue& queue, Op* op, int64_t result, OpList* own);
  static void call_back(Op* op);

  Queue* queues_ = nullptr;
  Lane* lanes_ = nullptr;
  unsigned count_ = 0, near_ = 0;  // near: queues for what other threads have carried out
  uint32_t depth_ = 0;
  sys::Mutex starting_;
};

}  // namespace lunar::ark
