// SPDX-License-Identifier: Apache-2.0
// Pins of pages, the program's and those for threads, for the rest of the pager. See
// kept_pages.cpp.
#pragma once
#include <cstdint>

namespace lunar {

struct PagerState;
struct Region;

// Sets or removes the program's own pins (mlock); pages kept for a thread stay pinned. Returns how
// many of them were pinned before, and may be unpinned; -ENOMEM: they cannot have words. Any
// program thread.
int64_t program_pins(PagerState& state, Region& region, uint64_t first, uint64_t end, bool set);
bool pinned_by_program(Region& region, uint64_t page);  // not only for a thread. Any program thread
void kept_pages_enter_child();
// The copy-on-write gate leaves kept pages out: those, in order of their addresses, of which some
// may be there twice. What is kept from now on waits until it is closed.
unsigned kept_pages_gate_closes(const void* const** pages);
void kept_pages_gate_closed();
// called by a fork that has closed the gate, and in its child
void kept_pages_open(PagerState& state);

}  // namespace lunar
