// SPDX-License-Identifier: Apache-2.0
// Settles notes (unmapped.h) of ranges that raw mremap calls moved: evicted pages are brought to the new place, which
// is plain memory from then on. The mremap of libc, which the preload library serves, is move.cpp.
// Threading: the housekeeping thread, which may wait for pages that other threads have busy.
#include <errno.h>
#include <sys/mman.h>

#include "base/error.h"
#include "pager/resolver.h"
#include "pager/unmap_notes.h"
#include "sys/arena.h"
#include "sys/fatal.h"
#include "sys/log.h"
#include "sys/mem.h"

namespace lunar {
namespace {

// Where the pages of a note belong. The program may move its map on: so it is valid inside the event gate only.
struct Destination {
  uint64_t first;  // page
  uint64_t index;  // of the note
  unsigned page_shift;
  char* address_of(uint64_t page) const { return reinterpret_cast<char*>(start() + ((page - first) << page_shift)); }
  uint64_t start() const {
    sys::Locked<sys::SpinLock> lock(g_notes.lock);
    return note_at(index).moved_to;
  }
};

// A read for what the place held before, begun or asked for until the events were read, has put its page into the map
// that was moved there. Nothing else has: faults there wait for us (being_moved_to).
void drop_stale(PagerState& state, const Destination& to, uint64_t first, uint64_t end) {
  uint8_t there[64];
  for (uint64_t page = first; page < end; page += sizeof there) {
    const size_t n = end - page < sizeof there ? end - page : sizeof there;
    const int shard = state.event_gate.enter_waiting();
    char* part = to.address_of(page);
    if (sys::present_pages(part, n, there) < 0) __builtin_memset(there, 0, n);
    for (size_t i = 0; i < n; ++i)
      if (there[i] != 0) (void)sys::advise(part + (i << state.page_shift), state.page_size, MADV_DONTNEED);
    state.event_gate.leave(shard);
  }
}

// A change of a page of a destination, which does not go on meanwhile.
template <class Change>
int64_t change_moved(PagerState& state, const Destination& to, uint64_t page, Change change) {
  return when_events_are_read([&]() -> int64_t {
    const int shard = state.event_gate.enter_waiting();
    int64_t rc = change(to.address_of(page));
    // The kernel looks for the map before it looks for events (6.9): the map may just have gone on.
    if (rc == -ENOENT && sys::uffd_event_unread(state.uffd)) rc = -EAGAIN;
    state.event_gate.leave(shard);
    return rc;
  });
}

void bring(PagerState& state, const Destination& to, uint64_t page, const char* content, bool over_tiered) {
  const auto copy = [&](char* at) { return sys::uffd_copy(state.uffd, at, content, state.page_size); };
  if (change_moved(state, to, page, copy) != -EEXIST || !over_tiered) return;
  drop_stale(state, to, page, page + 1);
  (void)change_moved(state, to, page, copy);
}

// Once more does no harm.
void poison(PagerState& state, const Destination& to, uint64_t page) {
  const int64_t rc =
      state.features.poison
          ? change_moved(state, to, page, [&](char* at) { return sys::uffd_poison(state.uffd, at, state.page_size); })
          : when_events_are_read(
                [&] { return is_watched(state, to.address_of(page)) ? map_lost_page(state, to.address_of(page)) : 0; });
  if (rc < 0 && rc != -EEXIST && rc != -ENOENT && to.start() != kNowhere)
    fatal("page %p was lost, and cannot be made to say so (%s)", static_cast<void*>(to.address_of(page)),
          errno_name(static_cast<int>(rc)));
}

// content: nullptr where it is lost.
void bring_read(PagerState& state, const Destination& to, uint64_t page, const char* content, bool over_tiered) {
  if (content != nullptr) return bring(state, to, page, content, over_tiered);
  LUNAR_LOG_LIMITED(log_error, 100, "page %p, moved by a raw mremap, cannot be read back; it is poisoned",
                    static_cast<void*>(to.address_of(page)));
  counters().poisoned.add();
  poison(state, to, page);
}

// Evicted pages of a moved map, read many at a time. pre: seized; they are released here.
class MovedReads {
 public:
  MovedReads(PagerState& state, Region& region, const Destination& to, bool over_tiered)
      : state_(state), region_(region), to_(to), over_tiered_(over_tiered) {
    buffer_ = static_cast<char*>(map_private(kMost * state.page_size, ForkPolicy::kDontFork));
  }
  ~MovedReads() {
    for (unsigned i = 0; i < kLunIds; ++i)
      if (contexts_[i] != nullptr) state_.devices[i]->detach(contexts_[i]);
    if (buffer_ != nullptr) unmap_private(buffer_, kMost * state_.page_size);
  }
  MovedReads(const MovedReads&) = delete;
  MovedReads& operator=(const MovedReads&) = delete;
  bool ready() const { return buffer_ != nullptr; }

