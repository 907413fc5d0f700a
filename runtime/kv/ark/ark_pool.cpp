// SPDX-License-Identifier: Apache-2.0
// Asynchronous calls: see ark_pool.h.
//
// A queue is a stack without a lock. Any thread pushes to it. Its own thread takes the whole stack
// and reverses it. No single Op is popped, so there is no ABA problem. A thread that finds the
// stack empty puts kAsleep there, or kInRing if it also waits for reads in flight. The next thread
// that pushes replaces the mark and wakes it.
#include "kv/ark/ark_pool.h"

#include <errno.h>

#include <algorithm>
#include <new>

#include "base/units.h"
#include "kv/ark/ark_store.h"
#include "kv/ark/cold_ring.h"
#include "sys/file.h"

namespace lunar::ark {
namespace {

constexpr uint64_t kCallbackStackBytes = 8 * kMiB;
// The bytes of a key's end that choose its lane. Keys may be as long as 100 GiB.
constexpr uint64_t kHashedBytes = 1024;

constexpr unsigned kOwnerShift = 24;  // of a lane
constexpr uint32_t kLaneCount = (1u << kOwnerShift) - 1;
static_assert(Pool::kThreadsMax <= 1u << (32 - kOwnerShift));
constexpr unsigned kReapEvery = 16;  // callbacks, when reads are in flight
// From so many reads in flight on, a thread waits for several, which halves the CPU time of a read.
constexpr unsigned kManyReads = 32;

Op asleep, in_ring;  // never used
Op* const kAsleep = &asleep;
Op* const kInRing = &in_ring;
bool is_op(const Op* op) { return op && op != kAsleep && op != kInRing; }

// The callback that the calling thread is in.
struct Frame {
  Op* op = nullptr;  // nullptr after an operation of the callback took it over
  const Connection* connection = nullptr;
};
thread_local Frame frame;
thread_local Pool::Queue* my_queue = nullptr;
thread_local OpList* my_ops = nullptr;  // the Ops that the thread has taken from its queue
thread_local bool forked = false;       // this is the child of a pool thread that forked

// Whether a thread carries out a request without waiting, wherever the record lies.
bool goes_in_steps(const Connection* connection, const Request& request) {
  const bool reads = request.kind == OpKind::kGet || request.kind == OpKind::kExists;
  return reads && connection->store->engine->reads_in_steps();
}

unsigned lane_of(const Request& request) {
  const uint64_t hashed = std::min(request.key_bytes, kHashedBytes);
  const uint64_t hash =
      kv::hash_of({static_cast<const char*>(request.key) + (request.key_bytes - hashed), hashed});
  return static_cast<unsigned>(hash >> 32) % Pool::kLanes;
}

}  // namespace

void Pool::open(Queue* queues, Lane* lanes, unsigned threads, unsigned depth) {
  queues_ = queues;
  lanes_ = lanes;
  count_ = threads;
  depth_ = depth;
  const auto cpus = static_cast<unsigned>(sys::cpu_count());
  near_ = std::min(cpus, count_);
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
  do op->next = is_op(head) ? head : nullptr;
  while (!queue.incoming.compare_exchange_weak(head, op, std::memory_order_acq_rel,
                                               std::memory_order_relaxed));
  if (head == kAsleep) wake(queue);
  if (head == kInRing) sys::eventfd_signal(queue.cold_event.load(std::memory_order_relaxed));
}

// Reserves a place in a queue. near: in one of the few queues for finished operations and for reads
// by rings, if it has room. Operations that block would hold those up, so they go to another queue,
// if there is one. 0, EAGAIN, ENOMEM.
int Pool::reserve(unsigned lane, bool near, Queue** out) {
  const unsigned others = count_ - near_;
  const unsigned choices[] = {lane % near_, others ? near_ + lane % others : lane % count_};
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

// Counts an Op that is not done in its lane. Returns the number of the queue that it goes to.
unsigned Pool::enter_lane(unsigned lane, unsigned queue) {
  uint32_t seen = lanes_[lane].load(std::memory_order_relaxed), owner;
  do owner = seen & kLaneCount ? seen >> kOwnerShift : queue;
  while (!lanes_[lane].compare_exchange_weak(seen, owner << kOwnerShift | ((seen & kLaneCount) + 1),
                                             std::memory_order_acq_rel, std::memory_order_relaxed));
  return owner;
}

int Pool::issue(Connection* connection, const Request& request) {
  const unsigned lane = lane_of(request);
  const bool mine = is_mine();
  const bool at_once = (lanes_[lane].load(std::memory_order_acquire) & kLaneCount) == 0;
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
  if (at_once && !goes_in_steps(connection, request)) {  // the operation may block its thread
    Queue* wide = nullptr;
    const int status = reserve(lane, false, &wide);
    if (op->counted) queue->depth.fetch_sub(1, std::memory_order_relaxed);
    if (status != 0) {
      connection->give_back(op);
      return status;
    }
    queue = wide;
  }
  // If the lane is in another queue, that may exceed its depth by the number of issuing threads.
  Queue& owner = queues_[enter_lane(lane, static_cast<unsigned>(queue - queues_))];
  if (op->counted && &owner != queue) {
    queue->depth.fetch_sub(1, std::memory_order_relaxed);
    owner.depth.fetch_add(1, std::memory_order_relaxed);
  }
  push(owner, op);
  return 0;
}

void Pool::carried_out(Queue& queue, Op* op, int64_t result, OpList* own) {
  op->result = result;
  op->done = true;
  queue.pool->lanes_[op->lane].fetch_sub(1, std::memory_order_release);
  own->append(op);
}

// Begins an Op. When it is done it goes to the end of `own`, for its callback. A read may be in
// flight afterwards.
void Pool::begin(Queue& queue, Op* op, OpList* own) {
  if (queue.cold->busy(op->lane)) {
    queue.cold->wait(op);
    return;
  }
  while (queue.cold->full()) collect(queue, 1, own);
  ArkStore* store = op->connection->store;
  table_use(op->connection);
  int64_t result = -EAGAIN;
  if (goes_in_steps(op->connection, op->request)) {
    result = queue.cold->begin(op);
    while (result == -ENOBUFS && queue.cold->in_flight()) {
      collect(queue, 1, own);
      result = queue.cold->begin(op);
    }
  }
  if (result == -EAGAIN || result == -ENOBUFS) result = store->carry_out(op->request);
  table_release(op->connection);
  if (result != -EINPROGRESS) carried_out(queue, op, result, own);
}

// Starts queued reads, waits until `least` are done, and takes all that are done.
void Pool::collect(Queue& queue, unsigned least, OpList* own) {
  OpList done;
  queue.cold->collect(least, &done);
  while (Op* op = done.take()) {
    const uint32_t lane = op->lane;
    carried_out(queue, op,
                op->result == -EAGAIN ? op->connection->store->carry_out(op->request) : op->result,
                own);
    while (!queue.cold->busy(lane)) {
      Op* next = queue.cold->take_waiting(lane);
      if (!next) break;
      begin(queue, next, own);
    }
  }
}

void Pool::call_back(Op* op) {
  Connection* connection = op->connection;
  const Request request = op->request;
  const int64_t result = op->result;
  frame = {op, connection};
  request.callback(result < 0 ? static_cast<int>(-result) : 0, request.tag,
                   result < 0 ? -1 : result);
  if (forked) return;
  Op* left = frame.op;
  frame = {};
  if (left) connection->give_back(left);
}

// Takes the incoming stack, whose top is the youngest Op, and appends it in order of arrival.
void Pool::take_incoming(Queue& queue, OpList* own) {
  Op* op = queue.incoming.exchange(nullptr, std::memory_order_acquire);
  if (!is_op(op)) return;
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

// Announces that the thread sleeps. False: an Op has arrived.
bool Pool::announce_sleep(Queue& queue, Op* how) {
  Op* head = queue.incoming.load(std::memory_order_relaxed);
  while (!is_op(head)) {
    if (queue.incoming.compare_exchange_weak(head, how, std::memory_order_acq_rel)) return true;
  }
  return false;
}

// Sleeps until an Op arrives. False: the queue is empty and ends.
bool Pool::sleep(Queue& queue) {
  sys::yield_cpu();
  const uint32_t word = queue.word.load(std::memory_order_acquire);
  if (!announce_sleep(queue, kAsleep)) return true;
  if (queue.stopping.load(std::memory_order_acquire)) return false;
  (void)sys::futex_wait(&queue.word, word, -1, false);
  return true;
}

void Pool::thread_main(void* argument) {
  Queue& queue = *static_cast<Queue*>(argument);
  OpList own;
  ColdRing cold(queue);
  queue.cold = &cold;
  my_queue = &queue;
  my_ops = &own;
  sys::allow_fault_signals();  // callbacks are the program's
  for (unsigned round = 1;; ++round) {
    if (is_op(queue.incoming.load(std::memory_order_relaxed))) take_incoming(queue, &own);
    Op* op = own.take();
    if (!op && cold.in_flight()) {
      const unsigned least = cold.in_flight() < kManyReads ? 1 : cold.in_flight() / 8;
      collect(queue, announce_sleep(queue, kInRing) ? least : 0, &own);
      Op* announced = kInRing;
      (void)queue.incoming.compare_exchange_strong(announced, nullptr, std::memory_order_relaxed);
      continue;
    }
    if (!op) {
      if (!sleep(queue)) break;
      continue;
    }
    if (op->counted) {
      queue.depth.fetch_sub(1, std::memory_order_relaxed);
      op->counted = false;
    }
    if (!op->done)
      begin(queue, op, &own);
    else
      call_back(op);
    // The callback forked and returned in the child. This is the child's only thread, so the child
    // ends with code 0.
    if (forked) return;
    if (cold.batch_full() || (cold.in_flight() && round % kReapEvery == 0)) collect(queue, 0, &own);
  }
  cold.close();
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

void Pool::abandon_in_child(Device* device) {
  for (unsigned i = 0; device && i < count_; ++i) {
    if (Context* context = queues_[i].cold_context.exchange(nullptr, std::memory_order_relaxed))
      device->detach(context);
    const int event = queues_[i].cold_event.exchange(-1, std::memory_order_relaxed);
    if (event >= 0) sys::close_file(event);
  }
}

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
