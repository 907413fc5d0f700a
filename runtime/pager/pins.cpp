// SPDX-License-Identifier: Apache-2.0
// Detecting processes whose pages may be DMA-pinned. See pins.h.
#include "pager/pins.h"

#include <string.h>

#include <atomic>

#include "base/format.h"
#include "base/test_switches.h"
#include "pager/state.h"
#include "stats/counters.h"
#include "sys/fatal.h"
#include "sys/file.h"
#include "sys/log.h"
#include "sys/proc.h"
#include "sys/thread.h"

namespace lunar {
namespace {

std::atomic<bool> g_stopped_said{false};
std::atomic<const char*> g_sign{nullptr};  // the first sign
char g_seen[96];                           // the evictor's
constexpr unsigned kUnsureMax = 16;
constexpr uint64_t kStuckNs = 20000000000;
uint64_t g_served = 0, g_stuck_since_ns = 0;  // eviction stopped, threads wait for memory, and no page came since
unsigned g_unsure = 0;                        // inconclusive checks in a row
uint64_t g_fd_count = UINT64_MAX, g_next_scan_ns = 0, g_next_status_ns = 0, g_full_scan_ns = 0;

// The program's descriptor table is that of its main thread; the evictor has its own.
sys::Pinning table_shows_pinning(const PagerState& state) {
  char path[64];
  int which = -1;
  const sys::Pinning shown =
      sys::descriptors_may_pin(sys::program_fd_directory(path, sizeof path), &which, state.features.move);
  if (shown != sys::Pinning::kNo) format_to(g_seen, sizeof g_seen, "descriptor %d", which);
  return shown;
}

// Threads of ours may register and unregister between the two figures, so only a difference in several checks counts.
bool pinned_memory() {
  int64_t pinned = 0, own = 0;
  for (int look = 0; look < 3; ++look) {
    own = static_cast<int64_t>(sys::own_pinned_bytes());
    pinned = sys::own_status_bytes("VmPin");  // below 0: not known
    const auto after = static_cast<int64_t>(sys::own_pinned_bytes());
    if (after > own) own = after;
    if (pinned <= own) return false;
  }
  format_to(g_seen, sizeof g_seen, "VmPin %lld KiB, of which %lld KiB are Lunar's",
            static_cast<long long>(pinned / 1024), static_cast<long long>(own / 1024));
  return true;
}

}  // namespace

bool pins_possible(PagerState& state) {
  if (test_switches.no_pin_rule) return false;
  if (state.may_pin.load(std::memory_order_acquire)) return true;
  if (state.unbuffered.load(std::memory_order_acquire) && state.features.move) return true;
  uint64_t now = sys::now_ns();
  bool found = false;
  if (now >= g_next_status_ns) {
    found = pinned_memory();
    g_next_status_ns = now + 2000000;
  }
  char path[64];
  uint64_t count = sys::directory_size(sys::program_fd_directory(path, sizeof path));
  if (!found && now >= g_next_scan_ns && (count != g_fd_count || now >= g_full_scan_ns)) {
    const sys::Pinning shown = table_shows_pinning(state);
    // A ring of ours made meanwhile is not a sign: such a result counts for this batch only. Seen again and again, it
    // counts.
    g_unsure = shown == sys::Pinning::kUnsure ? g_unsure + 1 : 0;
    found = shown == sys::Pinning::kYes || g_unsure > kUnsureMax;
    g_fd_count = g_unsure > 0 ? UINT64_MAX : count;
    uint64_t cost = sys::now_ns() - now;
    g_next_scan_ns = now + cost * 100;
    g_full_scan_ns = now + 100000000 + cost * 100;
  }
  if (found) pins_note(state, g_seen);
  return found || g_unsure > 0;
}

void pins_note(PagerState& state, const char* sign) {
  const char* none = nullptr;
  g_sign.compare_exchange_strong(none, sign);
  if (!state.may_pin.exchange(true))
    log_info("this process may pin pages for devices (%s): evicting by UFFDIO_MOVE from now on", sign);
}

void pins_say_stopped(PagerState& state) {
  const char* sign = g_sign.load();
  if (sign == nullptr) return;  // an inconclusive check: for this batch only
  if (!g_stopped_said.exchange(true))
    log_warning(
        "this process may pin pages for devices (%s) and this kernel has no UFFDIO_MOVE (6.8): eviction stops, the "
        "DRAM "
        "budget cannot grow; do without io_uring, AIO or O_DIRECT, or use a newer kernel",
        sign);
  // Waiting threads now wait forever, unless the program gives memory back: ending with a reason is better.
  const uint64_t served = counters().zero_fills.get() + counters().major_faults.get(), now = sys::now_ns();
  if (served != g_served || !state.room_wanted.load()) {
    g_served = served;
    g_stuck_since_ns = now;
  } else if (now - g_stuck_since_ns > kStuckNs) {
    fatal(
        "memory has been waited for for %u s: this process may pin pages for devices (%s), and this kernel has no "
        "UFFDIO_MOVE (6.8) to evict them "
        "by; do without io_uring, AIO or O_DIRECT, give more (--dram), or use a newer kernel",
        static_cast<unsigned>(kStuckNs / 1000000000), sign);
  }
}

}  // namespace lunar
