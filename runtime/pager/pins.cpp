// SPDX-License-Identifier: Apache-2.0
// Detecting processes whose pages may be DMA-pinned. See pins.h.
#include "pager/pins.h"

#include <string.h>

#include <atomic>

#include "base/log.h"
#include "pager/state.h"
#include "sys/file.h"
#include "sys/proc.h"

namespace lunar {
namespace {

std::atomic<bool> g_stopped_said{false};
uint64_t g_fd_count = UINT64_MAX, g_next_scan_ns = 0, g_next_status_ns = 0, g_full_scan_ns = 0;

// The program's descriptor table is that of its main thread; ours (the evictor's) is another one.
bool table_shows_pinning() {
  char path[64];
  return sys::descriptors_may_pin(sys::program_fd_directory(path, sizeof path));
}

bool pinned_memory() {
  char text[4096];
  if (sys::read_text("/proc/self/status", text, sizeof text) < 0) return false;
  const char* line = strstr(text, "VmPin:");
  if (line == nullptr) return false;
  for (line += 6; *line == ' ' || *line == '\t'; ++line) {}
  uint64_t kilobytes = 0;
  for (; *line >= '0' && *line <= '9'; ++line) kilobytes = kilobytes * 10 + static_cast<uint64_t>(*line - '0');
  return kilobytes * 1024 > sys::own_pinned_bytes();
}

}  // namespace

bool pins_possible() {
  auto& state = pager_state();
  if (state.options.test_no_pin_rule) return false;
  if (state.may_pin.load(std::memory_order_acquire)) return true;
  uint64_t now = sys::now_ns();
  bool found = false;
  if (now >= g_next_status_ns) {
    found = pinned_memory();
    g_next_status_ns = now + 2000000;
  }
  char path[64];
  uint64_t count = sys::directory_size(sys::program_fd_directory(path, sizeof path));
  if (!found && now >= g_next_scan_ns && (count != g_fd_count || now >= g_full_scan_ns)) {
    found = table_shows_pinning();
    g_fd_count = count;
    uint64_t cost = sys::now_ns() - now;
    g_next_scan_ns = now + cost * 100;
    g_full_scan_ns = now + 100000000 + cost * 100;
  }
  if (found) pins_note();
  return found;
}

void pins_note() {
  if (!pager_state().may_pin.exchange(true)) log_info("this process may pin pages for devices: evicting by UFFDIO_MOVE from now on");
}

void pins_say_stopped() {
  if (!g_stopped_said.exchange(true))
    log_warning("this process may pin pages for devices and this kernel has no UFFDIO_MOVE (6.8): eviction stops, the DRAM budget "
                "cannot grow; do without io_uring, AIO or O_DIRECT, or use a newer kernel");
}

}  // namespace lunar
