// SPDX-License-Identifier: Apache-2.0
// mremap on tiered maps: shrinks, grows in place, or else moves. A move takes evicted pages along
// without I/O, and is safe while other threads run (pager_move).
//
// It differs from the kernel's on purpose: neighbouring maps that are alike are resized as one, and
// MREMAP_FIXED to a place outside the tier fails (-ENOMEM), because plain memory there would escape
// the budget. Plain memory that grows to the size of a tiered map is copied into the tier
// (maps_take_in).
// Threading: as tiered_maps.h; the lock is held across a move.
#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#include "base/units.h"
#include "sys/mem.h"
#include "sys/memory_constants.h"
#include "tiered_maps.h"

namespace lunar::preload {
namespace {

struct Request {
  Area* area;
  char* old_begin;
  size_t old_bytes;
  size_t new_bytes;
  int flags;
  char* wanted;  // MREMAP_FIXED
  Mapping old;   // of the whole old range
  bool locked;   // the end of the old range is locked, so added memory will be
  char* old_end() const { return old_begin + old_bytes; }
};

int check(const Request& request, size_t page) {
  constexpr int kKnown = MREMAP_MAYMOVE | MREMAP_FIXED | MREMAP_DONTUNMAP;
  if ((request.flags & ~kKnown) != 0 || request.new_bytes == 0 || request.old_bytes == 0)
    return -EINVAL;
  if ((request.flags & (MREMAP_FIXED | MREMAP_DONTUNMAP)) != 0 &&
      (request.flags & MREMAP_MAYMOVE) == 0)
    return -EINVAL;
  if ((request.flags & MREMAP_DONTUNMAP) != 0 && request.old_bytes != request.new_bytes)
    return -EINVAL;
  if (reinterpret_cast<uintptr_t>(request.old_begin) % page != 0) return -EINVAL;
  if ((request.flags & MREMAP_FIXED) == 0) return 0;
  if (reinterpret_cast<uintptr_t>(request.wanted) % page != 0) return -EINVAL;
  bool apart = request.wanted + request.new_bytes <= request.old_begin ||
               request.wanted >= request.old_end();
  return apart ? 0 : -EINVAL;
}

// Makes [begin, begin+bytes) an empty map like `like`. pre: the range is free.
int make_like(Area* area, char* begin, size_t bytes, const Mapping& like) {
  int rc = like.committed ? commit_piece(area, begin, begin + bytes, like.prot) : 0;
  if (rc < 0)
    maps_table().erase(begin, begin + bytes);
  else
    maps_table().set(begin, begin + bytes, like);
  return rc;
}

// Locks memory that mremap adds to a locked map. -EAGAIN: too much is locked.
int lock_added(Area* area, char* begin, size_t bytes, const Request& request) {
  if (!request.locked || !request.old.committed || bytes == 0 || pager_pin(begin, bytes) == 0)
    return 0;
  (void)unmap_pieces(area, begin, begin + bytes);
  return -EAGAIN;
}

// Finds the area for MREMAP_FIXED, and unmaps foreign pieces there, as the kernel would. -ENOMEM:
// the place is not within one area.
int find_fixed(const Request& request, Area** area) {
  *area = area_of(request.wanted);
  if (*area == nullptr || request.new_bytes > static_cast<size_t>((*area)->limit - request.wanted))
    return -ENOMEM;
  const Mapping* piece = nullptr;
  for (char *at = request.wanted, *end = at + request.new_bytes, *stop; at < end; at = stop) {
    stop = maps_table().piece(at, end, &piece);
    if (piece == nullptr || piece->kind != MappingKind::kForeign) continue;
    if (unmap_pieces(*area, at, stop) < 0) return -ENOMEM;
  }
  return 0;
}

// Commits all of [begin, end). Pages already committed are kept, or cleared if `emptied`; the
// others get `prot`.
int commit_rest(Area* area, char* begin, char* end, int prot, bool emptied) {
  const Mapping* piece = nullptr;
  for (char* stop; begin < end; begin = stop) {
    if (maps_table().reserve() < 0) return -ENOMEM;
    stop = maps_table().piece(begin, end, &piece);
    const bool committed = piece != nullptr && piece->committed;
    int rc = committed ? 0 : commit_piece(area, begin, stop, prot);
    if (committed && emptied)
      rc = pager_discard(begin, static_cast<size_t>(stop - begin), Discard::kMapping);
    if (rc < 0) return rc;
  }
  return 0;
}

// Moves the contents to [place, place + keep). A thread that uses the map there sees it change page
// by page. The rest of a longer map is empty.
int replace(const Request& request, Area* area, size_t keep) {
  char *place = request.wanted, *end = place + request.new_bytes;
  if (!request.old.committed) {
    int rc = unmap_pieces(area, place, end);
    if (rc == 0) maps_table().set(place, end, request.old);
    return rc;
  }
  int rc = commit_rest(area, place, place + keep, PROT_NONE, false);
  if (const size_t more = request.new_bytes - keep; rc == 0 && more != 0) {
    const Mapping& like = request.old;
    rc = commit_rest(area, place + keep, end, like.prot, true);
    if (rc == 0) rc = sys::protect(place + keep, more, like.prot);
    if (rc == 0) rc = lock_added(area, place + keep, more, request);
  }
  if (rc == 0)
    rc = pager_move(place, request.old_begin, keep,
                    {request.old.prot, (request.flags & MREMAP_DONTUNMAP) == 0, true});
  if (rc == 0) maps_table().set(place, end, request.old);
  return rc;
}

int fill_new(const Request& request, Area* area, char* place, size_t keep) {
  int rc = make_like(area, place, request.new_bytes, request.old);
  if (rc == 0 && (rc = lock_added(area, place + keep, request.new_bytes - keep, request)) < 0)
    (void)unmap_pieces(area, place, place + keep);
  if (rc < 0 || !request.old.committed) return rc;
  rc = pager_move(place, request.old_begin, keep,
                  {request.old.prot, (request.flags & MREMAP_DONTUNMAP) == 0, false});
  if (rc < 0) (void)unmap_pieces(area, place, place + request.new_bytes);
  return rc;
}

int move_map(const Request& request, void** out) {
  const bool fixed = (request.flags & MREMAP_FIXED) != 0;
  Area* area = nullptr;
  char* place = request.wanted;
  int rc = fixed ? find_fixed(request, &area)
                 : claim_place(nullptr, request.new_bytes, request.area->flags, &area, &place);
  if (rc < 0) return -ENOMEM;
  const size_t keep = request.old_bytes < request.new_bytes ? request.old_bytes : request.new_bytes;
  rc = fixed ? replace(request, area, keep) : fill_new(request, area, place, keep);
  if (rc < 0) {
    if (fixed) (void)unmap_pieces(area, place, place + request.new_bytes);  // as in the kernel
    return rc;
  }
  if ((request.flags & MREMAP_DONTUNMAP) == 0)
    rc = unmap_pieces(request.area, request.old_begin, request.old_end());
  *out = place;
  return rc;
}

// A foreign map (a file, shared memory) inside an area: the kernel moves it, and its old place is
// free.
int remap_foreign(const Request& request, void** out) {
  if ((request.flags & (MREMAP_FIXED | MREMAP_DONTUNMAP)) != 0) return -ENOMEM;
  int rc = sys::remap(request.old_begin, request.old_bytes, request.new_bytes, request.flags,
                      nullptr, out);
  if (rc < 0) return rc;
  size_t kept = *out == request.old_begin ? request.new_bytes : 0;
  if (kept >= request.old_bytes) return 0;
  return foreign_left(request.area, request.old_begin + kept, request.old_end());
}

// Copies the pages of [from, from + bytes) that are present; the others are zeros on both sides.
int copy_present(char* to, char* from, size_t bytes) {
  constexpr size_t kAtOnce = 512;
  const size_t page = sys::page_bytes();
  uint8_t present[kAtOnce];
  for (size_t at = 0, n = 0; at < bytes; at += n * page) {
    n = (bytes - at) / page < kAtOnce ? (bytes - at) / page : kAtOnce;
    const bool known = sys::present_pages(from + at, n, present) == 0;
    for (size_t first = 0, end = 0; first < n; first = end) {
      for (end = first + 1; end < n && (!known || present[end] == present[first]);) ++end;
      if (known && present[first] == 0) continue;
      const size_t part = at + first * page;
      // peek fails where a plain read would raise SIGSEGV
      const int rc = sys::peek(from + part, to + part, (end - first) * page);
      if (rc == -EFAULT) return rc;
      if (rc < 0) memcpy(to + part, from + part, (end - first) * page);  // a filter refuses peek
    }
  }
  return 0;
}

}  // namespace

int maps_take_in(char* old_address, size_t old_bytes, size_t new_bytes, int prot, void** out) {
  constexpr int kReadWrite = PROT_READ | PROT_WRITE;
  int rc = maps_create(nullptr, new_bytes, kReadWrite, MAP_PRIVATE | MAP_ANONYMOUS, out);
  if (rc < 0) return rc;
  auto* place = static_cast<char*>(*out);
  if ((prot & PROT_READ) == 0) rc = sys::protect(old_address, old_bytes, prot | PROT_READ);
  if (rc == 0) rc = copy_present(place, old_address, old_bytes);
  if (rc == 0 && prot != kReadWrite) rc = maps_protect(place, new_bytes, prot);
  if (rc == 0) rc = sys::unmap(old_address, old_bytes);
  if (rc == 0) return 0;
  if ((prot & PROT_READ) == 0) (void)sys::protect(old_address, old_bytes, prot);
  (void)maps_unmap(place, new_bytes);
  return rc;
}

int maps_remap(char* old_address, size_t old_bytes, size_t new_bytes, int flags, char* wanted,
               void** out) {
  size_t page = sys::page_bytes();
  if (old_bytes > PTRDIFF_MAX - page || new_bytes > PTRDIFF_MAX - page) return -ENOMEM;
  if (maps_are_gone(new_bytes)) return -ENOMEM;
  MapsLock lock;
  Request request{area_of(old_address),
                  old_address,
                  round_up(old_bytes, page),
                  round_up(new_bytes, page),
                  flags,
                  wanted,
                  {},
                  false};
  int rc = check(request, page);
  if (rc < 0) return rc;
  MappingTable& table = maps_table();
  if (table.reserve() < 0) return -ENOMEM;
  if (request.old_bytes > static_cast<size_t>(request.area->limit - old_address)) return -EFAULT;
  const Mapping* piece = nullptr;
  char* stop = table.piece(old_address, request.old_end(), &piece);
  if (piece == nullptr) return -EFAULT;
  *out = old_address;
  if ((flags & (MREMAP_FIXED | MREMAP_DONTUNMAP)) == 0 &&
      request.new_bytes <= request.old_bytes)  // the range may have several pieces
    return unmap_pieces(request.area, old_address + request.new_bytes, request.old_end());
  if (stop != request.old_end()) return -EFAULT;
  request.old = *piece;
  request.locked = request.old.kind == MappingKind::kTiered && pager_pinned(request.old_end() - 1);
  if (request.old.kind == MappingKind::kForeign) return remap_foreign(request, out);
  if ((flags & (MREMAP_FIXED | MREMAP_DONTUNMAP)) != 0) return move_map(request, out);
  size_t more = request.new_bytes - request.old_bytes;
  if (more <= static_cast<size_t>(request.area->limit - request.old_end()) &&
      table.is_free(request.old_end(), request.old_end() + more)) {
    rc = make_like(request.area, request.old_end(), more, request.old);
    return rc < 0 ? -ENOMEM : lock_added(request.area, request.old_end(), more, request);
  }
  return (flags & MREMAP_MAYMOVE) == 0 ? -ENOMEM : move_map(request, out);
}

}  // namespace lunar::preload
