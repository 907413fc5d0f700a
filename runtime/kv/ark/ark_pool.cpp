// SPDX-License-Identifier: Apache-2.0
// Asynchronous calls: see ark_pool.h.
//
// A queue is a stack that any thread pushes to and its own thread takes whole, and turns round: no lock, and nothing is
// ever popped from between, so no ABA. A thread that finds nothing puts kAsleep there; the one that pushes next takes that
// away and wakes it.
#include "kv/ark/ark_pool.h"

#include <errno.h>

#include <new>

#include "base/units.h"
#include "kv/ark/ark_store.h"

namespace lunar::ark {
namespace {

constexpr uint64_t kCallbackStackBytes = 8 * kMiB;
constexpr uint64_t kHashedBytes = 1024;  // of a key's end, to choose its lane: keys may be as long as 100 GiB

Op asleep;
Op* const kAsleep = &asleep;

// The callback that the calling thread is in.
struct Frame {
  Op* op = nullptr;  // until an operation took it over
  const Connection* connection = nullptr;
};
thread_local Frame frame;
thread_local Pool::Queue* my_queue = nullptr;
thread_local OpList* my_ops = nullptr;  // what it has taken from that
thread_local bool forked = false;       // this is the child of one that was

unsigned lane_of(const Request& request) {
  const uint64_t hashed = request.key_bytes < kHashedBytes ? request.key_bytes : kHashedBytes;
  const uint64_t hash = kv::hash_of({static_cast<const char*>(request.key) + (request.key_bytes - hashed), hashed});
  return static_cast<unsigned>(hash >> 32) % Pool::kLanes;
}

}  // namespace

void Pool::open(Queue* queues, Lane* lanes, unsigned threads, unsigned depth) {
  queues_ = queues;
  lanes_ = lanes;
  count_ = threads;
  depth_ = depth;
  const auto cpus = static_cast<unsigned>(sys::cpu_count());
  near_ = cpus < count_ ? cpus : count_;
  for (unsigned i = 0; i < count_; ++i) queues_[i].pool = this;
}

bool Pool::is_mine() const { return my_queue && my_queue->pool == this; }

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

void Pool::wake(Queue& queue) {
  queue.word.fetch_add(1, std::memory_order_release);
  sys::futex_wake(&queue.word, 1, false);
}

void Pool::push(Queue& queue, Op* op) {
  Op* head = queue.incoming.load(std::memory_order_relaxed);
  do op->next = head == kAsleep ? nullptr : head;
  while (!queue.incoming.compare_exchange_weak(head, op, std::memory_order_release, std::memory_order_relaxed));
  if (head == kAsleep) wake(queue);
}

// A place in a queue. near: of those few for what is done, while they have room. 0, EAGAIN, ENOMEM.
int Pool::reserve(unsigned lane, bool near, Queue** out) {
  const unsigned choices[] = {lane % near_, lane % count_};
  for (unsigned i = near ? 0 : 1; i < 2; ++i) {
    Queue& queue = queues_[choices[i]];
    if (!queue.started.load(std::memory_order_acquire)) {
      if (const int status = start_thread(queue); status != 0) return status;
    }
    *out = &queue;
    if (is_mine() || queue.depth.fetch_add(1, std::memory_order_relaxed) < depth_) return 0;
    queue.depth.fetch_sub(1, std::memory_order_relaxed);
  }
  return EAGAIN;
}

int Pool::issue(Connection* connection, const Request& request) {
  const unsigned lane = lane_of(request);
  const bool mine = is_mine();
  const bool at_once = lanes_[lane].load(std::memory_order_acquire) == 0;
  Op* op = nullptr;
  if (frame.op && frame.connection == connection) {
    op = frame.op;
    frame.op = nullptr;
  } else {
    op = connection->take();
    if (!op) return EAGAIN;
  }
  Queue* queue = my_queue;
  if (!mine || !at_once) {
    if (const int status = reserve(lane, at_once, &queue); status != 0) {
      connection->give_back(op);
      return status;
    }
  }
  op->request = request;
  op->lane = lane;
  op->counted = !mine;
  op->result = at_once ? connection->store->carry_out_now(request) : -EAGAIN;
  op->done = op->result != -EAGAIN;
  if (op->done && mine) {
    my_ops->append(op);
    return 0;
  }
  if (op->done) {
    push(*queue, op);
    return 0;
  }
  if (at_once) {  // what waits goes by all threads
    Queue* wide = nullptr;
    const int status = reserve(lane, false, &wide);
    if (op->counted) queue->depth.fetch_sub(1, std::memory_order_relaxed);
    if (status != 0) {
      connection->give_back(op);
      return status;
    }
    queue = wide;
  }
  lanes_[lane].fetch_add(1, std::memory_order_relaxed);
  push(*queue, op);
  return 0;
}

void Pool::carry_out(Pool* pool, Op* op) {
  table_use(op->connection);
  op->result = op->connection->store->carry_out(op->request);
  table_release(op->connection);
  pool->lanes_[op->lane].fetch_sub(1, std::memory_order_release);
  op->done = true;
}

void Pool::call_back(Op* op) {
  Connection* connection = op->connection;
  const Request request = op->request;
  const int64_t result = op->result;
  frame = {op, connection};
  request.callback(result < 0 ? static_cast<int>(-result) : 0, request.tag, result < 0 ? -1 : result);
  if (forked) return;
  Op* left = frame.op;
  frame = {};
  if (left) connection->give_back(left);
}

// The stack has the youngest on top.
void Pool::take_incoming(Queue& queue, OpList* own) {
  Op* op = queue.incoming.exchange(nullptr, std::memory_order_acquire);
  if (op == kAsleep) return;
  OpList taken;
  for (Op* next; op; op = next) {
    next = op->next;
    op->next = taken.first;
    taken.first = op;
    if (!taken.last) taken.last = op;
  }
  if (!taken.first) return;
  (own->last ? own->last->next : own->first) = taken.first;
  own->last = taken.last;
}

// Until there is something. False: there is not, and the queue ends.
bool Pool::sleep(Queue& queue) {
  sys::yield_cpu();
  const uint32_t word = queue.word.load(std::memory_order_acquire);
  Op* nothing = nullptr;
  if (!queue.incoming.compare_exchange_strong(nothing, kAsleep, std::memory_order_acq_rel)) {
    if (nothing != kAsleep) return true;
  }
  if (queue.stopping.load(std::memory_order_acquire)) return false;
  (void)sys::futex_wait(&queue.word, word, -1, false);
  return true;
}

void Pool::thread_main(void* argument) {
  Queue& queue = *static_cast<Queue*>(argument);
  OpList own;
  my_queue = &queue;
  my_ops = &own;
  sys::allow_fault_signals();  // callbacks are the program's
  for (;;) {
    Op* head = queue.incoming.load(std::memory_order_relaxed);
    if (head && head != kAsleep) take_incoming(queue, &own);
    Op* op = own.take();
    if (!op) {
      if (!sleep(queue)) return;
      continue;
    }
    if (op->counted) queue.depth.fetch_sub(1, std::memory_order_relaxed);
    if (!op->done) carry_out(queue.pool, op);
    call_back(op);
    if (forked) return;  // its callback returned in the child, which has no other thread: that ends, with code 0
  }
}

void Pool::stop() {
  for (unsigned i = 0; i < count_; ++i) {
    Queue& queue = queues_[i];
    if (!queue.started.load(std::memory_order_acquire)) continue;
    queue.stopping.store(true, std::memory_order_release);
    wake(queue);
  }
  for (unsigned i = 0; i < count_; ++i) {
    if (queues_[i].started.load(std::memory_order_acquire)) sys::thread_end(queues_[i].thread);
  }
}

void Pool::end_forked_thread() { forked = my_queue != nullptr; }

void Pool::forget_in_child() {
  frame = {};
  starting_.reset_in_child();
  for (unsigned i = 0; i < kLanes; ++i) lanes_[i].store(0, std::memory_order_relaxed);
  for (unsigned i = 0; i < count_; ++i) {
    new (&queues_[i]) Queue;
    queues_[i].pool = this;
  }
}

}  // namespace lunar::ark
