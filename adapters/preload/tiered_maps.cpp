// SPDX-License-Identifier: Apache-2.0
// See tiered_maps.h. A change goes through the range piece by piece: a piece is the part of one
// interval, or of one gap. The table changes only after the pager has succeeded, so that everything
// is consistent after a failure (-ENOMEM).
#include "tiered_maps.h"

#include <errno.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#include "base/units.h"
#include "sys/kernel_call.h"
#include "sys/log.h"
#include "sys/mem.h"
#include "sys/memory_constants.h"
#include "sys/thread.h"

namespace lunar::preload {
namespace {

constexpr unsigned kAreasMax = 64;
constexpr size_t kAreaBytesMin = 16 * kGiB;
constexpr size_t kMapBytesMax = 16 * kTiB;  // larger reservations are left to the kernel
constexpr size_t kHugeBytes = 2 * kMiB, kAlignedBytesMin = 32 * kMiB;
constexpr size_t kGuardBytesMax = 64 * kKiB, kStackBytesMax = 16 * kMiB;
constexpr int kReadWrite = PROT_READ | PROT_WRITE;

constinit Area g_areas[kAreasMax];
constinit std::atomic<unsigned> g_area_count{0};
constinit MappingTable g_table;
constinit sys::Mutex g_lock;
constinit thread_local bool t_forking = false;

bool has_address_space(size_t bytes) {
  void* at = nullptr;
  if (sys::map(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0, &at) <
      0)
    return false;
  return sys::unmap(at, bytes) == 0;
}

// Creates a region for a map of `bytes` and later maps. Where address space is limited (ulimit -v),
// the region takes at most half of what is left, because the program maps other things, but at
// least `bytes`.
int create_region_for(size_t bytes, unsigned flags, Region** out) {
  const size_t least = round_up(bytes, kHugeBytes);
  size_t wanted = round_up(2 * pager_lun_bytes(), kHugeBytes);
  if (wanted < kAreaBytesMin) wanted = kAreaBytesMin;
  if (wanted < least) wanted = least;
  int rc = region_create(wanted, flags, out);
  while (rc == -ENOMEM && wanted > least) {
    wanted = round_up(wanted / 2, kHugeBytes);
    if (wanted < least) wanted = least;
    if (wanted == least || has_address_space(2 * wanted)) rc = region_create(wanted, flags, out);
  }
  return rc;
}

int add_area(size_t bytes, unsigned flags, Area** out) {
  unsigned count = g_area_count.load(std::memory_order_relaxed);
  if (count == kAreasMax || bytes > kMapBytesMax) return -ENOTSUP;
  Region* region = nullptr;
  if (create_region_for(bytes, flags, &region) < 0) {
    // The kernel must not serve it: that would be memory above the budget.
    pager_say_limited(bytes);
    return -ENOMEM;
  }
  Area& area = g_areas[count];
  area.region = region;
  area.base = region_base(region);
  area.limit = area.base + region_size(region);
  area.flags = flags;
  g_area_count.store(count + 1, std::memory_order_release);
  *out = &area;
  return 0;
}

// The lowest free place, or nullptr. Large maps begin at a huge page's boundary, as in the kernel;
// for smaller maps that would leave too many holes.
char* place_in(const Area& area, size_t bytes) {
  char* place = nullptr;
  if (bytes >= kAlignedBytesMin &&
      g_table.find_free(area.base, area.limit, bytes + kHugeBytes - sys::page_bytes(), &place))
    return reinterpret_cast<char*>(round_up(reinterpret_cast<uintptr_t>(place), kHugeBytes));
  return g_table.find_free(area.base, area.limit, bytes, &place) ? place : nullptr;
}

Mapping tiered(int prot, bool committed) {
  return {nullptr, nullptr, prot, MappingKind::kTiered, committed};
}
Mapping foreign(int prot) { return {nullptr, nullptr, prot, MappingKind::kForeign, false}; }

// Takes back the charge of a committed piece.
void uncharge(const Area& area, const char* begin, size_t bytes) {
  if ((area.flags & kRegionChargeOnTouch) == 0)
    region_forget(area.region, area.offset(begin), bytes);
  else
    region_uncommit_on_touch(area.region, area.offset(begin), bytes);
}

// Charges a piece that is not committed yet, and does nothing else.
int charge(Area* area, char* begin, size_t bytes) {
  if ((area->flags & kRegionChargeOnTouch) != 0)
    return region_commit_on_touch(area->region, area->offset(begin), bytes);
  if (region_charge(area->region, area->offset(begin), bytes) == 0) return 0;
  pager_say_refused();
  return -ENOMEM;
}

// Unmaps a foreign piece: the place is free.
int end_foreign(Area* area, char* begin, char* end) {
  const int rc =
      region_reclaim(area->region, area->offset(begin), static_cast<size_t>(end - begin), false);
  if (rc == 0) g_table.erase(begin, end);
  return rc;
}

// MAP_FIXED over a foreign piece. Charges first, so that a refusal leaves the piece intact.
int replace_foreign(Area* area, char* begin, char* end, int prot) {
  const auto bytes = static_cast<size_t>(end - begin);
  int rc = prot == PROT_NONE ? 0 : charge(area, begin, bytes);
  if (rc < 0) return -ENOMEM;
  if ((rc = end_foreign(area, begin, end)) == 0 && prot != PROT_NONE)
    rc = sys::protect(begin, bytes, prot);
  if (rc < 0 && prot != PROT_NONE) uncharge(*area, begin, bytes);
  if (rc == 0) g_table.set(begin, end, tiered(prot, prot != PROT_NONE));
  return rc;
}

// MAP_FIXED of anonymous private memory over one piece.
int fix_piece(Area* area, char* begin, char* end, const Mapping* old, int prot) {
  size_t bytes = static_cast<size_t>(end - begin);
  if (old != nullptr && old->kind == MappingKind::kForeign)
    return replace_foreign(area, begin, end, prot);
  bool committed = old != nullptr && old->committed;
  if (old != nullptr && (!committed || prot == PROT_NONE)) {
    if (int rc = give_back(area, begin, end); rc < 0) return rc;
    g_table.set(begin, end, tiered(PROT_NONE, false));
    committed = false;
  }
  if (prot == PROT_NONE) {
    g_table.set(begin, end, tiered(prot, false));
    return 0;
  }
  if (!committed) return commit_piece(area, begin, end, prot);
  // The old content is lost. Meanwhile no thread may write what the new map's protection forbids.
  int rc = (old->prot & ~prot) == 0 ? 0 : sys::protect(begin, bytes, old->prot & prot);
  if (rc == 0) rc = pager_discard(begin, bytes, Discard::kMapping);
  // Done in any case: a raw mprotect may have changed the protection unseen by the table.
  if (rc == 0) rc = sys::protect(begin, bytes, prot);
  if (rc == 0) g_table.set(begin, end, tiered(prot, true));
  return rc;
}

// MAP_FIXED of anything else: the range becomes foreign.
int fix_foreign(Area* area, char* address, size_t bytes, const OtherMap& map) {
  // A map that cannot be made must leave the contents intact: it is tried elsewhere first.
  void* trial = nullptr;
  int rc = sys::map(nullptr, bytes, map.prot, map.flags & ~MAP_FIXED & ~MAP_POPULATE & ~MAP_LOCKED,
                    map.fd, map.offset, &trial);
  if (rc < 0) return rc;
  (void)sys::unmap(trial, bytes);
  rc = region_map_over(area->region, area->offset(address), bytes, map);
  if (rc < 0) return rc;
  char* end = address + bytes;
  const Mapping* piece = nullptr;
  for (char *at = address, *stop; at < end; at = stop) {
    stop = g_table.piece(at, end, &piece);
    if (piece != nullptr && piece->kind == MappingKind::kTiered && piece->committed)
      uncharge(*area, at, static_cast<size_t>(stop - at));
  }
  g_table.set(address, end, foreign(map.prot));
  return 0;
}

// Makes a piece foreign that becomes executable (generated code), because the kernel owns all code.
int make_foreign(Area* area, char* begin, char* end, const Mapping& old) {
  size_t done = 0;
  int rc = region_hand_over(area->region, area->offset(begin), static_cast<size_t>(end - begin),
                            old.committed, &done);
  if (old.committed && done != 0) uncharge(*area, begin, done);
  Mapping now = foreign(old.prot);
  if (done != 0) g_table.set(begin, begin + done, now);
  return rc;
}

// A range of `guard_bytes` that ends at `guard_end` has become a guard. If a stack lies above it,
// the stack's top page is filled ahead, because the stack is used from its top.
void fill_stack_above(const Area& area, char* guard_end, size_t guard_bytes) {
  if (guard_bytes > kGuardBytesMax || guard_end == area.limit) return;
  const Mapping* above = nullptr;
  char* top = g_table.piece(guard_end, area.limit, &above);
  if (above != nullptr && above->prot == kReadWrite &&
      static_cast<size_t>(top - guard_end) <= kStackBytesMax)
    pager_fill_ahead(top - sys::page_bytes());
}

// The end of the tiered pieces from `begin` on without a gap, at most `end`.
char* tiered_until(char* begin, char* end) {
  const Mapping* piece = nullptr;
  while (begin < end) {
    char* stop = g_table.piece(begin, end, &piece);
    if (piece == nullptr || piece->kind != MappingKind::kTiered) break;
    begin = stop;
  }
  return begin;
}

bool is_foreign(char* begin, char* end) {
  const Mapping* piece = nullptr;
  return g_table.piece(begin, end, &piece) == end && piece != nullptr &&
         piece->kind == MappingKind::kForeign;
}

}  // namespace

// ---- lock ---------------------------------------------------------------------------------------

MapsLock::MapsLock() {
  sys::block_signals();
  if (!t_forking) g_lock.lock();
}

MapsLock::~MapsLock() {
  if (!t_forking) g_lock.unlock();
  sys::unblock_signals();
}

void maps_lock_for_fork() {
  if (pager_forked_past_us()) return;
  g_lock.lock();
  t_forking = true;
}

void maps_unlock_after_fork() {
  if (!t_forking) return;
  t_forking = false;
  g_lock.unlock();
}

// ---- areas --------------------------------------------------------------------------------------

Area* area_of(const void* address) {
  unsigned count = g_area_count.load(std::memory_order_acquire);
  for (unsigned i = 0; i < count; ++i)
    if (g_areas[i].holds(address)) return &g_areas[i];
  return nullptr;
}

bool areas_overlap(const void* begin, size_t bytes) {
  auto low = reinterpret_cast<uintptr_t>(begin);
  unsigned count = g_area_count.load(std::memory_order_acquire);
  for (unsigned i = 0; i < count; ++i) {
    auto base = reinterpret_cast<uintptr_t>(g_areas[i].base),
         limit = reinterpret_cast<uintptr_t>(g_areas[i].limit);
    if (low < limit && (low >= base || bytes > base - low)) return true;
  }
  return false;
}

char* area_boundary(char* address, char* end) {
  unsigned count = g_area_count.load(std::memory_order_acquire);
  for (unsigned i = 0; i < count; ++i) {
    if (g_areas[i].base > address && g_areas[i].base < end) end = g_areas[i].base;
    if (g_areas[i].limit > address && g_areas[i].limit < end) end = g_areas[i].limit;
  }
  return end;
}

MappingTable& maps_table() { return g_table; }

int claim_place(char* hint, size_t bytes, unsigned region_flags, Area** area, char** place) {
  Area* wanted = hint == nullptr ? nullptr : area_of(hint);
  if (wanted != nullptr && wanted->flags == region_flags &&
      bytes <= static_cast<size_t>(wanted->limit - hint) && g_table.is_free(hint, hint + bytes)) {
    *area = wanted;
    *place = hint;
    return 0;
  }
  unsigned count = g_area_count.load(std::memory_order_relaxed);
  for (unsigned i = 0; i < count; ++i) {
    if (g_areas[i].flags != region_flags) continue;
    if ((*place = place_in(g_areas[i], bytes)) != nullptr) {
      *area = &g_areas[i];
      return 0;
    }
  }
  int rc = add_area(bytes, region_flags, area);
  if (rc < 0) return rc;
  *place = place_in(**area, bytes);
  return *place == nullptr ? -ENOTSUP : 0;
}

// Clears reservations as well: a raw mprotect may have made them accessible.
int give_back(Area* area, char* begin, char* end) {
  if (int rc = region_clear(area->region, area->offset(begin), static_cast<size_t>(end - begin));
      rc < 0)
    return rc;
  const Mapping* piece = nullptr;
  for (char *at = begin, *stop; at < end; at = stop) {
    stop = g_table.piece(at, end, &piece);
    const size_t bytes = static_cast<size_t>(stop - at);
    if (piece->committed) uncharge(*area, at, bytes);
  }
  return 0;
}

// pre: the piece is free or not committed.
int commit_piece(Area* area, char* begin, char* end, int prot) {
  size_t bytes = static_cast<size_t>(end - begin);
  int rc;
  if ((area->flags & kRegionChargeOnTouch) != 0) {
    if (region_commit_on_touch(area->region, area->offset(begin), bytes) < 0) return -ENOMEM;
    if ((rc = sys::protect(begin, bytes, prot)) < 0) {
      region_uncommit_on_touch(area->region, area->offset(begin), bytes);
      if (rc == -ENOMEM) pager_say_limited(bytes);
    }
  } else {
    rc = region_commit(area->region, area->offset(begin), bytes, prot) < 0 ? -ENOMEM : 0;
    if (rc < 0) pager_say_refused();
  }
  if (rc < 0) return rc;
  g_table.set(begin, end, tiered(prot, true));
  return 0;
}

// ---- the calls ----------------------------------------------------------------------------------

bool maps_are_gone(size_t bytes) {
  if (!pager_forked_past_us()) return false;
  pager_say_limited(bytes);
  return true;
}

int maps_create(char* hint, size_t bytes, int prot, int flags, void** out) {
  if (maps_are_gone(bytes)) return -ENOMEM;
  MapsLock lock;
  unsigned region_flags = (flags & MAP_NORESERVE) != 0 ? kRegionChargeOnTouch : kRegionStrict;
  Area* area = nullptr;
  char* place = nullptr;
  if (g_table.reserve() < 0) return -ENOMEM;
  int rc = claim_place(hint, bytes, region_flags, &area, &place);
  if (rc < 0) return rc;
  if (prot == PROT_NONE) {
    g_table.set(place, place + bytes, tiered(prot, false));
  } else if ((rc = commit_piece(area, place, place + bytes, prot)) < 0) {
    return rc;
  }
  *out = place;
  return 0;
}

int maps_fixed(char* address, size_t bytes, OtherMap map) {
  if (maps_are_gone(bytes)) return -ENOMEM;
  MapsLock lock;
  Area* area = area_of(address);
  char* end = address + bytes;
  if ((map.flags & MAP_FIXED_NOREPLACE) != 0) {
    if (!g_table.is_free(address, end)) return -EEXIST;
    map.flags = (map.flags & ~MAP_FIXED_NOREPLACE) | MAP_FIXED;
  }
  constexpr int kOther = MAP_SHARED | MAP_HUGETLB | MAP_GROWSDOWN | MAP_STACK | MAP_LOCKED;
  bool ours =
      (map.flags & MAP_ANONYMOUS) != 0 && (map.flags & kOther) == 0 && (map.prot & PROT_EXEC) == 0;
  if (!ours) return g_table.reserve() < 0 ? -ENOMEM : fix_foreign(area, address, bytes, map);
  for (const Mapping* piece; address < end;) {
    if (g_table.reserve() < 0) return -ENOMEM;
    char* stop = g_table.piece(address, end, &piece);
    Mapping old = piece != nullptr ? *piece : Mapping{};
    int rc = fix_piece(area, address, stop, piece != nullptr ? &old : nullptr, map.prot);
    if (rc < 0) return rc;
    address = stop;
  }
  return 0;
}

int unmap_pieces(Area* area, char* begin, char* end) {
  for (const Mapping* piece; begin < end;) {
    if (g_table.reserve() < 0) return -ENOMEM;
    char* stop = g_table.piece(begin, end, &piece);
    if (piece != nullptr && piece->kind == MappingKind::kTiered) {
      stop = tiered_until(stop, end);
      if (int rc = give_back(area, begin, stop); rc < 0) return rc;
      g_table.erase(begin, stop);
    } else if (piece != nullptr && piece->kind == MappingKind::kForeign) {
      if (int rc = end_foreign(area, begin, stop); rc < 0) return rc;
    }
    begin = stop;
  }
  return 0;
}

int foreign_left(Area* area, char* begin, char* end) {
  if (g_table.reserve() < 0) return -ENOMEM;
  const int rc =
      region_reclaim(area->region, area->offset(begin), static_cast<size_t>(end - begin), true);
  for (char* stop; begin < end; begin = stop) {
    stop = region_boundary(begin, end);
    if (region_find(begin) == nullptr) continue;
    if (g_table.reserve() < 0) return -ENOMEM;
    g_table.erase(begin, stop);
  }
  return rc;
}

void maps_moved_away(char* address, size_t bytes) {
  MapsLock lock;
  if (Area* area = area_of(address); area != nullptr)
    (void)foreign_left(area, address, address + bytes);
}

int maps_detach(const char* address) {
  MapsLock lock;
  if (const long rc = sys::kernel_call(SYS_shmdt, {reinterpret_cast<long>(address), 0, 0, 0, 0, 0});
      rc < 0)
    return static_cast<int>(rc);
  Area* area = area_of(address);
  const Mapping* piece = nullptr;
  char* begin = const_cast<char*>(address);
  char* end = g_table.piece(begin, area->limit, &piece);
  // The rest of the piece belongs to another segment. The detach has succeeded even if the place
  // cannot be freed.
  if (piece != nullptr && piece->kind == MappingKind::kForeign)
    (void)foreign_left(area, begin, end);
  return 0;
}

int maps_unmap(char* address, size_t bytes) {
  if (pager_forked_past_us()) return 0;  // this process has none of the maps
  MapsLock lock;
  return unmap_pieces(area_of(address), address, address + bytes);
}

int maps_leave(char* address, size_t bytes, bool replace) {
  if (maps_are_gone(bytes)) return -ENOMEM;
  MapsLock lock;
  char* end = address + bytes;
  if (is_foreign(address, end)) return 0;
  if (!replace && !g_table.is_free(address, end)) return -EINVAL;
  if (g_table.reserve() < 0) return -ENOMEM;
  constexpr int kPlaceholder = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;
  const int rc = fix_foreign(area_of(address), address, bytes, {PROT_NONE, kPlaceholder, -1, 0});
  return rc < 0 ? rc : 1;
}

int maps_protect(char* address, size_t bytes, int prot) {
  if (maps_are_gone(bytes)) return -ENOMEM;
  MapsLock lock;
  Area* area = area_of(address);
  char* end = address + bytes;
  for (const Mapping* piece; address < end;) {
    if (g_table.reserve() < 0) return -ENOMEM;
    char* stop = g_table.piece(address, end, &piece);
    if (piece == nullptr) return -ENOMEM;  // the pieces before it are changed, as by the kernel
    Mapping now = *piece;
    int rc = 0;
    size_t part = static_cast<size_t>(stop - address);
    if (now.kind == MappingKind::kTiered && (prot & PROT_EXEC) != 0) {
      rc = make_foreign(area, address, stop, now);
      now.kind = MappingKind::kForeign;
      now.committed = false;
    } else if (now.kind == MappingKind::kTiered && !now.committed) {
      if (prot != PROT_NONE) rc = commit_piece(area, address, stop, prot);
      now.committed = prot != PROT_NONE;
    }
    now.prot = prot;
    if (rc == 0) rc = sys::protect(address, part, prot);
    if (rc == 0) g_table.set(address, stop, now);
    if (rc < 0) return rc;
    address = stop;
  }
  if (prot == PROT_NONE) fill_stack_above(*area, end, bytes);
  return 0;
}

}  // namespace lunar::preload
