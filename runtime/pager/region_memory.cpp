// SPDX-License-Identifier: Apache-2.0
// The memory of regions: reserving, committing and giving it back.
// Threading: not for the fault path.
#include <errno.h>
#include <sys/mman.h>

#include <algorithm>
#include <type_traits>

#include "base/format.h"
#include "pager/activation/activation.h"
#include "pager/evict/evictor.h"
#include "pager/fault/fault_state.h"
#include "pager/fault/handler.h"
#include "pager/fault/map_events.h"
#include "pager/fork/checked_forks.h"
#include "pager/fork/wipe.h"
#include "pager/pager.h"
#include "pager/space/lun_space.h"
#include "pager/state/descriptors.h"
#include "pager/table/table_promise.h"
#include "pager/table/tables.h"
#include "sys/arena.h"
#include "sys/fatal.h"
#include "sys/log.h"

namespace lunar {

// steps in which a region that only grows is made read/write
constexpr size_t kUsableStep = 64 * kMiB;
// size of the last commit that found no space; 0: none, or it was logged
static constinit std::atomic<uint64_t> g_refused_bytes{0};
// that space was of page tables, not of the LUN
static constinit std::atomic<bool> g_refused_by_tables{false};

// Reserves address space from a chunk's boundary on, so that a chunk can be a huge page; for a
// small region anywhere.
static int reserve_aligned(const PagerState& state, size_t bytes, void** out) {
  const size_t chunk = kChunkPages << state.page_shift, spare = bytes >= chunk ? chunk : 0;
  void* at = nullptr;
  int rc = sys::map(nullptr, bytes + spare, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                    -1, 0, &at);
  if (rc < 0) return rc;
  auto* low = static_cast<char*>(at);
  char* base =
      spare == 0 ? low : reinterpret_cast<char*>(round_up(reinterpret_cast<uintptr_t>(low), chunk));
  if (base > low) (void)sys::unmap(low, static_cast<size_t>(base - low));
  if (char* end = low + bytes + spare; end > base + bytes)
    (void)sys::unmap(base + bytes, static_cast<size_t>(end - base - bytes));
  *out = base;
  return 0;
}

// The arrays with an element per chunk, or per group of pages, are in one map: a program may have
// thousands of regions, and the kernel limits the number of maps (vm.max_map_count).
static uint64_t chunk_count(const Region& region) {
  return (region.pages + kChunkPages - 1) / kChunkPages;
}
static size_t arrays_bytes(const Region& region) {
  return chunk_count(region) * (2 * sizeof(int32_t) + sizeof(uint8_t)) +
         region.pattern_count() * sizeof(Access);
}

static bool map_arrays(Region& region) {
  char* at = static_cast<char*>(map_table(arrays_bytes(region)));
  if (at == nullptr) return false;
  const uint64_t chunks = chunk_count(region);
  const auto take = [&at](auto*& array, uint64_t count) {
    array = reinterpret_cast<std::remove_reference_t<decltype(array)>>(at);
    at += count * sizeof *array;
  };
  take(region.chunk_resident, chunks);
  take(region.chunk_committed, chunks);
  take(region.chunk_large, chunks);
  take(region.patterns, region.pattern_count());
  return true;
}

static void unmap_tables(Region& region) {
  region.table.unmap();
  if (region.chunk_resident != nullptr) unmap_table(region.chunk_resident, arrays_bytes(region));
}

int region_create(size_t bytes, unsigned flags, Region** out) {
  auto& state = pager_state();
  if (bytes == 0 || bytes % state.page_size != 0) return -EINVAL;
  Region* region = arena_new<Region>();
  if (region == nullptr) return -ENOMEM;
  region->pages = bytes >> state.page_shift;
  region->on_touch = (flags & kRegionChargeOnTouch) != 0;
  region->strict = (flags & kRegionStrict) != 0;
  void* base = nullptr;
  int rc = reserve_aligned(state, bytes, &base);
  if (rc < 0) return rc;
  LUNAR_CHECK(state.regions.find(base) == nullptr,
              "a system call past Lunar has unmapped a part of a region");
  region->base = static_cast<char*>(base);
  (void)sys::advise(base, bytes, MADV_UNMERGEABLE);  // see Taker::forbid_merging
  rc = region->table.map(region->pages) && map_arrays(*region) ? 0 : -ENOMEM;
  {
    sys::Locked<sys::Mutex> lock(g_activation.lock);
    if (rc == 0 && state.active.load()) rc = watch_fresh_range(state, base, bytes);
    if (rc == 0) rc = state.regions.insert(region);
  }
  if (rc < 0) {
    (void)sys::unmap(base, bytes);
    unmap_tables(*region);
    return rc;
  }
  *out = region;
  return 0;
}

// In an active process. pre: no page of it is committed.
static void end_tiered(PagerState& state, Region* region) {
  // Outside of the scope, because it enters scopes of its own: nested, they would wait for a fork
  // that waits for this one.
  (void)pager_discard(region->base, region_size(region), Discard::kMapping);
  const MutatorScope scope(state);
  // Afterwards no thread holds a page of the region: the evictor rests, and handlers end their
  // rounds. (The pause waits for writes, as a fork does that waits for this scope.)
  state.evictor->pause();
  state.regions.remove(region);
  state.evictor->resume();
  for (unsigned i = 0; i < state.services.handler_count; ++i) g_fault.handlers[i]->wait_for_round();
  {
    const OwnUnmap own(state, region->base, region_size(region));
    (void)sys::unmap(region->base, region_size(region));
  }
  table_retire_all(state, *region);
  unmap_tables(*region);  // inside of the scope: a child would keep them
}

static void end_plain(PagerState& state, Region* region) {
  const sys::ScopedSignalBlock signals;
  state.regions.remove(region);
  (void)sys::unmap(region->base, region_size(region));
  table_retire_all(state, *region);
  unmap_tables(*region);
}

int region_destroy(Region* region) {
  auto& state = pager_state();
  if (region->committed_pages.load() != 0) return -EBUSY;
  plain_or_active(state, [&] { end_plain(state, region); }, [&] { end_tiered(state, region); });
  return 0;  // the Region object stays in the arena, as a late look-up may still read it
}

char* region_base(const Region* region) { return region->base; }
size_t region_size(const Region* region) { return region->pages << pager_state().page_shift; }
Region* region_find(const void* address) { return own_region(pager_state(), address); }

constexpr int kChargeOnly = -1;  // in place of a protection

static int make_usable(PagerState& state, Region* region, size_t offset, size_t bytes,
                       int protection) {
  if (protection == kChargeOnly) return 0;
  sys::Locked<sys::Mutex> lock(region->grow_lock);
  if (region->strict) return sys::protect(region->base + offset, bytes, protection);
  size_t usable = region->usable_pages.load() << state.page_shift, end = offset + bytes;
  if (end > usable) {
    const size_t to = std::min(round_up(end, kUsableStep), region_size(region));
    if (int rc = sys::protect(region->base + usable, to - usable, PROT_READ | PROT_WRITE); rc < 0)
      return rc;
    region->usable_pages.store(to >> state.page_shift);
  }
  return 0;
}

void pager_say_limited(size_t bytes) { say_limited(pager_state(), bytes); }

void pager_say_refused() {
  auto& state = pager_state();
  const uint64_t bytes = g_refused_bytes.exchange(0, std::memory_order_relaxed);
  if (bytes == 0) return;
  if (g_refused_by_tables.load(std::memory_order_relaxed)) {
    LUNAR_LOG_LIMITED(
        log_warning, 1,
        "allocation refused: the page tables that %s more may take do not fit into the DRAM budget "
        "of %s (%s are promised to what this process has); give a larger --dram",
        format_size(bytes).text,
        format_size(static_cast<uint64_t>(state.account.cap_pages()) << state.page_shift).text,
        format_size(static_cast<uint64_t>(promise_pages()) << state.page_shift).text);
    return;
  }
  const SpaceBound bound = space_bound(state, bytes);
  const int64_t cap = state.account.lun_cap(), promised = cap - state.account.lun_free();
  char reason[256];
  if (bound == SpaceBound::kPart) {
    const SlotAllocator& lun = state.luns.slots[state.luns.own];
    format_to(
        reason, sizeof reason,
        "of the LUN %.100s this process may use %s (the first one half, each child an eighth)",
        state.options.lun, format_size(lun.capacity_slots() << state.page_shift).text);
  } else if (bound == SpaceBound::kDevice) {
    format_to(reason, sizeof reason, "the LUN %.100s has no more (%s are promised to this tree)",
              state.options.lun, format_size(static_cast<uint64_t>(promised)).text);
  } else {
    format_to(reason, sizeof reason, "%s of %s are promised to this tree",
              format_size(static_cast<uint64_t>(promised)).text,
              format_size(static_cast<uint64_t>(cap)).text);
  }
  LUNAR_LOG_LIMITED(log_warning, 1, "allocation refused: no LUN space for %s more: %s; %s",
                    format_size(bytes).text, reason, space_remedy(state, bound));
}

namespace {

void note_refused(size_t bytes, bool by_tables) {
  g_refused_by_tables.store(by_tables, std::memory_order_relaxed);
  g_refused_bytes.store(bytes, std::memory_order_relaxed);
}

// The charges of a commit in an active process, which are taken back unless it is kept.
class ChargedCommit {
 public:
  ChargedCommit(PagerState& state, Region& region, uint64_t first, uint64_t end)
      : state_(state), region_(region), first_(first), end_(end) {}
  ~ChargedCommit() {
    if (kept_) return;
    if (has_space_) region_.committed_pages.fetch_sub(end_ - first_);
    if (has_tables_) promise_uncommit(state_, region_, first_, end_);
    if (has_space_) space_uncharge(state_, end_ - first_);
  }
  ChargedCommit(const ChargedCommit&) = delete;
  ChargedCommit& operator=(const ChargedCommit&) = delete;

