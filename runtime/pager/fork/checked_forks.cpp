// SPDX-License-Identifier: Apache-2.0
// See checked_forks.h.
#include "pager/fork/checked_forks.h"

namespace lunar {

uint64_t checked_forks_enter(PagerState& state) {
  auto& forks = state.checked_forks;
  sys::ScopedSignalBlock signals;
  sys::Locked<sys::SpinLock> lock(forks.lock);
  forks.count.fetch_add(1, std::memory_order_seq_cst);
  return forks.committed;
}

int64_t checked_forks_leave(PagerState& state, uint64_t since) {
  auto& forks = state.checked_forks;
  sys::ScopedSignalBlock signals;
  sys::Locked<sys::SpinLock> lock(forks.lock);
  forks.count.fetch_sub(1, std::memory_order_seq_cst);
  return static_cast<int64_t>((forks.committed - since) << state.page_shift);
}

bool checked_forks_charge(PagerState& state, uint64_t pages) {
  auto& forks = state.checked_forks;
  // A check that is not seen here sees the pages.
  if (forks.count.load(std::memory_order_seq_cst) == 0) return true;
  sys::ScopedSignalBlock signals;
  sys::Locked<sys::SpinLock> lock(forks.lock);
  const int64_t count = forks.count.load(std::memory_order_relaxed);
  if (count == 0) return true;
  if (state.account.lun_take(count * static_cast<int64_t>(pages << state.page_shift)) < 0) return false;
  forks.committed += pages;
  return true;
}

// Those of the parent's other threads are not this process'.
void checked_forks_enter_child(PagerState& state) {
  state.checked_forks.lock.unlock();
  state.checked_forks.count.store(0);
}

}  // namespace lunar
