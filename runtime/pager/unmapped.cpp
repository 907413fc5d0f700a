// SPDX-License-Identifier: Apache-2.0
// See unmapped.h.
// Threading: handlers take notes; the housekeeping thread settles them, and may wait for pages that other threads have
// busy.
#include "pager/unmapped.h"

#include <errno.h>
#include <sys/mman.h>

#include "base/error.h"
#include "pager/pager.h"
#include "pager/resolver.h"
#include "pager/seize.h"
#include "pager/state.h"
#include "sys/arena.h"
#include "sys/fatal.h"
#include "sys/log.h"
#include "sys/mem.h"
#include "sys/proc.h"

namespace lunar {
namespace {

constexpr uint64_t kNowhere = uint64_t{1} << 62;  // no user address
// what comes while the owner of the maps is busy (a long mremap); untouched, it costs nothing
constexpr uint64_t kNotesMax = 1u << 18;

// In one page: a fork copies pages at different moments.
struct alignas(64) Note {
  enum class Kind : uint8_t { kUnmapped, kMoved, kLost } kind = Kind::kUnmapped;
  Region* region = nullptr;
  uint64_t first = 0, end = 0;  // pages
  uint64_t moved_to = 0;        // kMoved
  uint64_t number = 0;          // its index + 1, written last
};

struct alignas(256) Notes {                 // in one page, too
  sys::SpinLock lock;                       // over the queue
  Note* queue = nullptr;                    // ring of kNotesMax, in the order of the events
  uint64_t told = 0, settled = 0, end = 0;  // how far: reported to the maps' owner, the words are settled, noted
  bool in_hand = false;                     // the last one settled is still being settled
  sys::Mutex settling;                      // held while one is being settled
  std::atomic<uint32_t> words{0};           // noted, words not yet settled
  std::atomic<uint32_t> tables{0};          // noted, the maps' owner not yet told
  // hull of the places that pages are being moved to; changed under the lock
  std::atomic<uint64_t> to_begin{0}, to_end{0};
  std::atomic<bool> any{false};                    // ever noted
  std::atomic<uint64_t> marking{0};                // the page that we are mapping over ourselves
  std::atomic<uint64_t> own_begin{0}, own_end{0};  // and the range (OwnUnmap); whether its event came
  std::atomic<bool> own_came{false};
  // Where the evictor waits for a page of a map that is being moved there, and whether to write it; 0: nowhere.
  std::atomic<uint64_t> evictor_at{0};
  char* page = nullptr;  // to read one into
};

static_assert(sizeof(Note) == 64 && sizeof(Notes) <= 256);
constinit Notes g_notes;

// For a child that is being made, which shares it: its copy of our memory cannot tell what had been noted when the
// kernel copied the maps. Written by the handler that reads. A child has its own from then on.
struct MoveCount {
  std::atomic<uint64_t> readings{0};  // begun and ended: odd while messages are read and noted
  std::atomic<uint64_t> moves{0};     // noted, ever
};
constinit MoveCount* g_moves = nullptr;
constinit uint64_t g_moves_before_fork = 0;  // by the forking thread
constinit std::atomic<const UnmappedOwner*> g_owner{nullptr};

Note& note_at(uint64_t index) { return g_notes.queue[index % kNotesMax]; }

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
  housekeeping_wake(kHousekeepingUnmaps);
}

// The next one to be settled.
bool take_note(Note* note) {
  sys::Locked<sys::SpinLock> lock(g_notes.lock);
  if (g_notes.settled == g_notes.end) return false;
  *note = note_at(g_notes.settled++);
  g_notes.in_hand = true;
  return true;
}

// The part of each region that lies in the range.
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
    visit(region, (at - base) >> state.page_shift, (stop - base) >> state.page_shift, at);
    at = stop;
  }
}

void bring_for_evictor(PagerState& state);