  void add(uint64_t page, PageWord was) {
    parts_[count_] = {buffer_ + count_ * state_.page_size, state_.page_size};
    pages_[count_++] = {page, was};
    if (count_ == kMost) finish();
  }

  void finish() {
    for (unsigned lun = 0; lun < kLunIds; ++lun) read_from(lun);
    for (unsigned i = 0; i < count_; ++i) {
      auto* content = static_cast<char*>(parts_[i].iov_base);
      const Page& one = pages_[i];
      const bool is_read =
          page_hash(content) == region_.table.hash(one.page) || read_slot(state_, region_, one.page, one.was, content);
      bring_read(state_, to_, one.page, is_read ? content : nullptr, over_tiered_);
      release_held(state_, region_, one.page, one.was, PageState::kEmpty);
    }
    count_ = 0;
  }

 private:
  static constexpr unsigned kMost = 64;
  struct Page {
    uint64_t page;
    PageWord was;
  };

  // What does not come is read again, one by one.
  void read_from(unsigned lun) {
    Command commands[kMost];
    unsigned n = 0;
    for (unsigned i = 0; i < count_; ++i)
      if (pages_[i].was.lun() == lun)
        commands[n++] = {Op::kRead, state_.luns[lun].offset_of(pages_[i].was.slot()), &parts_[i], 1, 0, i};
    if (n == 0) return;
    ContextOptions options;
    options.depth = kMost;
    options.spin = false;
    if (contexts_[lun] == nullptr && state_.devices[lun]->attach(options, &contexts_[lun]) < 0)
      contexts_[lun] = nullptr;
    if (contexts_[lun] == nullptr) return;
    const int submitted = contexts_[lun]->submit(commands, n);
    Response responses[kMost];
    for (int left = submitted; left > 0;) {
      const int got = contexts_[lun]->wait(responses, kMost, -1);
      if (got < 0 && got != -EINTR) fatal_if_refused(got, "io_uring_enter");
      if (got > 0) left -= got;
      if (got == 0 && contexts_[lun]->in_flight() == 0) break;
    }
  }

