// SPDX-License-Identifier: Apache-2.0
// Delegate threads: carry out work that a caller hands over so that its call can return at once (AIX's
// aio_delegateiotodriverkth). One pool a device: for copies (pmem_device.h), or for blocking calls (call_context.h).
//
//      submit                   pool                          delegate threads (a few)
//   ┌──────────┐  offer()   ┌──────────────────────┐  take   ┌───────────────────────────┐
//   │ client A │ ─────────► │ A ► B ► ... (a ring) │ ──────► │ run_some(), run_some(),  │
//   └────▲─────┘            └──────────────────────┘         └───────────────────────────┘
//        │ run_some(): a thread that waits for its own client helps
//
// A client is a queue from which any thread takes pieces. The pool knows only which clients have something to
// do; it gives them turns. Threads start with the first need, sleep on a futex when idle, and end with the pool.
//
// Wake-ups are never lost: an offering thread publishes its work, counts `event` up, then looks for sleepers; a thread
// about to sleep registers, reads `event`, then looks for work. All of these are sequentially consistent.
//
// Fork: the threads' shared state lies in memory that the kernel wipes in a child, which therefore finds a pool that
// was never started. The epoch tells a client of the parent's (its pieces in work at fork are lost) from one of the
// child's.
//
// Threading: any thread. offer() allocates nothing and holds the pool's own spin lock for instructions; start() makes
// threads.
#pragma once
#include <pthread.h>

#include <atomic>
#include <cstdint>

#include "sys/thread.h"

namespace lunar {

class DelegatePool;

class DelegateClient {
 public:
  // Carries out some pieces: false when there were none. Any thread; `foreign`: a delegate, not a waiting thread.
  virtual bool run_some(bool foreign) = 0;
  // Whether a piece waits that no thread has taken.
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

  [[nodiscard]] int create();  // no threads yet; fine when it is made already. 0 or -ENOMEM
  void destroy();              // pre: no client is left. Ends the threads
  // Makes sure that threads run, `wanted` or fewer: 0, or -errno when none could be made. Blocking, allocates: not for
  // the fault path. They use the descriptor table of the calling thread.
  [[nodiscard]] int start(unsigned wanted, const char* name);
  bool started() const { return epoch() != 0; }
  // 0: not started in this process
  uint32_t epoch() const { return state_.load(std::memory_order_acquire)->epoch.load(std::memory_order_acquire); }
  // `client` has work. pre: started().
  void offer(DelegateClient* client);
  // No delegate touches `client` after it returns. pre: it has no work.
  void leave(DelegateClient* client);
  unsigned threads() const {
    const State* state = state_.load(std::memory_order_acquire);
    return state ? state->thread_count : 0;
  }

 private:
  struct State {  // a page of its own, zeros in a forked child
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
  std::atomic<uint32_t> epochs_{0};  // inherited by a child: its pool gets a number of its own
};

}  // namespace lunar
