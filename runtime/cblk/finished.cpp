// SPDX-License-Identifier: Apache-2.0
// Results of a group that another thread harvested: see finished.h.
// Threading: any.
#include "cblk/finished.h"

#include "sys/thread.h"

namespace lunar::cblk {
namespace {

constexpr uint64_t kLookNs = 1'000'000;

}  // namespace

// A caller that checks after the descriptor was cleared sees the results reported before.
void Finished::begin_sleep(Wakeups* out) {
  sleepers_.fetch_add(1, std::memory_order_seq_cst);
  int fd = fd_.load(std::memory_order_relaxed);
  if (fd < 0) {
    const int made = sys::make_eventfd();
    if (made >= 0 && fd_.compare_exchange_strong(fd, made, std::memory_order_seq_cst))
      fd = made;
    else if (made >= 0)
      sys::close_file(made);
  }
  if (fd < 0) return out->look_at(sys::now_ns() + kLookNs);
  if (signalled_.exchange(false, std::memory_order_acquire)) sys::eventfd_clear(fd);
  out->readable(fd);
}

void Finished::close() {
  const int fd = fd_.exchange(-1);
  if (fd >= 0) sys::close_file(fd);
  sleepers_.store(0, std::memory_order_relaxed);
}

}  // namespace lunar::cblk
