// SPDX-License-Identifier: Apache-2.0
// The notes of what raw system calls unmapped and moved (unmapped.h), and the common parts of settling them. Internal
// to unmapped.cpp, which keeps the notes, and to raw_unmap.cpp and raw_move.cpp, which settle them.
// Threading: handlers write notes; the housekeeping thread settles them.
#pragma once
#include <errno.h>

#include <atomic>
#include <cstdint>

#include "pager/page_word.h"
#include "pager/region.h"
#include "pager/seize.h"
#include "pager/state.h"
#include "pager/unmapped.h"
#include "sys/thread.h"

namespace lunar {

constexpr uint64_t kNowhere = uint64_t{1} << 62;  // no user address
// notes that arrive while the owner of the maps is busy (a long mremap); untouched, it costs nothing
constexpr uint64_t kNotesMax = 1u << 18;

// Within one page, because a fork copies pages at different moments.
struct alignas(64) Note {
  enum class Kind : uint8_t { kUnmapped, kMoved, kLost } kind = Kind::kUnmapped;
  Region* region = nullptr;
  uint64_t first = 0, end = 0;  // pages
  uint64_t moved_to = 0;        // kMoved
  uint64_t number = 0;          // its index + 1, written last
};

struct alignas(256) Notes {                 // within one page, too
  sys::SpinLock lock;                       // over the queue
  Note* queue = nullptr;                    // ring of kNotesMax, in the order of the events
  uint64_t told = 0, settled = 0, end = 0;  // progress: reported to the maps' owner; words settled; noted
  bool in_hand = false;                     // the last one settled is still being settled
  sys::Mutex settling;                      // held while one is being settled
  std::atomic<uint32_t> words{0};           // noted, words not yet settled
  std::atomic<uint32_t> tables{0};          // noted, the maps' owner not yet told
  // hull of the places to which pages are being moved; changed under the lock
  std::atomic<uint64_t> to_begin{0}, to_end{0};
  std::atomic<bool> any{false};                    // ever noted
  std::atomic<uint64_t> marking{0};                // the page that the pager itself is mapping over
  std::atomic<uint64_t> own_begin{0}, own_end{0};  // and the range (OwnUnmap); whether its event came
  std::atomic<bool> own_came{false};
  // The address at which the evictor waits for a page of a map that is being moved there, and whether to write it; 0:
  // none.
  std::atomic<uint64_t> evictor_at{0};
  char* page = nullptr;  // to read one into
};

static_assert(sizeof(Note) == 64 && sizeof(Notes) <= 256);
extern constinit Notes g_notes;

inline Note& note_at(uint64_t index) { return g_notes.queue[index % kNotesMax]; }

// Settle a note, by its kind.
void settle_unmapped(PagerState& state, Region& region, uint64_t first, uint64_t end);
void settle_lost(PagerState& state, Region& region, uint64_t first, uint64_t end);
void settle_moved(PagerState& state, Region& region, const Note& note);

// Brings in the page that the evictor waits for: it may hold pages for which the caller waits.
void bring_for_evictor(PagerState& state);

// As seize, or with `any` as take_any. The evictor may hold the page, and wait in turn for one that the caller is to
// bring.
template <class Meanwhile>
PageWord hold_page(PagerState& state, Region& region, uint64_t page, bool any, Meanwhile meanwhile) {
  for (unsigned spins = 0;; ++spins) {
    const PageWord seen = region.table.peek(page);
    const bool stays = any ? seen.state() == PageState::kGone : !seized(seen);
    if (seen.state() != PageState::kBusy && (stays || region.table.lock(page, seen))) return seen;
    // its leaf is gone, and it is empty
    if (any && region.table.find(page) == nullptr) return PageWord{}.with_state(PageState::kGone);
    if (seen.state() != PageState::kBusy) continue;
    meanwhile();
    bring_for_evictor(state);
    spins < 100 ? sys::cpu_relax() : spins < 200 ? sys::yield_cpu() : sys::sleep_ns(10000);
  }
}

// Frees what a page that left has held; `next` is its state from now on. pre: held, unless it is kGone.
void release_held(PagerState& state, Region& region, uint64_t page, PageWord was, PageState next);
void release_page(PagerState& state, Region& region, uint64_t page, PageState next);

// Repeats a call until all events have been read: before that the kernel refuses to put pages anywhere.
template <class Call>
int64_t when_events_are_read(Call call) {
  int64_t rc;
  while ((rc = call()) == -EAGAIN) sys::yield_cpu();
  return rc;
}

// Maps a file past its end in the place of `to`. Causes an event, which a handler reads; that handler may not have
// passed it on when the call returns.
int map_lost_page(PagerState& state, void* to);
// Whether the place still belongs to the tier: not unmapped, not in another map, and not marked already. The kernel
// checks the place first, then the source of the copy, which cannot be read.
bool is_watched(PagerState& state, void* at);

}  // namespace lunar
