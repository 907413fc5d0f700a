// SPDX-License-Identifier: Apache-2.0
#include "pager/fault/inbox.h"

#include <errno.h>

#include "sys/arena.h"

namespace lunar {

int Inbox::open() {
  if (entries_ == nullptr)
    entries_ = static_cast<Entry*>(map_private(kMax * sizeof(Entry), ForkPolicy::kInherit));
  if (entries_ == nullptr) return -ENOMEM;
  lock_.unlock();
  first_ = 0;
  count_.store(0);
  parked_.store(0);
  return 0;
}

bool Inbox::put(const sys::UffdMessage& message, bool parked) {
  const sys::Locked<sys::SpinLock> lock(lock_);
  const unsigned count = count_.load(std::memory_order_relaxed);
  if (count == kMax) return false;
  entries_[(first_ + count) % kMax] = {message, parked};
  count_.store(count + 1, std::memory_order_release);
  if (parked) parked_.fetch_add(1, std::memory_order_relaxed);
  return true;
}

bool Inbox::take(Entry* out) {
  if (count() == 0) return false;
  const sys::Locked<sys::SpinLock> lock(lock_);
  *out = entries_[first_];
  first_ = (first_ + 1) % kMax;
  count_.fetch_sub(1, std::memory_order_relaxed);
  if (out->parked) parked_.fetch_sub(1, std::memory_order_relaxed);
  return true;
}

}  // namespace lunar
