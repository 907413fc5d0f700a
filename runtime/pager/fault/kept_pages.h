// SPDX-License-Identifier: Apache-2.0
// Pins of pages, for the program (mlock) and for threads. See kept_pages.cpp.
#pragma once
#include <cstdint>

namespace lunar {

struct PagerState;
struct Region;

// Sets or removes the program's own pins (mlock); pages kept for a thread stay pinned. Returns how
// many pages were pinned before; or -ENOMEM: they cannot have words. Any program thread.
int64_t program_pins(PagerState& state, Region& region, uint64_t first, uint64_t end, bool set);
// Whether the program has pinned the page: it may be kept for a thread as well. Any program thread.
bool pinned_by_program(Region& region, uint64_t page);
void kept_pages_enter_child();
// Returns the kept pages, which the copy-on-write gate leaves out, in the order of their addresses;
// some may be there twice. pager_keep waits from now on, until kept_pages_gate_closed.
unsigned kept_pages_gate_closes(const void* const** pages);
void kept_pages_gate_closed();
// Makes kept pages writable. Called by a fork that has closed the gate, and in its child.
void kept_pages_open(PagerState& state);

}  // namespace lunar
