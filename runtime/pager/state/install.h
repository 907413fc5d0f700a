// SPDX-License-Identifier: Apache-2.0
// Pages that a thread has locked (kBusy): installing their content, waiting for them, releasing
// them. The errors of UFFDIO_COPY are interpreted here and nowhere else. Threading: any. No
// allocation.
#pragma once
#include <cstddef>

#include "pager/page/page_word.h"
#include "pager/page/region.h"

namespace lunar {

struct PagerState;

enum class InstallOutcome {
  kDone,     // the first `pages` of them are installed
  kThere,    // there is content already: another thread's, or inherited by a fork
  kBorder,   // the run crosses a border of the kernel's maps (mprotect): ask for one page
  kGone,     // the place is another map's, or none: region_map_over or region_destroy was faster
  kRefused,  // for a reason that is not the page's: no memory just now, a closed descriptor
};

struct InstallResult {
  InstallOutcome outcome;
  unsigned pages;  // kDone only, at least 1
  int error;       // 0 or -errno
};

// UFFDIO_COPY of `pages` pages; write-protected if `protect`, or while a fork closes the
// copy-on-write gate. Wakes the threads that wait in the kernel for what it installs.
[[nodiscard]] InstallResult install(PagerState& state, void* address, const void* content,
                                    unsigned pages, bool protect = false);

// Write-protects pages by userfaultfd, or lifts that, which wakes. 0 or -errno.
int protect_pages(PagerState& state, void* address, size_t bytes, bool on);
// Write-protects the pages of a range that can be: it may cross foreign memory or several of the
// kernel's maps.
void protect_where_possible(PagerState& state, char* from, size_t bytes);

// The kernel fails both calls with EAGAIN while an event is unread. They retry: a thread that has
// set a reader reads events meanwhile, other threads yield.
void set_stall_reader(void (*read)(void* self), void* self);  // of the calling thread

// Asks the thread that has locked the page (`seen` is busy) to wake the threads that wait for it.
// False: the word has changed.
[[nodiscard]] bool set_waiter(Region& region, PageIndex page, PageWord seen);
// The threads that release_page wakes. kAll: every thread waiting for the page, even if the waiter
// bit is clear, because no UFFDIO_COPY has woken them.
enum class Wake { kWaiters, kAll };
// Unlocks a page that the caller has locked: `next` is its word from now on.
void release_page(PagerState& state, Region& region, PageIndex page, PageWord next,
                  Wake wake = Wake::kWaiters);

}  // namespace lunar
