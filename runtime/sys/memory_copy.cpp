// SPDX-License-Identifier: Apache-2.0
// See memory_copy.h. The number lies in a page that fork wipes: 0 there means that this is a new
// copy, which takes the next number.
#include "sys/memory_copy.h"

#include <unistd.h>

#include <atomic>

#include "sys/arena.h"
#include "sys/fatal.h"
#include "sys/mem.h"
#include "sys/proc.h"
#include "sys/thread.h"

namespace lunar::sys {
namespace {

std::atomic<std::atomic<uint32_t>*> g_mark{nullptr};
std::atomic<uint32_t> g_last{0};   // the last number given to this copy and its ancestors
std::atomic<uint64_t> g_owner{0};  // copy << 32 | process id
std::atomic<uint64_t> g_owners_namespace{0};

std::atomic<uint32_t>* mark() {
  std::atomic<uint32_t>* known = g_mark.load(std::memory_order_acquire);
  if (known != nullptr) return known;
  auto* made = static_cast<std::atomic<uint32_t>*>(map_private(page_bytes(), ForkPolicy::kWipe));
  if (made == nullptr || g_mark.compare_exchange_strong(known, made, std::memory_order_acq_rel))
    return made;
  unmap_private(made, page_bytes());  // another thread was quicker
  return known;
}

}  // namespace

uint32_t memory_copy() {
  std::atomic<uint32_t>* const at = mark();
  if (at == nullptr) fatal("no memory for a page (%s)", memory_limit());
  uint32_t copy = at->load(std::memory_order_acquire);
  if (copy != 0) return copy;
  const uint32_t next = g_last.fetch_add(1, std::memory_order_relaxed) + 1;
  return at->compare_exchange_strong(copy, next, std::memory_order_acq_rel) ? next : copy;
}

void note_memory_owner() {
  g_owners_namespace.store(pid_namespace(), std::memory_order_relaxed);
  g_owner.store(uint64_t{memory_copy()} << 32 | static_cast<uint32_t>(getpid()),
                std::memory_order_release);
}

bool memory_is_parents() {
  const uint64_t owner = g_owner.load(std::memory_order_acquire);
  if (owner >> 32 == memory_copy()) {
    const auto pid = static_cast<uint32_t>(getpid());
    if (static_cast<uint32_t>(owner) != pid) return true;
    // A child of vfork in a new pid namespace is process 1 of it, and its parent may be process 1
    // of its own. The kernel gives such a child no list of robust mutexes, but libc's threads have
    // one. Asking for that list is quicker than asking for the namespace.
    return pid == 1 && robust_list() == nullptr &&
           g_owners_namespace.load(std::memory_order_relaxed) != pid_namespace();
  }
  note_memory_owner();  // forked without a fork handler
  return false;
}

}  // namespace lunar::sys
