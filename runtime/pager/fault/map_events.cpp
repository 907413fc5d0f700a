// SPDX-License-Identifier: Apache-2.0
#include "pager/fault/map_events.h"

#include <atomic>

#include "base/units.h"
#include "pager/fault/fault_state.h"
#include "sys/fatal.h"

namespace lunar {
namespace {

constinit sys::Mutex g_own_lock;
constinit std::atomic<uint64_t> g_own_begin{0}, g_own_end{0};

// Names the call by what is mapped now, as the event comes after the change.
const char* name_of(const sys::UffdMessage& event) {
  if (event.kind == sys::UffdMessage::Kind::kRemap) return "mremap";
  const bool is_hole = !sys::is_mapped(reinterpret_cast<char*>(event.address), sys::page_bytes());
  return is_hole ? "munmap (or mremap to less)" : "mmap with MAP_FIXED (or mremap)";
}

const char* remedy(const PagerState& state, const void* address) {
  const Region* region = state.regions.find(address);
  const bool of_maps = region == nullptr || region->of_maps();
  return of_maps ? "call libc's function or syscall(), or keep maps out of the tier (lunar run "
                   "--no-mmap)"
                 : "give a region back by lunar_region_destroy";
}

void judge_event(const PagerState& state, const sys::UffdMessage& event) {
  const bool is_unmap = event.kind == sys::UffdMessage::Kind::kUnmap;
  if (is_unmap && event.address == g_own_begin.load() &&
      event.address + event.bytes == g_own_end.load())
    return;
  // without page states, which do not help and take time: other threads run on
  set_fatal_hook(nullptr);
  const auto* address = reinterpret_cast<const char*>(event.address);
  fatal(
      "%s of %llu KiB of tiered memory at %p by a system call in the program's own code, which "
      "cannot be served: %s",
      name_of(event), static_cast<unsigned long long>(event.bytes / kKiB),
      static_cast<const void*>(address), remedy(state, address));
}

}  // namespace

OwnUnmap::OwnUnmap(PagerState& state, char* begin, size_t bytes)
    : lock_(g_own_lock), state_(state) {
  g_own_begin.store(reinterpret_cast<uintptr_t>(begin));
  g_own_end.store(reinterpret_cast<uintptr_t>(begin) + bytes);
}

OwnUnmap::~OwnUnmap() {
  for (unsigned i = 0; i < state_.services.handler_count; ++i) g_fault.readings[i].wait_for_end();
  g_own_end.store(0);
}

int read_faults(const PagerState& state, unsigned handler, sys::UffdMessage* messages,
                unsigned max) {
  const sys::Section::Inside reading(g_fault.readings[handler]);
  const int n = sys::uffd_read(state.uffd, messages, max);
  int faults = 0;
  for (int i = 0; i < n; ++i) {
    if (messages[i].kind == sys::UffdMessage::Kind::kFault)
      messages[faults++] = messages[i];
    else
      judge_event(state, messages[i]);
  }
  return n < 0 ? n : faults;
}

}  // namespace lunar
