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
  enum class Outcome : uint8_t {
    kStays,     // it was not taken
    kStaysHot,  // it could not be taken (locked, pinned): left alone for a while
    kDropped,   // nothing maps it any more, and its content is in its frame
    kGuard,     // dropped: a guard page that the program made by a raw call
  };
  // The write protection that keeps it from being made exclusive or moved.
  enum class Protection : uint8_t {
    kNone,     // none that is known
    kProgram,  // its mapping is not writable
    kEvictor,  // the evictor has write-protected it to copy it
  };
  Region* region = nullptr;  // null: it is no longer in the batch
  PageIndex page{};
  PageWord word{};  // before busy
  uint32_t frame = UINT32_MAX;
  Outcome outcome = Outcome::kStays;
  Protection protection = Protection::kNone;
  bool may_be_shared = false;  // with another process: dropping it frees nothing

  char* address() const { return region->address_of(page); }
  bool is_dropped() const { return outcome == Outcome::kDropped || outcome == Outcome::kGuard; }
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
