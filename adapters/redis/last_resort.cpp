// SPDX-License-Identifier: Apache-2.0
// See last_resort.h.
#include "last_resort.h"

#include <errno.h>
#include <signal.h>
#include <sys/wait.h>

#include <atomic>
#include <cstdlib>

#include "base/units.h"
#include "heap/heap.h"
#include "sys/file.h"
#include "sys/log.h"
#include "sys/mem.h"
#include "sys/thread.h"
#include "tier.h"

namespace lunar::redis {
namespace {

constexpr unsigned kRetries = 200, kPoliteRetries = 40;
constexpr int64_t kRetryNs = 5000000;

std::atomic<bool> g_open{false};
std::atomic<pid_t> g_child{0};
std::atomic<uint64_t> g_allocations{0}, g_children{0};

// Bytes of this process in DRAM. UINT64_MAX: not known.
uint64_t resident_bytes() {
  char text[128], *end = nullptr;
  if (sys::read_text("/proc/self/statm", text, sizeof(text)) <= 0) return UINT64_MAX;
  (void)strtoull(text, &end, 10);
  return strtoull(end, nullptr, 10) * sys::page_bytes();
}

bool has_room(size_t bytes) {
  const uint64_t resident = resident_bytes(), most = tier_stats().dram_budget_bytes + kResortBytes;
  return resident < most && bytes < most - resident;
}

void* from_dram(size_t bytes, bool zero) {
  if (!has_room(bytes)) return nullptr;
  void* pointer = heap_alloc_dram(1, bytes, zero);
  if (pointer == nullptr) return nullptr;
  if (g_allocations.fetch_add(1, std::memory_order_relaxed) == 0)
    log_warning(
        "the LUN has no room for %s: taken from DRAM outside of the budget until clients are ended "
        "or keys freed; give a larger size",
        format_size(bytes).text);
  return pointer;
}

// Whether the child still exists, running or as a zombie: until the server has waited for it, no
// other process has its number.
bool is_child(pid_t child) {
  siginfo_t info{};
  return child != 0 &&
         waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOHANG | WNOWAIT) == 0;
}

// Ends the child by the signal that the server itself uses, so that the server does not count the
// save as failed and refuse writes. nullptr: that freed no memory.
void* from_child(size_t bytes, bool zero) {
  const pid_t child = g_child.exchange(0);
  if (!is_child(child)) return nullptr;
  log_error(
      "the LUN is full: the forked child %d (a save, a rewrite or a sync) is ended so that the "
      "server can go on; give a larger size",
      static_cast<int>(child));
  g_children.fetch_add(1, std::memory_order_relaxed);
  if (kill(child, SIGUSR1) != 0) return nullptr;
  void* pointer = nullptr;
  for (unsigned i = 0; i < kRetries && pointer == nullptr; ++i) {
    if (i == kPoliteRetries && is_child(child)) (void)kill(child, SIGKILL);
    sys::sleep_ns(kRetryNs);
    pointer = zero ? heap_alloc_zeroed(bytes) : heap_alloc(bytes);
  }
  return pointer;
}

}  // namespace

void* last_resort_alloc(size_t bytes, bool zero) {
  const int saved = errno;
  g_open.store(true, std::memory_order_relaxed);
  void* pointer = from_dram(bytes, zero);
  if (pointer == nullptr) pointer = from_child(bytes, zero);
  errno = pointer == nullptr ? ENOMEM : saved;
  return pointer;
}

void* last_resort_resize(void* pointer, size_t bytes) {
  void* moved = last_resort_alloc(bytes, false);
  if (moved == nullptr) return nullptr;
  const size_t had = heap_usable_size(pointer);
  __builtin_memcpy(moved, pointer, had < bytes ? had : bytes);
  heap_free(pointer);
  return moved;
}

bool last_resort_open() { return g_open.load(std::memory_order_relaxed); }
void last_resort_close() { g_open.store(false, std::memory_order_relaxed); }
void last_resort_forked(pid_t child) { g_child.store(child); }

LastResort last_resort_counters() { return {g_allocations.load(), g_children.load()}; }

}  // namespace lunar::redis
