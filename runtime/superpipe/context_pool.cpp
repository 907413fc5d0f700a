// SPDX-License-Identifier: Apache-2.0
// Contexts for blocking commands: see context_pool.h.
// Threading: any; a taken context is its taker's alone.
#include "superpipe/context_pool.h"

#include <errno.h>

#include <bit>

#include "sys/memory_copy.h"

namespace lunar {
namespace {

constexpr uint64_t kBrokenNs = 50'000;  // between two polls of a broken ring

}  // namespace

// In a forked child, the first thread forgets the parent's contexts, and others wait for it.
void ContextPool::know_process(Device* device) {
  const int self = static_cast<int>(sys::memory_copy());
  for (;;) {
    int known = copy_.load(std::memory_order_acquire);
    if (known == self) return;
    if (known == -self) {
      sys::yield_cpu();
      continue;
    }
    if (!copy_.compare_exchange_strong(known, -self, std::memory_order_acquire)) continue;
    lock_.reset_in_child();
    close(device);
    free_.store(0, std::memory_order_relaxed);
    waiting_.store(0, std::memory_order_relaxed);
    copy_.store(self, std::memory_order_release);
  }
}

void ContextPool::close(Device* device) {
  for (unsigned i = 0; i < count_; ++i) device->detach(context_[i]);
  count_ = 0;
}

int ContextPool::take_free() {
  // seq_cst: a waiter counts itself and then looks here; give() sets a bit and then looks for
  // waiters. One of the two must see the other.
  uint32_t free = free_.load(std::memory_order_seq_cst);
  while (free) {
    const int index = std::countr_zero(free);  // the lowest, whose memory is most likely cached
    if (free_.compare_exchange_weak(free, free & ~(1u << index), std::memory_order_seq_cst))
      return index;
  }
  return -EAGAIN;
}

int ContextPool::take(Device* device) {
  for (;;) {
    int index = take_free();
    if (index >= 0) return index;
    {
      const sys::Locked guard(lock_);
      if (count_ < kMost) {
        ContextOptions options;
        options.depth = 1;
        options.spin = false;
        options.shared = options.in_turns = options.delegate = true;
        const int status = device->attach(options, &context_[count_]);
        if (status == 0) return static_cast<int>(count_++);
        if (count_ == 0) return status;  // otherwise waits for one of the other contexts
      }
    }
    waiting_.fetch_add(1, std::memory_order_seq_cst);
    const uint32_t word = word_.load(std::memory_order_seq_cst);
    index = take_free();
    if (index < 0) (void)sys::futex_wait(&word_, word, -1, false);
    waiting_.fetch_sub(1, std::memory_order_relaxed);
    if (index >= 0) return index;
  }
}

void ContextPool::give(unsigned index) {
  free_.fetch_or(1u << index, std::memory_order_seq_cst);
  if (waiting_.load(std::memory_order_seq_cst) == 0) return;
  word_.fetch_add(1, std::memory_order_seq_cst);
  sys::futex_wake(&word_, 1, false);
}

bool ContextPool::transfer(Device* device, const Command& command, int64_t* result) {
  know_process(device);
  const int index = take(device);
  if (index < 0) return false;
  Context& context = *context_[index];
  unsigned taken = 0;
  Response response;
  int got = 0;
  for (;;) {
    got = taken ? context.wait(&response, 1, -1)
                : context.exchange(&command, 1, &taken, &response, 1, 1, -1);
    if (got == 1) break;
    if (!taken && got < 0 && got != -EINTR && got != -EAGAIN && got != -EBUSY)
      break;  // the command was refused, so it never started
    if (got < 0 && got != -EINTR) sys::sleep_ns(kBrokenNs);
  }
  give(static_cast<unsigned>(index));
  *result = response.result;
  return got == 1 && response.result != -ECANCELED;
}

}  // namespace lunar
