// SPDX-License-Identifier: Apache-2.0
// Delegate threads carry out work that a caller hands over, so that its call can return at once
// (AIX's aio_delegateiotodriverkth). There is one pool per device: for copies (pmem_device.h), or
// for blocking calls (call_context.h).
//
//      submit                   pool                          delegate threads (a few)
//   ┌──────────┐  offer()   ┌──────────────────────┐  take   ┌───────────────────────────┐
//   │ client A │ ─────────► │ A ► B ► ... (a ring) │ ──────► │ run_some(), run_some(),  │
//   └────▲─────┘            └──────────────────────┘         └───────────────────────────┘
//        │ run_some(): a thread that waits for its own client helps
//
// A client is a queue from which any thread takes pieces. The pool only knows which clients have
// work, and serves them in turn. Threads start when they are first needed, sleep on a futex when
// idle, and end with the pool.
//
// No wake-up is lost: an offering thread publishes its work, increments `event`, then looks for
// sleepers; a thread that is about to sleep registers, reads `event`, then looks for work. All of
// these are sequentially consistent.
//
// Fork: the shared state of the threads is in memory that the kernel wipes in a child, which
// therefore finds a pool that was never started. The epoch distinguishes a client of the parent's
// (whose pieces in progress at the fork are lost) from one of the child's.
//
// Threading: any thread. offer() allocates nothing and holds the pool's own spin lock for a few
// instructions; start() creates threads.
#pragma once
#include <pthread.h>

#include <atomic>
#include <cstdint>

#include "sys/thread.h"

namespace lunar {

class DelegatePool;

class DelegateClient {
 public:
  // Carries out some pieces. False: the client had none. Any thread; `foreign`: called by a
  // delegate, not by a waiting thread.
  virtual bool run_some(bool foreign) = 0;
  // Whether there is a piece that no thread has taken.
  virtual bool has_work() const = 0;

 protected:
  ~DelegateClient() = default;

 private:
  friend class DelegatePool;
  DelegateClient* next_ = nullptr;  // in the ring; under the pool's lock
  bool queued_ = false;
  std::atomic<uint32_t> visitors_{0};  // delegates that may touch this object
};

class DelegatePool {
 public:
  static constexpr unsigned kThreadsMax = 8;

  // Starts no threads yet. Does nothing if the pool exists. 0 or -ENOMEM.
  [[nodiscard]] int create();
  void destroy();  // ends the threads. pre: no client is left
  // Ensures that threads run, `wanted` or fewer: 0, or -errno if none could be created. Blocking,
  // allocates: not for the fault path. The threads use the descriptor table of the calling thread.
  [[nodiscard]] int start(unsigned wanted, const char* name);
  bool started() const { return epoch() != 0; }
  // 0: not started in this process.
  uint32_t epoch() const {
    return state_.load(std::memory_order_acquire)->epoch.load(std::memory_order_acquire);
  }
  // `client` has work. pre: started().
  void offer(DelegateClient* client);
  // After this call no delegate touches `client`. pre: it has no work.
  void leave(DelegateClient* client);
  unsigned threads() const {
    const State* state = state_.load(std::memory_order_acquire);
    return state ? state->thread_count : 0;
  }

 private:
  struct State {  // on its own page, which is zeros in a forked child
    alignas(64) sys::SpinLock lock;
    DelegateClient* first = nullptr;
    DelegateClient* last = nullptr;
    alignas(64) std::atomic<uint32_t> event{0};
    std::atomic<uint32_t> idle{0};
    std::atomic<uint32_t> epoch{0};
    std::atomic<uint32_t> stopping{0};
    sys::Mutex starting;
    uint32_t thread_count = 0;
    pthread_t threads[kThreadsMax] = {};
  };
  static_assert(sizeof(State) <= 4096);
  static void thread_main(void* state);
  static DelegateClient* take(State* state);
  static void push(State* state, DelegateClient* client);
  static DelegateClient* pop(State* state);

  std::atomic<State*> state_{nullptr};
  std::atomic<uint32_t> epochs_{0};  // inherited by a child, so its pool gets another epoch
};

}  // namespace lunar
