// SPDX-License-Identifier: Apache-2.0
// See checked_forks.h.
#include "pager/fork/checked_forks.h"

#include <atomic>

#include "pager/state/state.h"

namespace lunar {
namespace {

struct CheckedForks {
  std::atomic<int> count{0};  // changes under the lock
  sys::SpinLock lock;
  uint64_t committed = 0;  // pages, while there were any, since the process began
};
constinit CheckedForks g_forks;

}  // namespace

uint64_t checked_forks_enter() {
  sys::ScopedSignalBlock signals;
  sys::Locked<sys::SpinLock> lock(g_forks.lock);
  g_forks.count.fetch_add(1, std::memory_order_seq_cst);
  return g_forks.committed;
}

int64_t checked_forks_leave(PagerState& state, uint64_t since) {
  sys::ScopedSignalBlock signals;
  sys::Locked<sys::SpinLock> lock(g_forks.lock);
  g_forks.count.fetch_sub(1, std::memory_order_seq_cst);
  return static_cast<int64_t>((g_forks.committed - since) << state.page_shift);
}

bool checked_forks_charge(PagerState& state, uint64_t pages) {
  // A check that is not seen here sees the pages.
  if (g_forks.count.load(std::memory_order_seq_cst) == 0) return true;
  sys::ScopedSignalBlock signals;
  sys::Locked<sys::SpinLock> lock(g_forks.lock);
  const int64_t count = g_forks.count.load(std::memory_order_relaxed);
  if (count == 0) return true;
  if (state.account.lun_take(count * static_cast<int64_t>(pages << state.page_shift)) < 0) return false;
  g_forks.committed += pages;
  return true;
}

// Those of the parent's other threads are not this process'.
void checked_forks_enter_child() {
  g_forks.lock.unlock();
  g_forks.count.store(0);
}

}  // namespace lunar