  // 0 or -ENOMEM. A refusal is noted for pager_say_refused, unless it was logged.
  int charge() {
    const uint64_t pages = end_ - first_;
    const size_t bytes = pages << state_.page_shift;
    if (promise_commit(state_, region_, first_, end_) < 0) {
      note_refused(bytes, true);
      return -ENOMEM;
    }
    has_tables_ = true;
    g_refused_by_tables.store(false, std::memory_order_relaxed);
    if (const int rc = space_charge(state_, pages, true); rc < 0) {
      if (rc != -EFBIG) note_refused(bytes, false);  // -EFBIG has been logged
      return -ENOMEM;
    }
    has_space_ = true;
    region_.committed_pages.fetch_add(pages);
    if (checked_forks_charge(state_, pages)) return 0;
    note_refused(bytes, false);
    return -ENOMEM;
  }
  void keep() { kept_ = true; }

 private:
  PagerState& state_;
  Region& region_;
  uint64_t first_, end_;
  bool has_tables_ = false, has_space_ = false, kept_ = false;
};

// 0; -ENOMEM (logged); -EAGAIN: the process must become active first.
int commit_plain(PagerState& state, Region* region, size_t offset, size_t bytes, int protection) {
  const uint64_t first = offset >> state.page_shift, pages = bytes >> state.page_shift;
  if (plain_commit(state, *region, first, first + pages) < 0) return -EAGAIN;
  if (make_usable(state, region, offset, bytes, protection) < 0) {
    plain_uncommit(state, *region, first, first + pages);
    pager_say_limited(bytes);
    return -ENOMEM;
  }
  region->committed_pages.fetch_add(pages);
  return 0;
}

}  // namespace

int region_commit(Region* region, size_t offset, size_t bytes, int protection) {
  auto& state = pager_state();
  if ((offset | bytes) % state.page_size != 0 || offset + bytes > region_size(region))
    return -EINVAL;
  const uint64_t first = offset >> state.page_shift, end = (offset + bytes) >> state.page_shift;
  table_note_committed(*region, end);
  bool passed = false;
  if (!pager_active()) {
    CommitLock lock(state);
    passed = lock.passed();
    const int rc = lock.plain() ? commit_plain(state, region, offset, bytes, protection) : -EAGAIN;
    if (rc != -EAGAIN) return rc;
  }
  ErrorText why;
  if (!passed && pager_activate(&why) < 0) return -ENOMEM;
  if (forked_past_us(state) != 0) {
    pager_say_limited(bytes);
    return -ENOMEM;
  }
  ChargedCommit commit(state, *region, first, end);
  if (const int rc = commit.charge(); rc < 0) return rc;
  if (make_usable(state, region, offset, bytes, protection) < 0) {
    pager_say_limited(bytes);
    return -ENOMEM;
  }
  commit.keep();
  if (g_refused_bytes.load(std::memory_order_relaxed) != 0)
    g_refused_bytes.store(0, std::memory_order_relaxed);
  return 0;
}

int region_charge(Region* region, size_t offset, size_t bytes) {
  return region_commit(region, offset, bytes, kChargeOnly);
}

void region_forget(Region* region, size_t offset, size_t bytes) {
  auto& state = pager_state();
  uint64_t pages = bytes >> state.page_shift, first = offset >> state.page_shift;
  region->committed_pages.fetch_sub(pages);
  CommitLock lock(state);  // activation cannot run meanwhile
  if (lock.plain()) return plain_uncommit(state, *region, first, first + pages);
  promise_uncommit(state, *region, first, first + pages);
  space_uncharge(state, pages);
}

int region_commit_on_touch(Region* region, size_t offset, size_t bytes) {
  auto& state = pager_state();
  const uint64_t first = offset >> state.page_shift, end = (offset + bytes) >> state.page_shift;
  table_note_committed(*region, end);
  if (!pager_active()) {
    CommitLock lock(state);
    if (lock.passed() || (lock.plain() && plain_commit(state, *region, first, end) == 0)) return 0;
  }
  ErrorText why;
  if (const int rc = pager_activate(&why); rc < 0) return rc;
  if (forked_past_us(state) == 0) return 0;
  pager_say_limited(bytes);
  return -ENOMEM;
}

void region_uncommit_on_touch(Region* region, size_t offset, size_t bytes) {
  auto& state = pager_state();
  if (pager_active()) return;  // charged page by page
  CommitLock lock(state);
  if (lock.plain())
    plain_uncommit(state, *region, offset >> state.page_shift,
                   (offset + bytes) >> state.page_shift);
}

// While the process is not active: maps the place anew, so that content, locks, guard pages and
// advice end with the old map (not the list of wipe.h). -EAGAIN: it is active, or will be.
static int map_plain_anew(PagerState& state, const Region& region, size_t offset, size_t bytes) {
  if (pager_active()) return -EAGAIN;
  CommitLock lock(state);
  if (!lock.plain()) return -EAGAIN;
  void* at = nullptr;
  return sys::map(region.base + offset, bytes, PROT_NONE,
                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0, &at);
}

int region_clear(Region* region, size_t offset, size_t bytes) {
  auto& state = pager_state();
  char* const address = region->base + offset;
  if (wipe_any())
    if (const int rc = pager_wipe_on_fork(address, bytes, false); rc < 0) return rc;
  // One system call instead of two: programs end maps by the thousand.
  if (map_plain_anew(state, *region, offset, bytes) == 0)
    return pager_advise(address, bytes, LUNAR_NORMAL);
  // Before the discard: the next owner of the place would find what another thread writes after it.
  (void)sys::protect(address, bytes, PROT_NONE);
  return pager_discard(address, bytes, Discard::kMapping);
}

void region_decommit(Region* region, size_t offset, size_t bytes) {
  (void)pager_discard(region->base + offset, bytes, Discard::kMapping);
  region_forget(region, offset, bytes);
}

int region_try_decommit(Region* region, size_t offset, size_t bytes) {
  if (pager_try_discard(region->base + offset, bytes) == -EAGAIN) return -EAGAIN;
  region_forget(region, offset, bytes);
  return 0;
}

char* region_boundary(char* address, char* end) {
  auto& state = pager_state();
  for (const Region& region : state.regions) {
    char *base = region.base, *limit = base + (region.pages << state.page_shift);
    if (base > address && base < end) end = base;
    if (limit > address && limit < end) end = limit;
  }
  bool foreign = false;
  return state.foreign.run(address, end, &foreign);
}

}  // namespace lunar
