// SPDX-License-Identifier: Apache-2.0
// Unmapped: ranges of tiered memory that the program unmapped, mapped over or moved by raw system calls, which bypass
// the preload library.
//
// The kernel reports these by UNMAP and REMAP events of the userfaultfd, and holds the caller until a handler has read
// the event; until then every UFFDIO_COPY fails with EAGAIN. (EVENT_REMOVE stays off, because the pager's own
// MADV_DONTNEED would wait for it.) The handler only notes the range, with the region that is there at that moment, and
// the housekeeping thread settles it (no page is installed meanwhile: event_gate.h):
//
//   UNMAP  slots, DRAM and LUN space of its pages are freed, their words become kEmpty. Then a PROT_NONE map takes the
//          place, so that the kernel gives it to no other map, and is registered. If another map is there already the
//          words become kGone: no longer the pager's. (The owner of the maps then makes it a foreign range.)
//   REMAP  resident pages moved along. Evicted pages are brought to the new place, which is then plain memory, outside
//          the tier.
//   lost   a page that cannot be read back, on kernels without UFFDIO_POISON (lost_page.h): a handler may not map over
//          it, as it would wait for the event of that itself.
//
// From the note to the end no page is dropped (unmaps_pending), because the place may hold another map's memory. Nor is
// an event read while a page is being dropped.
#pragma once
#include <cstddef>
#include <cstdint>

#include "pager/region.h"

namespace lunar {

struct PagerState;

// Called by handlers when they read an event. Never wait.
void unmapped_note(PagerState& state, uint64_t start, uint64_t end);
void moved_note(PagerState& state, uint64_t from, uint64_t to, uint64_t bytes);
void lost_note(PagerState& state, Region& region, PageIndex page);
// The evicted pages of a raw mremap are being brought to this place: the waiters of a missing page are woken at the
// end.
[[nodiscard]] bool being_moved_to(const PagerState& state, uint64_t address, uint64_t bytes);
// The evictor, which holds pages, waits for such a page: it is brought first. (to_write: the evictor waits at the
// copy-on-write gate.)
void bring_to_evictor(PagerState& state, uint64_t address, bool to_write);

// Used by a handler, inside the event gate, from before it reads messages until the events among them are noted.
class ReadingEvents {
 public:
  ReadingEvents();
  ~ReadingEvents();
  ReadingEvents(const ReadingEvents&) = delete;
  ReadingEvents& operator=(const ReadingEvents&) = delete;
};

// Around a system call of the pager that maps over a range of a region whose words this thread has all set to kBusy:
// the event of that call is not noted. One at a time.
class OwnUnmap {
 public:
  OwnUnmap(PagerState& state, char* begin, size_t bytes);
  void end();         // the call is over, and its event was skipped
  void tell() const;  // reports the range as unmapped, if the call has done that. After end(), with the words released

 private:
  PagerState& state_;
  uint64_t begin_, end_;
};

// Called by the evictor before it drops pages. seen: the program has made such calls before, so one may come between
// the check for notes and the drop.
[[nodiscard]] bool unmaps_seen();
[[nodiscard]] bool unmaps_pending();
// Called by the housekeeping thread. False: the owner of the maps is busy and was not told; try again soon.
[[nodiscard]] bool unmaps_settle(PagerState& state);
// Called before the region's tables are freed: when it returns, no note of the region is left or in progress. For
// program threads.
void unmaps_forget(PagerState& state, const Region* region);
// Around a fork. before_fork: in the forking thread, once its id keeps notes from being settled, before it looks
// whether any are left. refuse_moves: first of all in the child, while state.uffd is the parent's; ends the child with
// a line if a raw mremap has moved tiered memory since before_fork. enter_child: locks and counts are new, open notes
// are kept.
void unmaps_before_fork();
void unmaps_refuse_moves(const PagerState& state);
void unmaps_enter_child(PagerState& state);
[[nodiscard]] int unmaps_prepare();  // before the first handler; 0 or -ENOMEM

}  // namespace lunar
