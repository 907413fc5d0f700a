// SPDX-License-Identifier: Apache-2.0
// Fetches pages for the input gate. A few service threads take requests in batches, bring the pages
// in by the pager's range operations at queue depth, and wake the main thread by an eventfd if it
// sleeps.
//
//   main ── submit ──► waiting ── thread: prefetch a batch ──► done ── take_done ──► main
//
// The threads avoid the main thread's CPU, where the kernel tends to wake them, and where they
// would preempt the main thread for a tick or more. If other programs keep all other CPUs busy, a
// woken thread would wait for a time slice, and clients with it, while the main thread's CPU idles.
// In that case the threads may run on any CPU for a while.
//
// Requests are made on demand from sys/arena and kept; there are at most kRequestsMax.
//
// Threading: the main thread calls the public functions. Only help() makes it wait.
#pragma once
#include <atomic>
#include <cstdint>

#include "key_lookup.h"
#include "sys/thread.h"
#include "user_share.h"
#include "wake_times.h"

namespace lunar::redis {

struct AheadFetch;

struct Request {
  Request* next = nullptr;
  int fd = -1;
  Share* share = nullptr;  // counts it
  // the connection's hold when the request was made; if it has another number now, that hold has
  // ended, or the descriptor belongs to another connection
  uint64_t hold = 0;
  AheadFetch* ahead = nullptr;  // requested for the server, not for a client (ahead.h)
  NonresidentRanges pages;
};

class Fetcher {
 public:
  static constexpr unsigned kThreadsMax = 8, kRequestsMax = 4096, kBatchRanges = 128;

  // Starts the threads. 0 or -errno.
  [[nodiscard]] int start(unsigned threads);
  int event_fd() const { return event_fd_; }

  bool full() const { return spare_ == nullptr && made_ == kRequestsMax; }
  // Requests `pages` for the connection `fd` and its hold number `hold`, or for `ahead` (fd -1).
  // The request counts in `share` until it is recycled. False: too many requests are in progress,
  // or there is no memory.
  [[nodiscard]] bool submit(int fd, uint64_t hold, Share* share, const NonresidentRanges& pages,
                            AheadFetch* ahead = nullptr);
  // Called before the main thread sleeps: wakes threads for all that was submitted.
  void flush();
  Request* take_done();  // a list linked by `next`, or nullptr; the caller recycles them
  void recycle(Request* request);
  // Called by the main thread if it needs pages in progress: fetches those that no thread has begun
  // yet, or waits until something is done, at most a millisecond.
  void help();
  // Around the main thread's sleep. True: something is done already, so do not sleep.
  bool begin_sleep();
  void end_sleep() { sleeping_.store(0, std::memory_order_relaxed); }

 private:
  Request* spare();
  static void run(void* self) { static_cast<Fetcher*>(self)->serve(); }
  void serve();
  Request* take_batch(unsigned* ranges);
  bool fetch_batch();
  void finish(Request* first);
  void leave_this_cpu(uint64_t now);
  void look_for_crowd(uint64_t now);

  int event_fd_ = -1;
  Request* spare_ = nullptr;
  unsigned made_ = 0;
  sys::SpinLock lock_;  // waiting_, last_, done_
  Request* waiting_ = nullptr;
  Request* last_ = nullptr;
  Request* done_ = nullptr;
  std::atomic<int> threads_[kThreadsMax] = {};  // ids of running threads; 0: none
  // The main thread's only:
  int left_cpu_ = -1;                                   // the threads avoid it; -1: none
  unsigned submitted_ = 0;                              // since the last wake-up
  uint64_t crowded_until_ns_ = 0, crowded_for_ns_ = 0;  // until then they run on any CPU
  WakeTimes wake_times_;
  alignas(64) std::atomic<uint32_t> pending_{0};   // futex: requests in waiting_
  std::atomic<uint32_t> resting_{0};               // threads asleep
  alignas(64) std::atomic<uint32_t> sleeping_{0};  // main waits in epoll_wait
};

}  // namespace lunar::redis
