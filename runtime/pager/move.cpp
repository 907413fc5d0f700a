// SPDX-License-Identifier: Apache-2.0
// pager_move: moves memory for mremap, while other threads use both places.
//
// An active process moves runs of pages:
//   1 lock      the pages of both places: a thread that faults there waits until the run is done
//   2 clear     drops the target's old content, and gives it the protection of the source
//   3 hold      write-protects the source by userfaultfd: a write from here on waits, and then
//               finds the page gone
//   4 copy      by UFFDIO_COPY, which ignores the target's protection. Pages that the program may
//               not read are read through /proc/self/mem. For pages that are evicted, or in a
//               frame, only words change
//   5 drop      the source. If it ends (without MREMAP_DONTUNMAP) it becomes PROT_NONE, before a
//               waiting thread tries again
// Threading: any thread of the program; see lock_pages.h. After a failure the pages that were moved
// are moved back.
#include <errno.h>
#include <sys/mman.h>

#include <initializer_list>

#include "pager/activation/activation.h"
#include "pager/fault/bring_in.h"
#include "pager/fault/kept_pages.h"
#include "pager/fork/wipe.h"
#include "pager/lock_pages.h"
#include "pager/pager.h"
#include "pager/space/lun_space.h"
#include "pager/state/descriptors.h"
#include "pager/state/install.h"
#include "pager/table/tables.h"
#include "sys/arena.h"
#include "sys/by_halves.h"
#include "sys/fatal.h"
#include "sys/memory_constants.h"

namespace lunar {
namespace {

constexpr uint64_t kRunPages = 32;  // present twice while they are copied

// ---- plain memory -------------------------------------------------------------------------------

// Uses the kernel's mremap twice: MREMAP_DONTUNMAP moves the memory to any place, so that the old
// place stays reserved, and MREMAP_FIXED moves it from there to its target. One call is not enough:
// the kernel (before 6.17) unmaps a fixed target before it checks whether the source is one map. If
// the source ends, it is PROT_NONE before the call, and the moved memory becomes accessible again
// between the two steps. Adds the moved bytes to *done. -EFAULT: the source is several maps.
int remap_one(char* to, char* from, size_t bytes, const Move& how, size_t* done) {
  void *place = nullptr, *out = nullptr;
  int rc = sys::remap(from, bytes, bytes, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, nullptr, &place);
  if (rc < 0) return rc;
  if (how.ends) rc = sys::protect(place, bytes, how.prot);
  if (rc == 0) rc = sys::remap(place, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, to, &out);
  if (rc == 0) {
    *done += bytes;
    return 0;
  }
  if (sys::remap(place, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, from, &out) < 0)
    fatal("move: memory at %p cannot be put back (%s)", static_cast<void*>(from), errno_name(rc));
  (void)sys::claim(to, bytes);
  return rc;
}

int remap(char* to, char* from, size_t bytes, const Move& how, size_t* done) {
  return sys::by_halves(from, bytes, -EFAULT, [&](char* at, size_t part) {
    return remap_one(to + (at - from), at, part, how, done);
  });
}

int move_plain(char* to, char* from, size_t bytes, const Move& how) {
  size_t done = 0, back = 0;
  int rc = how.ends ? sys::protect(from, bytes, PROT_NONE) : 0;
  if (rc == 0) rc = remap(to, from, bytes, how, &done);
  if (rc == 0) return 0;
  int undone = done == 0 ? 0 : remap(from, to, done, {how.prot, false, true}, &back);
  if (undone == 0 && how.ends) undone = sys::protect(from, bytes, how.prot);
  if (undone < 0)
    fatal("move: memory at %p was moved only in part and could not be moved back (%s)",
          static_cast<void*>(from), errno_name(undone));
  return rc;
}

// Makes words for the guard pages that will be at the target: a process that is not active takes no
// DRAM for them.
int reach_guards(PagerState& state, const PageRange& to, const PageRange& from) {
  for (uint64_t p = from.first;
       p < from.end && from.region->has_guards.load(std::memory_order_acquire); ++p) {
    p = from.region->table.next_used(p, from.end);
    const uint64_t target = to.first + (p - from.first);
    if (p < from.end && from.region->table.peek(p).state() == PageState::kGuard)
      if (int rc = table_reach(state, *to.region, target, target + 1, 0); rc < 0) return rc;
  }
  return 0;
}

// Changes the words of guard pages. The kernel has moved their markers.
void move_guard_words(const PageRange& to, const PageRange& from) {
  Region &target = *to.region, &source = *from.region;
  const bool some = source.has_guards.load(std::memory_order_acquire);
  if (!some && !target.has_guards.load(std::memory_order_acquire)) return;
  if (some) target.has_guards.store(true, std::memory_order_release);
  for (uint64_t i = 0; i < from.end - from.first; ++i) {
    const PageWord was = source.table.peek(from.first + i),
                   before = target.table.peek(to.first + i);
    const bool guard = was.state() == PageState::kGuard;
    if (guard || before.state() == PageState::kGuard)
      target.table.at(to.first + i)
          .store(before.with_state(guard ? PageState::kGuard : PageState::kEmpty));
    if (guard) source.table.at(from.first + i).store(was.with_state(PageState::kEmpty));
  }
}

// ---- an active process --------------------------------------------------------------------------

// Reads pages that the program may not read, one by one.
class Unreadable {
 public:
  Unreadable() = default;
  ~Unreadable() {
    if (memory_ >= 0) sys::close_file(memory_);
    if (page_ != nullptr) unmap_private(page_, sys::page_bytes());
  }
  Unreadable(const Unreadable&) = delete;
  Unreadable& operator=(const Unreadable&) = delete;

