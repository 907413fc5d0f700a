// SPDX-License-Identifier: Apache-2.0
// See unmapped.h.
// Threading: handlers take notes; the housekeeping thread settles them, and may wait for pages that other threads have
// busy.
#include "pager/unmapped.h"

#include <errno.h>
#include <sys/mman.h>

#include "base/error.h"
#include "pager/pager.h"
#include "pager/state.h"
#include "pager/unmap_notes.h"
#include "sys/arena.h"
#include "sys/fatal.h"
#include "sys/log.h"
#include "sys/mem.h"
#include "sys/proc.h"

namespace lunar {

constinit Notes g_notes;

namespace {

// For a child that is being made, which shares it: its copy of our memory cannot tell what had been noted when the
// kernel copied the maps. Written by the handler that reads. A child has its own from then on.
struct MoveCount {
  std::atomic<uint64_t> readings{0};  // begun and ended: odd while messages are read and noted
  std::atomic<uint64_t> moves{0};     // noted, ever
};
constinit MoveCount* g_moves = nullptr;
constinit uint64_t g_moves_before_fork = 0;  // by the forking thread
constinit std::atomic<const UnmappedOwner*> g_owner{nullptr};

void write_note(uint64_t index, const Note& note) {
  Note& place = note_at(index);
  place = note;
  __atomic_store_n(&place.number, index + 1, __ATOMIC_RELEASE);
}

void push(PagerState& state, const Note& note) {
  if (note.kind != Note::Kind::kLost) g_notes.any.store(true, std::memory_order_relaxed);
  {
    sys::Locked<sys::SpinLock> lock(g_notes.lock);
    if (note.kind == Note::Kind::kMoved) {
      const uint64_t to = note.moved_to, stop = to + ((note.end - note.first) << state.page_shift),
                     begin = g_notes.to_begin.load();
      if (begin == 0 || to < begin) g_notes.to_begin.store(to);
      if (stop > g_notes.to_end.load()) g_notes.to_end.store(stop);
    }
    Note* last = g_notes.end != g_notes.settled ? &note_at(g_notes.end - 1) : nullptr;
    const bool same_kind = last != nullptr && last->kind == note.kind && note.kind != Note::Kind::kMoved;
    if (same_kind && last->region == note.region && last->end == note.first) {
      last->end = note.end;
    } else {
      state.mutators.fetch_add(1, std::memory_order_seq_cst);  // a fork waits until it is settled
      g_notes.words.fetch_add(1, std::memory_order_seq_cst);
      g_notes.tables.fetch_add(1, std::memory_order_seq_cst);
      LUNAR_CHECK(g_notes.end - g_notes.told < kNotesMax, "more unmapped ranges of tiered memory than can be noted");
      write_note(g_notes.end++, note);
    }
  }
  housekeeping_wake(state, kHousekeepingUnmaps);
}

// The next one to be settled.
bool take_note(Note* note) {
  sys::Locked<sys::SpinLock> lock(g_notes.lock);
  if (g_notes.settled == g_notes.end) return false;
  *note = note_at(g_notes.settled++);
  g_notes.in_hand = true;
  return true;
}

// The parts of each region that lie in the range, but for foreign ones.
template <class Visit>
void for_regions(const PagerState& state, uint64_t start, uint64_t end, Visit visit) {
  for (uint64_t at = start; at < end;) {
    Region* region = state.regions.find(reinterpret_cast<void*>(at));
    if (region == nullptr) {  // no region begins or ends within a gap of less than a page
      at += state.page_size;
      continue;
    }
    const uint64_t base = reinterpret_cast<uintptr_t>(region->base), limit = base + (region->pages << state.page_shift);
    const uint64_t stop = end < limit ? end : limit;
    (void)for_own(state.foreign, reinterpret_cast<char*>(at), reinterpret_cast<char*>(stop),
                  [&](char* from, size_t bytes) {
                    const uint64_t first = region->page_of(from).value;
                    visit(region, first, first + (bytes >> state.page_shift), reinterpret_cast<uintptr_t>(from));
                    return 0;
                  });
    at = stop;
  }
}

}  // namespace

static int move_count_open() {
  void* memory = nullptr;
  const int rc =
      sys::map(nullptr, sys::page_bytes(), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0, &memory);
  if (rc == 0) g_moves = static_cast<MoveCount*>(memory);
  return rc;
}

int unmaps_prepare() {
  if (g_notes.queue != nullptr) return 0;
  if (g_moves == nullptr)
    if (const int rc = move_count_open(); rc < 0) return rc;
  void* memory = nullptr;
  const size_t bytes = kNotesMax * sizeof(Note);
  if (const int rc =
          sys::map(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0, &memory);
      rc < 0)
    return rc;
  (void)sys::advise(memory, bytes, MADV_NOHUGEPAGE);
  g_notes.page = static_cast<char*>(map_private(sys::page_bytes(), ForkPolicy::kInherit));
  if (g_notes.page == nullptr) return -ENOMEM;
  g_notes.queue = static_cast<Note*>(memory);
  return 0;
}

void pager_on_unmapped(const UnmappedOwner* owner) { g_owner.store(owner); }

void pager_wait_for_unmaps() {
  // a call that unmaps returns when its event has been read, perhaps before it is noted
  if (pager_active()) pager_state().event_gate.wait_for_readers();
  for (unsigned i = 0; g_notes.words.load(std::memory_order_acquire) != 0 && i < 20000; ++i) sys::sleep_ns(50000);
}

void pager_tell_unmaps() {
  if (g_notes.tables.load(std::memory_order_acquire) == 0) return;
  const unsigned shift = pager_state().page_shift;
  const UnmappedOwner* owner = g_owner.load();
  for (;;) {
    Note note;
    {
      sys::Locked<sys::SpinLock> lock(g_notes.lock);
      if (g_notes.told == g_notes.settled - (g_notes.in_hand ? 1 : 0)) return;
      note = note_at(g_notes.told);
    }
    if (note.kind == Note::Kind::kUnmapped && owner != nullptr)
      for_taken(*note.region, note.first, note.end, [&](uint64_t first, uint64_t end, bool taken) {
        owner->unmapped(note.region->address_of(PageIndex(first)), (end - first) << shift, taken);
      });
    sys::Locked<sys::SpinLock> lock(g_notes.lock);
    ++g_notes.told;
    g_notes.tables.fetch_sub(1, std::memory_order_release);
  }
}

// Moves whose pages are not all brought yet, and their lengths in bytes. pre: the lock over the queue.
template <class Visit>
static void for_moves(const PagerState& state, Visit visit) {
  for (uint64_t i = g_notes.settled - (g_notes.in_hand ? 1 : 0); i < g_notes.end; ++i)
    if (Note& note = note_at(i); note.kind == Note::Kind::kMoved)
      visit(note, (note.end - note.first) << state.page_shift);
}

// Wakes the threads that wait at a place that is gone, to which nothing is brought any more. (Another map, or a region,
// may have it next.)
static void bring_no_more(const PagerState& state, uint64_t start, uint64_t end) {
  {
    sys::Locked<sys::SpinLock> lock(g_notes.lock);
    for_moves(state, [=](Note& note, uint64_t length) {
      if (note.moved_to >= start && note.moved_to + length <= end) note.moved_to = kNowhere;
    });
  }
  (void)sys::uffd_wake(state.uffd, reinterpret_cast<void*>(start), end - start);
}

void unmapped_note(PagerState& state, uint64_t start, uint64_t end) {
  if (start == g_notes.marking.load() && end == start + state.page_size) return;  // our own: map_lost_page
  if (start == g_notes.own_begin.load() && end == g_notes.own_end.load()) {
    g_notes.own_came.store(true);
    return;
  }
  if (being_moved_to(state, start, end - start)) bring_no_more(state, start, end);
  for_regions(state, start, end, [&state](Region* region, uint64_t first, uint64_t last, uint64_t) {
    push(state, {Note::Kind::kUnmapped, region, first, last});
  });
}

OwnUnmap::OwnUnmap(PagerState& state, char* begin, size_t bytes)
    : state_(state), begin_(reinterpret_cast<uintptr_t>(begin)), end_(begin_ + bytes) {
  g_notes.own_came.store(false);
  g_notes.own_begin.store(begin_);
  g_notes.own_end.store(end_);
}

void OwnUnmap::end() {
  state_.event_gate.wait_for_readers();  // a handler that has read the event may not have looked at it yet
  g_notes.own_end.store(0);
}

void OwnUnmap::tell() const {
  if (g_notes.own_came.load()) unmapped_note(state_, begin_, end_);
}

void lost_note(PagerState& state, Region& region, PageIndex page) {
  push(state, {Note::Kind::kLost, &region, page.value, page.value + 1});
}

// What is still to be brought to [from, from + bytes) is to go on from there. False: there is nothing. (A region that
// has lain there has lost the place.)
static bool send_on(const PagerState& state, uint64_t from, uint64_t to, uint64_t bytes) {
  bool found = false;
  sys::Locked<sys::SpinLock> lock(g_notes.lock);
  for_moves(state, [&](Note& note, uint64_t length) {
    if (note.moved_to >= from + bytes || note.moved_to + length <= from) return;
    if (note.moved_to < from || note.moved_to + length > from + bytes)
      fatal("a part of tiered memory that was moved by a raw mremap was moved on before its evicted pages were there");
    found = true;
    note.moved_to += to - from;
    if (note.moved_to < g_notes.to_begin.load()) g_notes.to_begin.store(note.moved_to);
    if (note.moved_to + length > g_notes.to_end.load()) g_notes.to_end.store(note.moved_to + length);
  });
  return found;
}

static void note_move(PagerState& state, uint64_t from, uint64_t to, uint64_t bytes) {
  if (unmaps_pending() && send_on(state, from, to, bytes)) {
    // the waiters at the place that the pages have left
    (void)sys::uffd_wake(state.uffd, reinterpret_cast<void*>(from), bytes);
    return;
  }
  for_regions(state, from, from + bytes, [=, &state](Region* region, uint64_t first, uint64_t last, uint64_t at) {
    push(state, {Note::Kind::kMoved, region, first, last, to + (at - from)});
  });
}

void moved_note(PagerState& state, uint64_t from, uint64_t to, uint64_t bytes) {
  note_move(state, from, to, bytes);
  g_moves->moves.fetch_add(1, std::memory_order_seq_cst);  // after the note: see unmaps_before_fork
}

ReadingEvents::ReadingEvents() { g_moves->readings.fetch_add(1, std::memory_order_seq_cst); }
ReadingEvents::~ReadingEvents() { g_moves->readings.fetch_add(1, std::memory_order_release); }

// What is counted by now has a note that counts among the mutators, until it is settled.
void unmaps_before_fork() { g_moves_before_fork = g_moves->moves.load(std::memory_order_seq_cst); }

bool being_moved_to(const PagerState& state, uint64_t address, uint64_t bytes) {
  if (g_notes.words.load(std::memory_order_acquire) == 0 || address + bytes <= g_notes.to_begin.load() ||
      address >= g_notes.to_end.load())
    return false;
  bool found = false;
  sys::Locked<sys::SpinLock> lock(g_notes.lock);
  for_moves(state, [&](const Note& note, uint64_t length) {
    found |= address < note.moved_to + length && address + bytes > note.moved_to;
  });
  return found;
}

void bring_to_evictor(PagerState& state, uint64_t address, bool to_write) {
  g_notes.evictor_at.store(round_down(address, state.page_size) | (to_write ? 1 : 0));
  housekeeping_wake(state, kHousekeepingUnmaps);
}

bool unmaps_seen() { return g_notes.any.load(std::memory_order_relaxed); }

bool unmaps_pending() { return g_notes.words.load(std::memory_order_seq_cst) != 0; }

// One line per note, for developers (LUNAR_LOG=debug).
static void log_settled(const Note& note) {
  const char* begin = note.region->address_of(PageIndex(note.first));
  const char* end = begin + (note.end - note.first) * sys::page_bytes();
  if (note.kind == Note::Kind::kLost)
    log_debug("page %p was lost to a read error", begin);
  else if (note.kind == Note::Kind::kUnmapped || note.moved_to == kNowhere)
    log_debug("a raw call unmapped %p to %p", begin, end);
  else
    log_debug("a raw call moved %p to %p, to %p", begin, end, reinterpret_cast<const char*>(note.moved_to));
}

bool unmaps_settle(PagerState& state) {
  for (Note note;;) {
    {
      sys::Locked<sys::Mutex> lock(g_notes.settling);
      // Not during a fork. A fork that does not yet show its id looks again for notes when it does, and there is one.
      if (g_notes.words.load(std::memory_order_seq_cst) == 0) break;
      while (state.forking.load(std::memory_order_seq_cst) && state.forking_tid.load(std::memory_order_seq_cst) != 0) {
        answer_table_request(state);  // the fork, or the holder of a lock that it waits for, may want them
        bring_for_evictor(state);     // which the fork may wait for
        sys::sleep_ns(20000);
      }
      if (!take_note(&note)) break;
      const TableScope scope;
      switch (note.kind) {
        case Note::Kind::kUnmapped:
          settle_unmapped(state, *note.region, note.first, note.end);
          break;
        case Note::Kind::kMoved:
          settle_moved(state, *note.region, note);
          break;
        case Note::Kind::kLost:
          settle_lost(state, *note.region, note.first, note.end);
          break;
      }
      sys::Locked<sys::SpinLock> queue(g_notes.lock);
      g_notes.in_hand = false;
      if (g_notes.settled == g_notes.end) g_notes.to_begin.store(0), g_notes.to_end.store(0);
    }
    if (log_level() == LogLevel::kDebug) log_settled(note);
    g_notes.words.fetch_sub(1, std::memory_order_seq_cst);
    state.mutators.fetch_sub(1, std::memory_order_seq_cst);
  }
  // Never waited for: the holder of the maps may wait for us to settle what comes next (a fork does).
  if (g_notes.tables.load(std::memory_order_acquire) == 0) return true;
  const UnmappedOwner* owner = g_owner.load();
  if (owner != nullptr && !owner->try_enter()) return false;
  pager_tell_unmaps();
  if (owner != nullptr) owner->leave();
  return true;
}

void unmaps_forget(PagerState& state, const Region* region) {
  sys::Locked<sys::Mutex> lock(g_notes.settling);
  sys::Locked<sys::SpinLock> queue(g_notes.lock);
  uint64_t kept = g_notes.told, settled = 0;
  const uint64_t all_settled = g_notes.settled;
  for (uint64_t i = g_notes.told; i < g_notes.end; ++i) {
    const Note note = note_at(i);
    if (note.region != region) {
      settled += i < all_settled;
      write_note(kept++, note);
      continue;
    }
    g_notes.tables.fetch_sub(1);
    if (i < all_settled) continue;
    g_notes.words.fetch_sub(1);
    state.mutators.fetch_sub(1);
  }
  g_notes.settled = g_notes.told + settled;
  g_notes.end = kept;
}

// What was moved since the fork began is wrong here: a map with holes where pages are evicted, if it was inheritable by
// then, or no map, and the next one of ours or of the program's comes to lie there. Nothing tells surely whether the
// move or the kernel's copy of the maps came first, so the child ends. An event that is unread by now holds its caller;
// one that was read is counted when that reading has ended.
void unmaps_refuse_moves(const PagerState& state) {
  constexpr unsigned kLooks = 100000;  // of 50 us
  unsigned looks = 0;
  const auto wait_while = [&looks](auto condition) {
    for (; condition(); sys::sleep_ns(50000))
      if (++looks == kLooks) fatal("fork: the parent does not read what its other threads unmap or move");
  };
  wait_while([&state] { return sys::uffd_event_unread(state.uffd); });
  const uint64_t reading = g_moves->readings.load(std::memory_order_seq_cst);
  if ((reading & 1) != 0) wait_while([reading] { return g_moves->readings.load() == reading; });
  if (g_moves->moves.load(std::memory_order_seq_cst) != g_moves_before_fork)
    fatal("fork: tiered memory was moved by a raw mremap at the same moment; the child would not find its content");
}

// Notes of what was unmapped while the fork was under way hold in the child as well: its housekeeping thread settles
// them. The kernel may have copied their page before they were written, and the counters after: without them the child
// keeps address space and LUN space for what is unmapped.
void unmaps_enter_child(PagerState& state) {
  (void)sys::unmap(g_moves, sys::page_bytes());
  if (const int rc = move_count_open(); rc < 0) fatal("fork: the child has no memory for a page (%s)", errno_name(rc));
  g_notes.lock.unlock();
  g_notes.settling.reset_in_child();
  g_notes.marking.store(0);
  g_notes.own_end.store(0);
  g_notes.evictor_at.store(0);
  uint64_t kept = g_notes.settled;
  for (uint64_t i = g_notes.settled; i < g_notes.end; ++i)
    if (const Note note = note_at(i); note.number == i + 1) write_note(kept++, note);
  g_notes.end = kept;
  const auto words = static_cast<uint32_t>(g_notes.end - g_notes.settled);
  g_notes.in_hand = false;
  g_notes.words.store(words);
  g_notes.tables.store(static_cast<uint32_t>(g_notes.end - g_notes.told));
  state.mutators.store(words);
}

}  // namespace lunar