// As seize, or with `any` as take_any. The evictor may have the page, and wait in turn for one that we are to bring.
template <class Meanwhile>
PageWord hold(PagerState& state, Region& region, uint64_t page, bool any, Meanwhile meanwhile) {
  AtomicPageWord& word = region.words[page];
  for (unsigned spins = 0;; ++spins) {
    const PageWord seen = word.load(std::memory_order_acquire);
    const bool stays = any ? seen.state() == PageState::kGone : !seized(seen);
    if (seen.state() != PageState::kBusy && (stays || page_lock(word, seen))) return seen;
    if (seen.state() != PageState::kBusy) continue;
    meanwhile();
    bring_for_evictor(state);
    spins < 100 ? sys::cpu_relax() : spins < 200 ? sys::yield_cpu() : sys::sleep_ns(10000);
  }
}

PageWord hold_any(PagerState& state, Region& region, uint64_t page) {
  return hold(state, region, page, true, [] {});
}

// What a page that left has held; `next` is its state from now on. pre: held, unless it is kGone.
void release_held(PagerState& state, Region& region, uint64_t page, PageWord was, PageState next) {
  AtomicPageWord& word = region.words[page];
  if (was.state() == PageState::kGone) {
    word.compare_exchange_strong(was, was.with_state(next).with_slot(kNoSlot));
    return;
  }
  if (was.state() == PageState::kResident) {
    count_resident(region, PageIndex(page), -1);
    still_exclusive(was.epoch(), exclusive_epoch(state)) ? state.account.give(1) : state.account.give_maybe_shared(1);
  }
  if (seized(was)) drop_content(state, was);
  uncharge_touched(region, was);
  if (was.pinned()) state.pinned_pages.fetch_sub(page_clear_pinned(word));
  put_back(state, region, page, was.with_state(next).with_slot(kNoSlot).with_heat(0).with_charged(false));
}

void release_page(PagerState& state, Region& region, uint64_t page, PageState next) {
  release_held(state, region, page, hold_any(state, region, page), next);
}

void release_pages(PagerState& state, Region& region, uint64_t first, uint64_t end, PageState next) {
  const uint64_t limit = region.table_pages.load(std::memory_order_acquire);
  for (uint64_t page = first; page < end && page < limit; ++page) {
    if (page % kChunkPages == 0 && region.chunk_used[page / kChunkPages].load(std::memory_order_acquire) == 0) {
      page += kChunkPages - 1;
      continue;
    }
    release_page(state, region, page, next);
  }
}

// Takes the place back, as far as no other map has it. pre: its pages are released. (Else a read that was under way
// would find memory to put its page into: old content for the next owner of the place.)
void take_place(PagerState& state, Region& region, uint64_t first, uint64_t end) {
  claim_place(region, first, end, [&](uint64_t from, uint64_t to, int rc) {
    if (rc == 0 && watch_fresh_range(state, region.address_of(PageIndex(from)), (to - from) << state.page_shift) == 0)
      return;
    table_reach(region, from, to);  // the words tell what the maps' owner will be told
    release_pages(state, region, from, to, PageState::kGone);
  });
}

void settle_unmapped(PagerState& state, Region& region, uint64_t first, uint64_t end) {
  release_pages(state, region, first, end, PageState::kEmpty);
  take_place(state, region, first, end);
}

// The kernel refuses to put pages anywhere while an event has not been read: until it has been.
template <class Call>
int64_t when_events_are_read(Call call) {
  int64_t rc;
  while ((rc = call()) == -EAGAIN) sys::yield_cpu();
  return rc;
}

// A mapping past the end of its file in the place of `to`. Brings an event of its own, which a handler reads; that
// handler may not have passed it on yet when the call returns.
int map_lost_page(PagerState& state, void* to) {
  const int protection = sys::protection_of(to);
  if (protection < 0) return protection;
  g_notes.marking.store(reinterpret_cast<uintptr_t>(to));
  const int rc = sys::map_past_end(to, state.page_size, protection);
  state.event_gate.wait_for_readers();
  g_notes.marking.store(0);
  return rc;
}

