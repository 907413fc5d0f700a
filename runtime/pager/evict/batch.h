// SPDX-License-Identifier: Apache-2.0
// A batch of pages that are being evicted. Threading: the evictor's thread.
#pragma once
#include <sys/uio.h>

#include <cstdint>

#include "pager/page/page_word.h"
#include "pager/page/region.h"
#include "pager/state/install.h"

namespace lunar {

constexpr unsigned kBatchPages = 64;

struct Victim {
  Region* region = nullptr;  // null: it is no longer in the batch
  PageIndex page{};
  PageWord word{};  // before busy
  uint32_t frame = UINT32_MAX;
  bool dropped = false;
  bool maybe_shared = false;  // another process may share the page: dropping it frees nothing
  bool stuck = false;         // this page itself could not be taken (locked, pinned)
  // cannot be made exclusive, or moved, while it is not writable
  bool unwritable = false;
  bool guard = false;            // a guard page that the program made by a raw call
  bool protected_by_us = false;  // write-protected by the evictor, and copied

  char* address() const { return region->address_of(page); }
};

struct Batch {
  Victim victims[kBatchPages];
  unsigned count = 0;

  Victim* begin() { return victims; }
  Victim* end() { return victims + count; }
  void close_gaps() {  // those without a region
    unsigned out = 0;
    for (unsigned i = 0; i < count; ++i)
      if (victims[i].region != nullptr) victims[out++] = victims[i];
    count = out;
  }
};

// The page stays resident, and leaves the batch.
inline void keep(PagerState& state, Victim& victim, unsigned heat) {
  release_page(state, *victim.region, victim.page, victim.word.with_heat(heat));
  victim.region = nullptr;
}

}  // namespace lunar
