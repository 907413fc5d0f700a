// SPDX-License-Identifier: Apache-2.0
// See event_gate.h.
#include "pager/event_gate.h"

#include "sys/uffd.h"

namespace lunar {

bool EventGate::installing() const {
  for (const Shard& shard : installs_)
    if (shard.count.load(std::memory_order_seq_cst) != 0) return true;
  return false;
}

bool EventGate::begin_read(int uffd) {
  for (unsigned spins = 0; reading_.exchange(true, std::memory_order_seq_cst);)
    while (reading_.load(std::memory_order_relaxed))
      if (++spins > kSpinsMax)
        return false;
      else
        sys::cpu_relax();
  // Nothing can be installed while an event is unread: waiting here delays only the event.
  while (installing() && sys::uffd_event_unread(uffd)) sys::yield_cpu();
  return true;
}

void EventGate::enter_child() {
  for (Shard& shard : installs_) shard.count.store(0, std::memory_order_relaxed);
  reading_.store(false, std::memory_order_relaxed);
}

}  // namespace lunar
