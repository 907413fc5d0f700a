// SPDX-License-Identifier: Apache-2.0
// Tiered maps are the program's large anonymous maps. They lie in pager regions ("areas") of this
// library, and behave as with the kernel's calls. mmap_family.cpp decides which maps are tiered;
// these functions do the work.
//
//   area 0..n   one pager region each: charged at commit, or (MAP_NORESERVE) on touch; areas are
//               added as needed
//   table       the parts that are mapped, and how (mapping_table.h)
//
// Threading: any thread. One lock protects areas and table. It is held with all signals blocked,
// because handlers of the program may map, and never while the program's content is read. Results
// are 0 or -errno; errno does not change.
#pragma once
#include <sys/types.h>

#include <atomic>
#include <csignal>
#include <cstddef>

#include "mapping_table.h"
#include "pager/pager.h"
#include "sys/thread.h"

namespace lunar::preload {

struct Area {
  Region* region = nullptr;
  char* base = nullptr;
  char* limit = nullptr;
  unsigned flags = 0;  // RegionFlags
  bool holds(const void* address) const { return address >= base && address < limit; }
  size_t offset(const char* address) const { return static_cast<size_t>(address - base); }
};

constexpr size_t kMapBytesMin = size_t(1) << 18;  // smaller maps stay plain

// The area that holds an address, or nullptr. Lock-free.
Area* area_of(const void* address);
// Whether any byte of the range is in an area. Lock-free.
bool areas_overlap(const void* begin, size_t bytes);
// The lowest address above `address`, at most `end`, where an area starts or ends. Lock-free.
char* area_boundary(char* address, char* end);

// Runs `ours` on the parts of a range where `find` finds something, and `plain` on the rest, in
// address order; stops at the first error. boundary(address, end) is the end of the part that
// begins at an address.
template <class Find, class Boundary, class Ours, class Plain>
int for_parts(char* address, char* end, Find find, Boundary boundary, Ours ours, Plain plain) {
  for (char* stop; address < end; address = stop) {
    stop = boundary(address, end);
    const auto part = static_cast<size_t>(stop - address);
    const int rc = find(address) != nullptr ? ours(address, part) : plain(address, part);
    if (rc < 0) return rc;
  }
  return 0;
}

// Whether this process was forked by a raw system call, and has none of the maps. The calls below
// then fail (-ENOMEM) without the lock, which another thread of the parent may have held. Logs one
// line.
bool maps_are_gone(size_t bytes);
// mmap without MAP_FIXED. -ENOTSUP: the map is not for the tier (above 16 TiB, or no further area),
// and is left to the kernel. -ENOMEM: there is no room, or no address space; a line was logged.
[[nodiscard]] int maps_create(char* hint, size_t bytes, int prot, int flags, void** out);
// pre, for each of these: the range is within one area, page-aligned, not empty.
[[nodiscard]] int maps_fixed(char* address, size_t bytes, OtherMap map);
[[nodiscard]] int maps_unmap(char* address, size_t bytes);
// Hands the range to the kernel, for a call of the program that maps something there. 1: a
// placeholder is mapped there. 0: the range belonged to the kernel already. replace: the range may
// be in use. -EINVAL: it is in use, and `replace` is false.
[[nodiscard]] int maps_leave(char* address, size_t bytes, bool replace);
// Called when the kernel has moved a foreign map away from there: the range is free now.
void maps_moved_away(char* address, size_t bytes);
// shmdt of a segment that is attached in an area.
[[nodiscard]] int maps_detach(const char* address);
[[nodiscard]] int maps_protect(char* address, size_t bytes, int prot);
[[nodiscard]] int maps_advise(char* address, size_t bytes, int advice);
// pre: `old_address` is in an area.
[[nodiscard]] int maps_remap(char* old_address, size_t old_bytes, size_t new_bytes, int flags,
                             char* wanted, void** out);
// mremap of plain private anonymous memory into the tier: makes a map with its content at another
// address. prot: its protection.
[[nodiscard]] int maps_take_in(char* old_address, size_t old_bytes, size_t new_bytes, int prot,
                               void** out);
// madvise on tiered memory without a look into the table of maps (pages of the heap, and committed
// maps). tiered_advice.cpp lists all advice.
[[nodiscard]] int advise_tiered(char* address, size_t bytes, int advice);
// mlock2 (with its flags) and munlock.
[[nodiscard]] int maps_lock(char* address, size_t bytes, unsigned flags);
[[nodiscard]] int maps_unlock(char* address, size_t bytes);

// Hold the lock across fork(), so that the child's copy is consistent. Called by the forking
// thread, before and after the fork.
void maps_lock_for_fork();
void maps_unlock_after_fork();

// ---- shared by tiered_maps.cpp and tiered_remap.cpp ---------------------------------------------

class MapsLock {
 public:
  MapsLock();
  ~MapsLock();
  MapsLock(const MapsLock&) = delete;
  MapsLock& operator=(const MapsLock&) = delete;
};

// pre, for all of these: MapsLock is held.
MappingTable& maps_table();
[[nodiscard]] int claim_place(char* hint, size_t bytes, unsigned region_flags, Area** area,
                              char** place);
// commit_piece: makes a piece accessible, charges it (unless touches are charged), and enters it
// into the table. give_back: makes a range inaccessible, empty and uncharged, and leaves the table
// unchanged. pre: the range is tiered. After an error all of it is still charged.
[[nodiscard]] int commit_piece(Area* area, char* begin, char* end, int prot);
[[nodiscard]] int give_back(Area* area, char* begin, char* end);
[[nodiscard]] int unmap_pieces(Area* area, char* begin, char* end);
// Called when the kernel has unmapped a foreign piece, or parts of it: these are free now, except
// where another map has been placed.
[[nodiscard]] int foreign_left(Area* area, char* begin, char* end);

}  // namespace lunar::preload