// Whether the place is the tier's yet: not unmapped, nor another map's, nor marked already. The kernel looks at the
// place first, then at what it is to copy, which cannot be read.
bool is_watched(PagerState& state, void* at) {
  void* unreadable = nullptr;
  if (sys::map(nullptr, state.page_size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0, &unreadable) <
      0)
    return true;
  const int64_t rc = when_events_are_read([&] { return sys::uffd_copy(state.uffd, at, unreadable, state.page_size); });
  (void)sys::unmap(unreadable, state.page_size);
  return rc == -EFAULT;
}

// Wakes the threads that wait for a page when its access raises SIGBUS.
void settle_lost(PagerState& state, Region& region, uint64_t first, uint64_t end) {
  for (uint64_t page = first; page < end; ++page) {
    char* at = region.address_of(PageIndex(page));
    const PageWord was = hold_any(state, region, page);
    if (was.state() == PageState::kGone) continue;
    if (was.state() == PageState::kPoisoned && is_watched(state, at)) {  // else discarded, or unmapped
      const int rc = map_lost_page(state, at);
      if (rc < 0 && is_watched(state, at))
        fatal("page %p was lost to a read error, and cannot be made to say so (%s)", static_cast<void*>(at),
              errno_name(rc));
    }
    put_back(state, region, page, was);
    (void)sys::uffd_wake(state.uffd, at, state.page_size);
  }
}

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
          page_hash(content) == region_.hashes[one.page] || read_slot(state_, region_, one.page, one.was, content);
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

// The evictor may have pages in its hands that we wait for.
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
    table_reach(*region, page, page + 1);
    AtomicPageWord& word = region->words[page];
    const PageWord was = word.load(std::memory_order_acquire);
    const bool busy = was.state() == PageState::kBusy || !page_lock(word, was);
    if (busy && was.settled() != PageState::kResident) return;  // looked at again
    g_notes.evictor_at.store(0);  // it may wait for another one as soon as this one is there
    busy ? bring(state, to, page, zero_run(), false) : bring_held(state, *region, page, to, was);
  } else {
    g_notes.evictor_at.store(0);
  }
  (void)sys::uffd_wake(state.uffd, reinterpret_cast<void*>(at), state.page_size);
}

// Faults at `to` no longer wait. False: the map has been moved on.
bool end_of_move(uint64_t to) {
  sys::Locked<sys::SpinLock> lock(g_notes.lock);
  if (note_at(g_notes.settled - 1).moved_to != to) return false;
  g_notes.in_hand = false;
  return true;
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
    const PageWord was = hold(state, region, page, false, [&] { reads.finish(); });
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
  for (uint64_t page = note.first, end = region.table_pages.load(); page < note.end && page < end; ++page)
    if (region.words[page].load(std::memory_order_acquire).state() == PageState::kGone)
      release_page(state, region, page, PageState::kEmpty);
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

// Nothing is brought to a place that is gone; its waiters are woken. (Another map, or a region, may have it next.)
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

void bring_to_evictor(const PagerState& state, uint64_t address, bool to_write) {
  g_notes.evictor_at.store(round_down(address, state.page_size) | (to_write ? 1 : 0));
  housekeeping_wake(kHousekeepingUnmaps);
}

bool unmaps_seen() { return g_notes.any.load(std::memory_order_relaxed); }

bool unmaps_pending() { return g_notes.words.load(std::memory_order_seq_cst) != 0; }

bool unmaps_settle(PagerState& state) {
  for (Note note;;) {
    {
      sys::Locked<sys::Mutex> lock(g_notes.settling);
      // Not during a fork. A fork that does not yet show its id looks again for notes when it does, and there is one.
      if (g_notes.words.load(std::memory_order_seq_cst) == 0) break;
      while (state.forking.load(std::memory_order_seq_cst) && state.forking_tid.load(std::memory_order_seq_cst) != 0) {
        slots_charge_as_asked(state);  // the fork, or the holder of a lock that it waits for, may want them
        bring_for_evictor(state);      // which the fork may wait for
        sys::sleep_ns(20000);
      }
      if (!take_note(&note)) break;
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
