// SPDX-License-Identifier: Apache-2.0
// MappingTable has the program's maps inside the tiered address space (the kernel's VMAs, as the
// program sees them). Equal neighbours are one interval (sys/interval_map.h).
//
//   kTiered    the pager owns it; committed or not (a PROT_NONE reservation is not, until it is
//              made accessible)
//   kForeign   the kernel owns it: the program put something else there with MAP_FIXED (a file,
//              shared memory), or made it executable
// All other addresses are free.
//
// Threading: none; the owner (tiered_maps) holds a lock.
#pragma once
#include <cstddef>
#include <cstdint>

#include "sys/interval_map.h"

namespace lunar::preload {

enum class MappingKind : uint8_t { kTiered, kForeign };

struct Mapping {
  char* begin = nullptr;
  char* end = nullptr;
  int prot = 0;  // PROT_*
  MappingKind kind = MappingKind::kTiered;
  bool committed = false;
  bool alike(const Mapping& other) const {
    return prot == other.prot && kind == other.kind && committed == other.committed;
  }
};

using MappingTable = IntervalMap<Mapping>;

}  // namespace lunar::preload
