// SPDX-License-Identifier: Apache-2.0
// The threads that carry out asynchronous calls.
//
//   ark_get_async_cb ──► Op ──► queue of the key ──► its thread: the operation, then the callback
//
// A key's operations all go to one queue, so they are done in the order in which they were issued. A queue's thread starts
// with its first operation and sleeps while there is none. Callbacks run on these threads, with nothing of ours held.
//
// How much may be under way: an Op is one of `nasync` that a connection has; a queue takes `nqueue`. Beyond either it is
// EAGAIN. What a callback issues goes by other rules, as a pool thread that waits for room in queues could wait for itself:
// the first operation of a callback on its own connection takes over the Op of the one that called back, and no queue is
// full for it.
// Threading: issue() by any thread. May not: be stopped by a thread of its own.
#pragma once
#include <atomic>
#include <cstdint>

#include "sys/thread.h"

namespace lunar::ark {

struct Connection;
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
};

class Pool {
 public:
  static constexpr unsigned kThreadsMax = 256;
  // One of its threads.
  struct alignas(128) Queue {
    sys::SpinLock lock;
    Op* first = nullptr;
    Op* last = nullptr;
    uint32_t depth = 0;
    bool sleeping = false;
    bool stopping = false;
    std::atomic<bool> started{false};
    std::atomic<uint32_t> word{0};  // changes when the thread is woken
    Pool* pool = nullptr;
    pthread_t thread = {};
  };

  // queues: memory for `threads`, constructed.
  void open(Queue* queues, unsigned threads, unsigned depth);
  // 0, EAGAIN, ENOMEM (its thread cannot be started). Pre: the connection is in use.
  [[nodiscard]] int issue(Connection* connection, const Request& request);
  // Carries out what is queued, and ends the threads. Pre: nothing is issued any more, but by callbacks that are refused.
  void stop();
  // In a forked child: no threads, nothing queued.
  void forget_in_child();
  // In a forked child, of any pool's thread that forked (a callback did): what is queued is the parent's.
  static void end_forked_thread();
  // Whether the calling thread is one of its.
  bool is_mine() const;

 private:
  int start_thread(Queue& queue);
  bool push(Queue& queue, Op* op, bool bounded);
  static void thread_main(void* queue);
  static void run(Op* op);

  Queue* queues_ = nullptr;
  unsigned count_ = 0;
  uint32_t depth_ = 0;
  sys::Mutex starting_;
};

}  // namespace lunar::ark
