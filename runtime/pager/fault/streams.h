// SPDX-License-Identifier: Apache-2.0
// Streams: detects threads that read memory in a pattern. Each handler has a small table with two
// entries per thread: one for reads, one for first touches (zero fill), so that a writer's fill run
// and a reader's window do not disturb each other.
//
// A fault continues a stream if it is where the stream's last window ended, or a little beyond,
// because pages in between may have been resident. Each continuation doubles the window, up to 64
// pages. Any other fault starts over with window 1: no read-ahead. Strides other than 1 are found
// the same way.
#pragma once
#include <cstdint>

#include "pager/page/region.h"

namespace lunar {

struct ReadAhead {
  int64_t stride = 1;   // pages
  unsigned window = 1;  // pages to bring in, the faulting one included
};

class Streams {
 public:
  ReadAhead on_fault(int thread_id, const Region* region, uint64_t page, bool first_touch) {
    uint32_t key = static_cast<uint32_t>(thread_id) * 2 + (first_touch ? 1 : 0);
    Entry* entry = nullptr;
    uint32_t at = (key * 0x9e3779b1u) >> 26;  // 64 entries
    for (unsigned probe = 0; probe < 4; ++probe) {
      Entry& e = entries_[(at + probe) & 63];
      if (e.key == key) {
        entry = &e;
        break;
      }
      if (entry == nullptr || e.used < entry->used) entry = &e;
    }
    if (entry->key != key) *entry = {key, 0, nullptr, 0, 0, 1};
    entry->used = ++clock_;
    int64_t delta = static_cast<int64_t>(page - entry->last);
    bool same = entry->region == region && entry->stride != 0 && delta != 0;
    int64_t steps = same && delta % entry->stride == 0 ? delta / entry->stride : -1;
    int64_t slack = entry->stride == 1 || entry->stride == -1 ? 32 : 4;
    if (steps >= 1 && steps >= static_cast<int64_t>(entry->window) &&
        steps <= static_cast<int64_t>(entry->window) + slack) {
      if (entry->window < 64) entry->window *= 2;
    } else {
      entry->stride = entry->region == region && delta > -65 && delta < 65 ? delta : 0;
      entry->window = 1;
    }
    entry->region = region;
    entry->last = page;
    return {entry->stride == 0 ? 1 : entry->stride, entry->window};
  }

 private:
  struct Entry {
    uint32_t key = UINT32_MAX;
    uint32_t used = 0;
    const Region* region = nullptr;
    uint64_t last = 0;
    int64_t stride = 0;
    unsigned window = 1;
  };
  Entry entries_[64];
  uint32_t clock_ = 0;
};

}  // namespace lunar
