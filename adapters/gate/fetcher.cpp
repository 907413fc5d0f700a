// SPDX-License-Identifier: Apache-2.0
// See fetcher.h.
#include "fetcher.h"

#include <errno.h>

#include <algorithm>

#include "pager/page_view.h"
#include "pager/pager.h"
#include "sys/arena.h"
#include "sys/file.h"

namespace lunar::redis {
namespace {

constexpr uint64_t kCrowdedNsMin = 1'000'000'000, kCrowdedNsMax = 64'000'000'000;

// A prefetch skips pages that another thread is bringing in or evicting: this waits for those.
void bring_in(const lunar_range* ranges, unsigned count) {
  (void)pager_prefetch(ranges, count);
  const auto busy = [](const void* address) {
    const PageView page = page_view(address);
    return page && page.busy();
  };
  for (unsigned i = 0; i < count; ++i) {
    const auto* last = static_cast<const char*>(ranges[i].address) + ranges[i].bytes - 1;
    if (busy(ranges[i].address) || busy(last))
      (void)pager_touch(ranges[i].address, ranges[i].bytes);
  }
}

}  // namespace

int Fetcher::start(unsigned threads) {
  event_fd_ = sys::make_eventfd();
  if (event_fd_ < 0) return event_fd_;
  event_fd_ = sys::move_high(event_fd_);
  for (unsigned i = 0; i < threads && i < kThreadsMax; ++i) {
    pthread_t thread;
    sys::ThreadSpec spec;
    spec.name = "lunar-fetch";
    spec.run = run;
    spec.argument = this;
    spec.program_files = true;
    if (int rc = sys::thread_start(spec, &thread); rc < 0 && i == 0) return rc;
  }
  return 0;
}

Request* Fetcher::spare() {
  if (spare_ == nullptr) {
    if (made_ == kRequestsMax) return nullptr;
    spare_ = arena_new<Request>();
    if (spare_ == nullptr) return nullptr;
    ++made_;
  }
  Request* request = spare_;
  spare_ = request->next;
  return request;
}

void Fetcher::recycle(Request* request) {
  request->share->bytes -= request->pages.bytes;
  --request->share->requests;
  request->next = spare_;
  spare_ = request;
}

bool Fetcher::submit(int fd, uint64_t hold, Share* share, const NonresidentRanges& pages,
                     AheadFetch* ahead) {
  Request* request = spare();
  if (request == nullptr) return false;
  *request = {nullptr, fd, share, hold, ahead, pages};
  share->bytes += pages.bytes;
  ++share->requests;
  {
    sys::Locked<sys::SpinLock> lock(lock_);
    (last_ != nullptr ? last_->next : waiting_) = request;
    last_ = request;
    pending_.fetch_add(1, std::memory_order_seq_cst);
  }
  ++submitted_;
  return true;
}

void Fetcher::flush() {
  if (submitted_ == 0) return;
  const int wanted = submitted_ >= 16 ? 2 : 1;
  submitted_ = 0;
  const uint64_t now = sys::now_ns();
  look_for_crowd(now);
  leave_this_cpu(now);
  if (resting_.load(std::memory_order_seq_cst) == 0) return;
  const uint32_t pending = pending_.load(std::memory_order_seq_cst);
  if (pending == 0) return;  // awake threads have taken all requests
  wake_times_.woken(now, pending);
  sys::futex_wake(&pending_, wanted, false);
}

// Checks after every few wake-ups whether most were late. If so, the threads may run on any CPU for
// a time that doubles with each failed attempt to avoid the main thread's.
void Fetcher::look_for_crowd(uint64_t now) {
  if (!wake_times_.late() || now < crowded_until_ns_) return;
  const bool again = now - crowded_until_ns_ < crowded_for_ns_;
  crowded_for_ns_ = again ? std::min(2 * crowded_for_ns_, kCrowdedNsMax) : kCrowdedNsMin;
  crowded_until_ns_ = now + crowded_for_ns_;
}

void Fetcher::leave_this_cpu(uint64_t now) {
  const int cpu = now < crowded_until_ns_ ? -1 : sys::current_cpu();
  if (cpu == left_cpu_) return;
  left_cpu_ = cpu;
  if (const int evictor = pager_evictor_thread(); evictor != 0)
    (void)sys::set_affinity_but(evictor, cpu);
  for (auto& thread : threads_)
    if (const int id = thread.load(std::memory_order_relaxed); id != 0)
      (void)sys::set_affinity_but(id, cpu);
}

Request* Fetcher::take_done() {
  sys::Locked<sys::SpinLock> lock(lock_);
  Request* first = done_;
  done_ = nullptr;
  return first;
}

bool Fetcher::begin_sleep() {
  sleeping_.store(1, std::memory_order_seq_cst);
  sys::Locked<sys::SpinLock> lock(lock_);
  return done_ != nullptr;
}

Request* Fetcher::take_batch(unsigned* ranges) {
  sys::Locked<sys::SpinLock> lock(lock_);
  Request* first = waiting_;
  Request* end = nullptr;
  uint32_t taken = 0;
  for (Request* r = first; r != nullptr && (taken == 0 || *ranges + r->pages.count <= kBatchRanges);
       r = r->next) {
    *ranges += r->pages.count;
    end = r;
    ++taken;
  }
  if (end == nullptr) return nullptr;
  waiting_ = end->next;
  if (waiting_ == nullptr) last_ = nullptr;
  end->next = nullptr;
  pending_.fetch_sub(taken, std::memory_order_acq_rel);
  return first;
}

void Fetcher::finish(Request* first) {
  {
    sys::Locked<sys::SpinLock> lock(lock_);
    Request* last = first;
    while (last->next != nullptr) last = last->next;
    last->next = done_;
    done_ = first;
  }
  if (sleeping_.exchange(0, std::memory_order_seq_cst) != 0) sys::eventfd_signal(event_fd_);
}

bool Fetcher::fetch_batch() {
  lunar_range ranges[kBatchRanges + kRangesMax];
  unsigned count = 0;
  Request* batch = take_batch(&count);
  if (batch == nullptr) {
    wake_times_.nothing_there();
    return false;
  }
  count = 0;
  for (Request* r = batch; r != nullptr; r = r->next)
    for (unsigned i = 0; i < r->pages.count; ++i) ranges[count++] = r->pages.range[i];
  if (wake_times_.waited_for()) wake_times_.taken(sys::now_ns());
  bring_in(ranges, count);
  finish(batch);
  return true;
}

void Fetcher::help() {
  if (fetch_batch()) return;
  uint64_t ready = 0;
  if (!begin_sleep() && sys::poll_readable(&event_fd_, 1, 1000000, &ready) > 0)
    sys::eventfd_clear(event_fd_);
  end_sleep();
}

void Fetcher::serve() {
  (void)sys::set_batch_policy();
  for (auto& thread : threads_) {
    int none = 0;
    if (thread.compare_exchange_strong(none, sys::thread_id())) break;
  }
  for (;;) {
    if (fetch_batch()) continue;
    resting_.fetch_add(1, std::memory_order_seq_cst);
    const uint32_t seen = pending_.load(std::memory_order_seq_cst);
    if (seen == 0) (void)sys::futex_wait(&pending_, seen, -1, false);
    resting_.fetch_sub(1, std::memory_order_seq_cst);
  }
}

}  // namespace lunar::redis