  PagerState& state_;
  Region& region_;
  const Destination to_;
  const bool over_tiered_;
  char* buffer_ = nullptr;
  unsigned count_ = 0;
  Page pages_[kMost];
  iovec parts_[kMost];
  Context* contexts_[kLunIds] = {};
};

// The latest move to `address` that is not settled: its region, the page that belongs there, and its note.
Region* moved_from(const PagerState& state, uint64_t address, uint64_t* page, Destination* to) {
  Region* region = nullptr;
  const unsigned shift = state.page_shift;
  sys::Locked<sys::SpinLock> lock(g_notes.lock);
  for (uint64_t i = g_notes.settled - (g_notes.in_hand ? 1 : 0); i < g_notes.end; ++i) {
    const Note& note = note_at(i);
    if (note.kind != Note::Kind::kMoved || address - note.moved_to >= (note.end - note.first) << shift) continue;
    region = note.region;
    *page = note.first + ((address - note.moved_to) >> shift);
    *to = {note.first, i, shift};
  }
  return region;
}

// What belongs there is brought. Its word is kGone until the move is settled.
void bring_held(PagerState& state, Region& region, uint64_t page, const Destination& to, PageWord was) {
  switch (was.state()) {
    case PageState::kEvicted:
      bring_read(state, to, page, read_slot(state, region, page, was, g_notes.page) ? g_notes.page : nullptr, true);
      break;
    case PageState::kInFrame:
      bring(state, to, page, state.frames.memory(was.index()), true);
      break;
    case PageState::kPoisoned:
      poison(state, to, page);
      break;
    case PageState::kEmpty:
    case PageState::kResident:  // dropped by a raw call
      bring(state, to, page, zero_run(), false);
      break;
    default:
      put_back(state, region, page, was);
      return;
  }
  release_held(state, region, page, was, PageState::kGone);
}

// Faults at `to` no longer wait. False: the map has been moved on.
bool end_of_move(uint64_t to) {
  sys::Locked<sys::SpinLock> lock(g_notes.lock);
  if (note_at(g_notes.settled - 1).moved_to != to) return false;
  g_notes.in_hand = false;
  return true;
}

}  // namespace

void bring_for_evictor(PagerState& state) {
  const uint64_t wanted = g_notes.evictor_at.load(std::memory_order_acquire), at = round_down(wanted, state.page_size);
  if (wanted == 0) return;
  uint64_t page = 0;
  Destination to{};
  Region* region = moved_from(state, at, &page, &to);
  if (region != nullptr && at != wanted) {
    g_notes.evictor_at.store(0);
    state.account.unshare_always(1);
    (void)change_moved(state, to, page,
                       [&](char* p) { return sys::uffd_protect(state.uffd, p, state.page_size, false); });
  } else if (region != nullptr) {
    if (table_reach(state, *region, page, page + 1, 0) < 0) return;  // looked at again
    const PageWord was = region->table.peek(page);
    const bool busy = was.state() == PageState::kBusy || !region->table.lock(page, was);
    if (busy && was.settled() != PageState::kResident) return;  // looked at again
    g_notes.evictor_at.store(0);  // it may wait for another one as soon as this one is there
    busy ? bring(state, to, page, zero_run(), false) : bring_held(state, *region, page, to, was);
  } else {
    g_notes.evictor_at.store(0);
  }
  (void)sys::uffd_wake(state.uffd, reinterpret_cast<void*>(at), state.page_size);
}

void settle_moved(PagerState& state, Region& region, const Note& note) {
  const uint64_t table = region.table_pages.load(std::memory_order_acquire), limit = table < note.first ? note.first
                                                                                     : table < note.end ? table
                                                                                                        : note.end;
  const uint64_t bytes = (note.end - note.first) << state.page_shift;
  const Destination to{note.first, g_notes.settled - 1, state.page_shift};
  const auto* place = reinterpret_cast<char*>(note.moved_to);
  const bool over_tiered = state.regions.find(place) != nullptr || state.regions.find(place + bytes - 1) != nullptr;
  if (over_tiered) drop_stale(state, to, limit, note.end);  // never touched
  MovedReads reads(state, region, to, over_tiered);
  if (!reads.ready())
    fatal("tiered memory was moved by a raw mremap and there is no memory to bring its evicted pages along");
  for (uint64_t page = note.first; page < limit; ++page) {
    if (const uint64_t next = region.table.next_used(page, limit); next != page) {
      if (over_tiered) drop_stale(state, to, page, next);
      if ((page = next) == limit) break;
    }
    const PageWord was = hold_page(state, region, page, false, [&] { reads.finish(); });
    if (!seized(was)) {  // guard markers went along
      if (over_tiered && was.state() == PageState::kEmpty) drop_stale(state, to, page, page + 1);
      continue;
    }
    if (was.state() == PageState::kEvicted) {
      reads.add(page, was);
      continue;
    }
    if (was.state() == PageState::kPoisoned) poison(state, to, page);  // it may not be marked yet
    if (was.state() == PageState::kInFrame) bring(state, to, page, state.frames.memory(was.index()), over_tiered);
    release_held(state, region, page, was, PageState::kEmpty);
  }
  reads.finish();
  // Those that were brought for the evictor. With MREMAP_DONTUNMAP the place is the region's still.
  for (uint64_t page = region.table.next_used(note.first, note.end); page < note.end;
       page = region.table.next_used(page + 1, note.end))
    if (region.table.peek(page).state() == PageState::kGone) release_page(state, region, page, PageState::kEmpty);
  table_retire(state, region, note.first, note.end);
  // From then on a move of it is no event. One that comes just before leaves it watched where it goes: what it has not
  // there is zeros. No event is read meanwhile: a thread that unmaps the place waits for that, and nothing else has it
  // yet.
  uint64_t start;
  do {
    const int shard = state.event_gate.enter_waiting();
    auto* there = reinterpret_cast<void*>(start = to.start());
    // regions are kept from children that our fork handlers know nothing of
    (void)sys::advise(there, bytes, MADV_DOFORK);
    (void)sys::uffd_unregister(state.uffd, there, bytes);
    state.event_gate.leave(shard);
  } while (!end_of_move(start));
  // A fault between the two was left to us: of a region, perhaps, that has the place since the map was unmapped, which
  // is no event any more.
  if (start != kNowhere) (void)sys::uffd_wake(state.uffd, reinterpret_cast<void*>(start), bytes);
  LUNAR_LOG_LIMITED(
      log_warning, 4,
      "%llu KiB of tiered memory were moved by a raw mremap system call: they are plain memory from now on",
      static_cast<unsigned long long>(bytes / 1024));
}

}  // namespace lunar
