// SPDX-License-Identifier: Apache-2.0
// Asynchronous calls: which thread carries them out, and the threads that call back.
//
//   ark_get_async_cb ─┬─ needs no wait ──► carried out by the issuing thread ─────► Op, done ─┐
//                     └─ else ───────────────────────────────► Op ──────────────────────────┐ │
//                                                                                            ▼ ▼
//                                       a queue and its thread: carries out what is not done yet,
//                                       and calls back
//
// Order per key. Keys share *lanes* by hash. A lane counts the Ops that are queued and not carried
// out yet, and records whose queue they are in. While there are any, further operations of the lane
// are queued behind them; otherwise an operation may be carried out at once. An operation that was
// issued earlier, by this thread or by one that it synchronised with, has been counted, so this
// check sees it.
//
// Callbacks run on the pool's threads only, one after the other, never within a call that issues.
// An operation that a callback issues and that is carried out at once goes to the end of its own
// thread's queue, so callbacks do not nest. Operations that other threads have carried out go to as
// many queues as there are CPUs, so that few threads are woken. So do reads of the device, because
// a thread has many in progress (cold_ring.h). Operations that block go to the other queues, or to
// any queue if there are no others. A queue's thread starts with its first Op, and sleeps while
// there is none; only a sleeping one is woken.
//
// Limits. Each operation takes one of the `nasync` Ops of its connection, and a queue takes
// `nqueue`. Beyond either limit the call fails with EAGAIN. A pool thread that waited for room in
// queues could wait for itself, so for callbacks no queue is full. The first operation of a
// callback on its own connection takes over the Op of the call that called back.
// Threading: issue() by any thread. May not: be stopped by one of its own threads.
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
  uint64_t value_bytes = 0;  // kGet: size of the buffer
  void* value = nullptr;
  uint64_t offset = 0;
  Callback callback = nullptr;
  uint64_t tag = 0;
};

struct Op {
  Op* next = nullptr;
  Connection* connection = nullptr;
  Request request;
  int64_t result = 0;   // length, or -errno, if `done`
  uint32_t lane = 0;    // of its key
  bool done = false;    // carried out; its callback is still to be called
  bool counted = true;  // in its queue's depth
};

// Operations in the order of their arrival. Used by one thread.
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
    // The youngest first. kAsleep: none, and the thread sleeps or is about to sleep.
    std::atomic<Op*> incoming{nullptr};
    // Counted Ops, including those that the thread has taken but not begun.
    std::atomic<uint32_t> depth{0};
    std::atomic<uint32_t> word{0};  // changes when the thread is woken
    std::atomic<bool> started{false}, stopping{false};
    ColdRing* cold = nullptr;         // the thread's, on its stack
    std::atomic<int> cold_event{-1};  // wakes the thread when it waits for reads
    std::atomic<Context*> cold_context{nullptr};
    Pool* pool = nullptr;
    pthread_t thread = {};
  };
  // The number of Ops that are queued and not carried out, and (from bit 24 on) whose queue they
  // are in.
  using Lane = std::atomic<uint32_t>;

  // queues: memory for `threads` queues, constructed; lanes: kLanes zeros.
  void open(Queue* queues, Lane* lanes, unsigned threads, unsigned depth);
  // 0, EAGAIN, ENOMEM (the thread cannot be started).
  // pre: the connection is in use
  [[nodiscard]] int issue(Connection* connection, const Request& request);
  // Carries out all queued operations, and ends the threads.
  // pre: nothing is issued any more, except by callbacks, which are refused
  void stop();
  // In a forked child: resets the pool, without threads and queued operations.
  void forget_in_child();
  // In a forked child that will not use the store: closes the contexts by which the pool reads from
  // the device (may be nullptr).
  void abandon_in_child(Device* device);
  // In a forked child: if a pool thread has forked (in a callback), it ends after that callback,
  // because the queued operations belong to the parent.
  static void end_forked_thread();
  // Whether the calling thread is one of this pool's.
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
  // near_: the number of queues for operations that other threads carried out, and for cold reads.
  unsigned count_ = 0, near_ = 0;
  uint32_t depth_ = 0;
  sys::Mutex starting_;
};

}  // namespace lunar::ark
