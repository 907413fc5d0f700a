// SPDX-License-Identifier: Apache-2.0
// The threads of asynchronous calls: see ark_pool.h.
#include "kv/ark/ark_pool.h"

#include <errno.h>

#include <new>

#include "base/units.h"
#include "kv/ark/ark_store.h"

namespace lunar::ark {
namespace {

constexpr uint64_t kCallbackStackBytes = 8 * kMiB;
constexpr uint64_t kHashedBytes = 1024;  // of a key's end, to choose its queue: keys may be as long as 100 GiB

// The callback that the calling thread is in.
struct Frame {
  Op* op = nullptr;  // until an operation took it over
  const Connection* connection = nullptr;
};
thread_local Frame frame;
thread_local const Pool* my_pool = nullptr;
thread_local bool forked = false;  // this is the child of one that was

}  // namespace

void Pool::open(Queue* queues, unsigned threads, unsigned depth) {
  queues_ = queues;
  count_ = threads;
  depth_ = depth;
  for (unsigned i = 0; i < count_; ++i) queues_[i].pool = this;
}

bool Pool::is_mine() const { return my_pool == this; }

int Pool::start_thread(Queue& queue) {
  sys::Locked<sys::Mutex> guard(starting_);
  if (queue.started.load(std::memory_order_relaxed)) return 0;
  sys::ThreadSpec spec;
  spec.name = "lunar-ark";
  spec.run = thread_main;
  spec.argument = &queue;
  spec.program_files = true;
  spec.more_stack_bytes = kCallbackStackBytes;
  if (sys::thread_start(spec, &queue.thread) < 0) return ENOMEM;
  queue.started.store(true, std::memory_order_release);
  return 0;
}

bool Pool::push(Queue& queue, Op* op, bool bounded) {
  op->next = nullptr;
  queue.lock.lock();
  if (bounded && queue.depth >= depth_) {
    queue.lock.unlock();
    return false;
  }
  if (queue.last)
    queue.last->next = op;
  else
    queue.first = op;
  queue.last = op;
  ++queue.depth;
  const bool wake = queue.sleeping;
  queue.sleeping = false;
  if (wake) queue.word.fetch_add(1, std::memory_order_release);
  queue.lock.unlock();
  if (wake) sys::futex_wake(&queue.word, 1, false);
  return true;
}

int Pool::issue(Connection* connection, const Request& request) {
  const uint64_t hashed = request.key_bytes < kHashedBytes ? request.key_bytes : kHashedBytes;
  const uint64_t hash = kv::hash_of({static_cast<const char*>(request.key) + (request.key_bytes - hashed), hashed});
  Queue& queue = queues_[(hash >> 32) * count_ >> 32];
  if (!queue.started.load(std::memory_order_acquire)) {
    if (const int status = start_thread(queue); status != 0) return status;
  }
  Op* op = nullptr;
  const bool inherits = frame.op && frame.connection == connection;
  if (inherits) {
    op = frame.op;
    frame.op = nullptr;
  } else {
    op = connection->take();
    if (!op) return EAGAIN;
  }
  op->request = request;
  if (push(queue, op, !is_mine())) return 0;
  connection->give_back(op);  // never one that was inherited: that is not bounded
  return EAGAIN;
}

void Pool::run(Op* op) {
  Connection* connection = op->connection;
  const Request request = op->request;
  table_use(connection);
  const int64_t result = connection->store->carry_out(request);
  table_release(connection);
  frame = {op, connection};
  request.callback(result < 0 ? static_cast<int>(-result) : 0, request.tag, result < 0 ? -1 : result);
  if (forked) return;
  Op* left = frame.op;
  frame = {};
  if (left) connection->give_back(left);
}

void Pool::thread_main(void* argument) {
  Queue& queue = *static_cast<Queue*>(argument);
  my_pool = queue.pool;
  sys::allow_fault_signals();  // callbacks are the program's
  for (;;) {
    queue.lock.lock();
    Op* op = queue.first;
    if (op) {
      queue.first = op->next;
      if (!queue.first) queue.last = nullptr;
      --queue.depth;
    }
    const bool end = !op && queue.stopping;
    const uint32_t word = queue.word.load(std::memory_order_relaxed);
    queue.sleeping = !op && !end;
    queue.lock.unlock();
    if (end) return;
    if (op)
      run(op);
    else
      (void)sys::futex_wait(&queue.word, word, -1, false);
    if (forked) return;  // its callback returned in the child, which has no other thread: that ends, with code 0
  }
}

void Pool::stop() {
  for (unsigned i = 0; i < count_; ++i) {
    Queue& queue = queues_[i];
    if (!queue.started.load(std::memory_order_acquire)) continue;
    queue.lock.lock();
    queue.stopping = true;
    queue.sleeping = false;
    queue.word.fetch_add(1, std::memory_order_release);
    queue.lock.unlock();
    sys::futex_wake(&queue.word, 1, false);
  }
  for (unsigned i = 0; i < count_; ++i) {
    if (queues_[i].started.load(std::memory_order_acquire)) sys::thread_end(queues_[i].thread);
  }
}

void Pool::end_forked_thread() { forked = my_pool != nullptr; }

void Pool::forget_in_child() {
  frame = {};
  starting_.reset_in_child();
  for (unsigned i = 0; i < count_; ++i) {
    new (&queues_[i]) Queue;
    queues_[i].pool = this;
  }
}

}  // namespace lunar::ark
