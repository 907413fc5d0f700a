// SPDX-License-Identifier: Apache-2.0
#include "pager/evict/pins.h"

#include <string.h>

#include <algorithm>
#include <atomic>

#include "base/format.h"
#include "base/test_switches.h"
#include "sys/log.h"
#include "sys/proc.h"
#include "sys/thread.h"

namespace lunar {
namespace {

constinit std::atomic<bool> g_noted{false};
char g_seen[96];  // the sign that the evictor has found
constexpr unsigned kUnsureMax = 16;
unsigned g_unsure = 0;  // inconclusive checks in a row
uint64_t g_fd_count = UINT64_MAX, g_next_scan_ns = 0, g_next_status_ns = 0, g_full_scan_ns = 0;

// Checks the program's descriptor table, which is that of its main thread; the evictor has its own.
sys::Pinning table_shows_pinning() {
  char path[64];
  int which = -1;
  const sys::Pinning shown =
      sys::descriptors_may_pin(sys::program_fd_directory(path, sizeof path), &which);
  if (shown != sys::Pinning::kNo) format_to(g_seen, sizeof g_seen, "descriptor %d", which);
  return shown;
}

}  // namespace

// Lunar's own threads may register and unregister buffers between the two readings, so only a
// difference in several checks counts.
bool pins_registered() {
  int64_t pinned = 0, own = 0;
  for (int look = 0; look < 3; ++look) {
    own = static_cast<int64_t>(sys::own_pinned_bytes());
    pinned = sys::own_status_bytes("VmPin");  // below 0: not known
    own = std::max(own, static_cast<int64_t>(sys::own_pinned_bytes()));
    if (pinned <= own) return false;
  }
  format_to(g_seen, sizeof g_seen, "VmPin %lld KiB, of which %lld KiB are Lunar's",
            static_cast<long long>(pinned / 1024), static_cast<long long>(own / 1024));
  return true;
}

bool pins_possible() {
  if (test_switches.no_pin_rule) return false;
  if (pins_noted()) return true;
  uint64_t now = sys::now_ns();
  bool found = false;
  if (now >= g_next_status_ns) {
    found = pins_registered();
    g_next_status_ns = now + 2'000'000;
  }
  char path[64];
  uint64_t count = sys::directory_size(sys::program_fd_directory(path, sizeof path));
  if (!found && now >= g_next_scan_ns && (count != g_fd_count || now >= g_full_scan_ns)) {
    const uint64_t cpu_before = sys::thread_cpu_ns();
    const sys::Pinning shown = table_shows_pinning();
    // kUnsure: Lunar itself made or closed a ring meanwhile. Such a result counts for this batch
    // only, until it has been seen many times in a row.
    g_unsure = shown == sys::Pinning::kUnsure ? g_unsure + 1 : 0;
    found = shown == sys::Pinning::kYes || g_unsure > kUnsureMax;
    g_fd_count = g_unsure > 0 ? UINT64_MAX : count;
    // CPU time, so that waiting for a CPU does not delay later scans
    const uint64_t cost = sys::thread_cpu_ns() - cpu_before;
    g_next_scan_ns = now + cost * 100;
    g_full_scan_ns = now + 100'000'000 + cost * 100;
  }
  if (found) pins_note(g_seen);
  return found || g_unsure > 0;
}

bool pins_noted() { return g_noted.load(std::memory_order_acquire); }

void pins_note(const char* sign) {
  if (!g_noted.exchange(true))
    log_info("this process may pin pages for devices (%s): evicting by UFFDIO_MOVE from now on",
             sign);
}

}  // namespace lunar