  bool opened() const { return memory_ >= 0 && page_ != nullptr; }
  bool open() {
    if (memory_ < 0) memory_ = sys::open_unreadable_memory();
    if (page_ == nullptr)
      page_ = static_cast<char*>(map_private(sys::page_bytes(), ForkPolicy::kDontFork));
    return opened();
  }
  const char* read(const char* from) {
    if (int rc = sys::read_memory(memory_, from, page_, sys::page_bytes()); rc < 0)
      fatal("move: page %p cannot be read (%s)", static_cast<const void*>(from), errno_name(rc));
    return page_;
  }

 private:
  int memory_ = -1;
  char* page_ = nullptr;
};

// Locked pages, and their words from before.
struct Run {
  Region& to;
  Region& from;
  uint64_t target, source;
  unsigned count;
  PageWord there[kRunPages] = {}, was[kRunPages] = {};
  unsigned contents = 0;  // pages with content that were moved

  char* target_at(unsigned i) const { return to.address_of(PageIndex(target + i)); }
  char* source_at(unsigned i) const { return from.address_of(PageIndex(source + i)); }
};

void release_words(PagerState& state, Region& region, uint64_t first, const PageWord* words,
                   unsigned count) {
  for (unsigned i = 0; i < count; ++i) release_page(state, region, PageIndex(first + i), words[i]);
}

// Locks both places in the order of addresses, as all code does that locks several pages. 0;
// -ENOMEM: no page is locked.
int lock_run(PagerState& state, Run& run) {
  const auto lock_target = [&] {
    return lock_pages(state, run.to, run.target, run.target + run.count, run.there);
  };
  const auto lock_source = [&] {
    return lock_pages(state, run.from, run.source, run.source + run.count, run.was);
  };
  const bool target_first = run.target_at(0) < run.source_at(0);
  int rc = target_first ? lock_target() : lock_source();
  if (rc < 0) return rc;
  rc = target_first ? lock_source() : lock_target();
  if (rc < 0 && target_first) release_words(state, run.to, run.target, run.there, run.count);
  if (rc < 0 && !target_first) release_words(state, run.from, run.source, run.was, run.count);
  return rc;
}

// Drops the present pages of a run's place. After an error some may be dropped.
int drop_run(const PagerState& state, const Region& region, uint64_t first, const PageWord* words,
             unsigned count) {
  bool stays[kRunPages];
  return drop_present(state, region, first, first + count, words, MADV_DONTNEED_LOCKED, stays);
}

// Drops the target's old content, with its pins and guard pages, and gives it the source's
// protection.
int clear_target(PagerState& state, Run& run, const Move& how) {
  if (int rc = drop_run(state, run.to, run.target, run.there, run.count); rc < 0) return rc;
  for (unsigned i = 0; i < run.count; ++i) {
    PageWord& there = run.there[i];
    AtomicPageWord& word = run.to.table.at(run.target + i);
    if (there.pinned()) state.pinned_pages.fetch_sub(page_clear_pinned(word));
    if (there.state() == PageState::kGuard)
      (void)sys::advise(run.target_at(i), state.page_size, MADV_GUARD_REMOVE);
    there = empty_word(state, run.to, run.target + i, there, PageState::kEmpty);
  }
  return how.replaces ? sys::protect(run.target_at(0), run.count * state.page_size, how.prot) : 0;
}

void copy_pages(PagerState& state, const Run& run, unsigned first, unsigned end,
                Unreadable& unreadable) {
  unsigned most = unreadable.opened() ? 1 : end - first;
  for (unsigned i = first; i < end;) {
    const unsigned n = most < end - i ? most : end - i;
    const char* content =
        unreadable.opened() ? unreadable.read(run.source_at(i)) : run.source_at(i);
    const InstallResult copy = install(state, run.target_at(i), content, n);
    if (copy.outcome == InstallOutcome::kDone)
      i += copy.pages;
    else if (copy.error == -ENOMEM)
      sys::yield_cpu();
    else if (copy.outcome == InstallOutcome::kBorder)
      most = 1;
    else if (copy.error == -EFAULT && !unreadable.opened() && unreadable.open())
      most = 1;  // a raw mprotect has made it unreadable
    else
      fatal("move: page %p could not be copied (%s)", static_cast<void*>(run.source_at(i)),
            errno_name(copy.error));
  }
}

// Pages that the program has dropped by a raw call become empty: copying them would be a
// fault, which would wait for this thread.
void note_dropped(PagerState& state, Run& run) {
  uint8_t present[kRunPages];
  if (sys::present_pages(run.source_at(0), run.count, present) < 0) return;
  for (unsigned i = 0; i < run.count; ++i)
    if (run.was[i].state() == PageState::kResident && present[i] == 0)
      run.was[i] = empty_word(state, run.from, run.source + i, run.was[i], PageState::kEmpty);
}

// Steps 3 to 5: contents are in both places, then in the new one alone.
void carry_over(PagerState& state, Run& run, const Move& how, Unreadable& unreadable) {
  bool resident = false;
  for (unsigned i = 0; i < run.count; ++i) resident |= run.was[i].state() == PageState::kResident;
  if (resident) note_dropped(state, run);
  if (resident && (how.prot & PROT_WRITE) != 0 && state.write_protect)
    protect_where_possible(state, run.source_at(0), run.count * state.page_size);
  for (unsigned i = 0, end; resident && i < run.count; i = end + 1) {
    for (end = i; end < run.count && run.was[end].state() == PageState::kResident; ++end) {}
    copy_pages(state, run, i, end, unreadable);
  }
  for (unsigned i = 0; i < run.count; ++i) {
    if (run.was[i].state() != PageState::kGuard) continue;
    run.to.has_guards.store(true, std::memory_order_release);
    const int rc = sys::advise(run.target_at(i), state.page_size, MADV_GUARD_INSTALL);
    if (rc < 0)
      fatal("move: page %p cannot be made a guard page (%s)", static_cast<void*>(run.target_at(i)),
            errno_name(rc));
    (void)sys::advise(run.source_at(i), state.page_size, MADV_GUARD_REMOVE);
  }
  if (int rc = drop_run(state, run.from, run.source, run.was, run.count); rc < 0)
    fatal("move: page %p or one behind it cannot be dropped (%s); its old content would come back",
          static_cast<void*>(run.source_at(0)), errno_name(rc));
  if (how.ends) (void)sys::protect(run.source_at(0), run.count * state.page_size, PROT_NONE);
}

// Returns the word of a page at its new place, where its content is already: a row for each state.
PageWord moved_word(PagerState& state, Run& run, unsigned i) {
  const PageWord was = run.was[i];
  const PageIndex from(run.source + i), to(run.target + i);
  switch (was.state()) {
    case PageState::kEmpty:
      return run.there[i];
    case PageState::kGuard:
      return run.there[i].with_state(PageState::kGuard);
    case PageState::kResident:
      // a relative may still map the old page
      if (!still_exclusive(was.epoch(), exclusive_epoch(state))) state.account.unshare_always(1);
      count_resident(state, run.from, from, -1);
      count_resident(state, run.to, to, 1);
      // exclusive_epoch: no fork runs during a MutatorScope
      return resident_word(was, was.slot(), was.lun(), was.heat(), exclusive_epoch(state));
    case PageState::kInFrame:
      state.frames.at(was.index())
          .word.store(&run.to.table.at(to.value), std::memory_order_release);
      state.frames.at(was.index()).address.store(run.to.address_of(to), std::memory_order_release);
      return was;
    case PageState::kPoisoned:  // the new place is marked at its first fault
    case PageState::kEvicted:
    case PageState::kBusy:  // by this thread: `was` is the state before
      break;
  }
  return was;
}

// Moves the word of one page, its hash, charge and pin.
void move_word(PagerState& state, Run& run, unsigned i) {
  const PageWord was = run.was[i];
  const uint64_t s = run.source + i, d = run.target + i;
  if (has_content(was)) run.to.table.hash(d) = run.from.table.hash(s);
  PageWord moved = moved_word(state, run, i);
  if (has_content(was)) {
    ++run.contents;
    if (run.from.on_touch) run.from.committed_pages.fetch_sub(1, std::memory_order_relaxed);
    if (run.to.on_touch) run.to.committed_pages.fetch_add(1, std::memory_order_relaxed);
    moved = moved.with_charged(run.to.on_touch);
  }
  // The new place is pinned before the old one is unpinned, so that the page cannot be evicted in
  // between.
  if (pinned_by_program(run.from, s)) {
    state.pinned_pages.fetch_add(1 - page_set_pinned(run.to.table.at(d)));
    state.pinned_pages.fetch_sub(page_clear_pinned(run.from.table.at(s)));
  }
  release_page(state, run.to, PageIndex(d), moved);
  release_page(state, run.from, PageIndex(s), was.emptied(PageState::kEmpty));
}

int move_run(PagerState& state, Run& run, const Move& how, Unreadable& unreadable) {
  if (int rc = table_reach_waiting(state, run.to, run.target, run.target + run.count); rc < 0)
    return rc;
  if (int rc = table_reach_waiting(state, run.from, run.source, run.source + run.count); rc < 0)
    return rc;
  MutatorScope scope(state);
  if (int rc = lock_run(state, run); rc < 0) return rc;
  if (int rc = clear_target(state, run, how); rc < 0) {
    release_words(state, run.to, run.target, run.there, run.count);
    release_words(state, run.from, run.source, run.was, run.count);
    return rc;
  }
  carry_over(state, run, how, unreadable);
  for (unsigned i = 0; i < run.count; ++i) move_word(state, run, i);
  return 0;
}

// Moves a run, and charges or uncharges LUN space if one map is charged as a whole and the other by
// page.
int move_charged(PagerState& state, Run& run, const Move& how, Unreadable& unreadable) {
  const bool by_page = run.to.on_touch, was_by_page = run.from.on_touch;
  if (by_page == was_by_page) return move_run(state, run, how, unreadable);
  if (by_page && space_charge(state, run.count, true) < 0) return -ENOMEM;
  const int rc = move_run(state, run, how, unreadable);
  space_uncharge(state, by_page ? run.count - run.contents : run.contents);
  return rc;
}

// Finds the next page of the source with a word, from `page` on. If the source ends, the untouched
// part before it becomes PROT_NONE first, and is searched once more: pages that a thread wrote to
// meanwhile have words and are moved.
int find_used(const PageRange& from, uint64_t page, const Move& how, uint64_t* used) {
  const PageTable& table = from.region->table;
  *used = table.next_used(page, from.end);
  if (*used == page || !how.ends) return 0;
  const auto protect = [&](uint64_t first, uint64_t end, int prot) {
    char* at = from.region->address_of(PageIndex(first));
    return sys::protect(at, static_cast<size_t>(from.region->address_of(PageIndex(end)) - at),
                        prot);
  };
  const uint64_t end = *used;
  if (int rc = protect(page, end, PROT_NONE); rc < 0) return rc;
  *used = table.next_used(page, end);
  return *used == end ? 0 : protect(*used, end, how.prot);
}

// For an untouched part of the source: the target reads as zeros.
int move_nothing(char* target, size_t bytes, const Move& how) {
  if (!how.replaces) return 0;
  if (int rc = pager_discard(target, bytes, Discard::kMapping); rc < 0) return rc;
  return sys::protect(target, bytes, how.prot);
}

// *done: pages that have been moved.
int move_runs(PagerState& state, const PageRange& to, const PageRange& from, const Move& how,
              uint64_t* done) {
  const uint64_t count = from.end - from.first;
  Unreadable unreadable;
  if ((how.prot & PROT_READ) == 0 && !unreadable.open()) return -ENOMEM;
  while (*done < count) {
    const uint64_t source = from.first + *done, target = to.first + *done;
    uint64_t used = 0;
    int rc = find_used(from, source, how, &used);
    if (rc < 0) return rc;
    uint64_t n = used - source;
    if (n != 0) {
      rc = move_nothing(to.region->address_of(PageIndex(target)), n << state.page_shift, how);
    } else {
      n = count - *done < kRunPages ? count - *done : kRunPages;
      Run run{*to.region, *from.region, target, source, static_cast<unsigned>(n)};
      rc = move_charged(state, run, how, unreadable);
    }
    if (rc < 0) return rc;
    *done += n;
  }
  return 0;
}

// In an active process.
int move_tiered(PagerState& state, const PageRange& to, const PageRange& from, const Move& how) {
  if (!descriptors_in_place(state)) return -ENOMEM;
  uint64_t done = 0;
  const int rc = move_runs(state, to, from, how, &done);
  if (rc == 0) {
    const MutatorScope scope(state);
    table_retire(state, *from.region, from.first, from.end);
    table_retire(state, *to.region, to.first, to.end);
  }
  if (rc == 0 || done == 0) return rc;
  const PageRange old{from.region, from.first, from.first + done},
      now{to.region, to.first, to.first + done};
  uint64_t back = 0;
  if (int undone = move_runs(state, old, now, {how.prot, false, true}, &back); undone < 0)
    fatal("move: memory at %p was moved only in part and could not be moved back (%s)",
          static_cast<void*>(from.region->address_of(PageIndex(from.first))), errno_name(undone));
  return rc;
}

}  // namespace

int pager_move(void* dst, void* src, size_t bytes, const Move& how) {
  auto& state = pager_state();
  auto *target = static_cast<char*>(dst), *source = static_cast<char*>(src);
  PageRange to, from;
  int rc = pages_of(state, dst, bytes, true, &to);
  if (rc == 0) rc = pages_of(state, src, bytes, true, &from);
  if (rc == 0 && how.replaces && to.region->has_patterns.load(std::memory_order_relaxed))
    rc = pager_advise(dst, bytes, LUNAR_NORMAL);
  if (rc == 0 && how.replaces && wipe_any()) rc = pager_wipe_on_fork(dst, bytes, false);
  if (rc == 0 && wipe_any()) rc = wipe_move(state, target, source, bytes);
  if (rc != 0) return rc;
  return plain_or_active(
      state,
      [&] {
        int moved = reach_guards(state, to, from);
        if (moved == 0) moved = move_plain(target, source, bytes, how);
        if (moved == 0) move_guard_words(to, from);
        return moved;
      },
      [&] { return move_tiered(state, to, from, how); });
}

}  // namespace lunar
