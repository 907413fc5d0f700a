// SPDX-License-Identifier: Apache-2.0
// Pages that a thread has locked (kBusy): how they get their content, are waited for, and are
// released. The errors of UFFDIO_COPY are told apart here and nowhere else.
// Threading: any. No allocation.
#pragma once
#include <cstddef>

#include "pager/page/page_word.h"
#include "pager/page/region.h"

namespace lunar {

struct PagerState;

enum class Installed {
  kDone,     // the first `pages` of them
  kThere,    // there is content already: another thread's, or inherited by a fork
  kBorder,   // the run crosses a border of the kernel's maps (mprotect): ask for one page
  kGone,     // the place is another map's, or none: region_map_over or region_destroy was faster
  kRefused,  // says nothing about the page: no memory just now, a descriptor that the program has
             // closed
};
struct Install {
  Installed outcome;
  unsigned pages;  // kDone only, at least 1
  int error;       // 0 or -errno
};

// UFFDIO_COPY of `pages` pages; write-protected if `protect`, or while a fork closes the
// copy-on-write gate. Wakes the threads that wait in the kernel for what it installs.
[[nodiscard]] Install install(PagerState& state, void* address, const void* content, unsigned pages,
                              bool protect = false);

// Write-protects pages by userfaultfd, or lifts that, which wakes. 0 or -errno.
int protect_pages(PagerState& state, void* address, size_t bytes, bool on);
// Write-protects what it can of a range that may cross memory which is not ours, or several of the
// kernel's maps.
void protect_by_halves(PagerState& state, char* from, size_t bytes);

// While an event is unread the kernel refuses both (-EAGAIN): they wait by this. A thread that
// reads events does so in it, by the function that it has set; others yield.
void wait_out_stall();
void set_stall_reader(void (*read)(void* self), void* self);  // of the calling thread

// Asks the thread that has the page busy (`seen`) to wake those that wait for it. False: the word
// has changed.
[[nodiscard]] bool set_waiter(Region& region, PageIndex page, PageWord seen);
// Whom the release of a page wakes: kAll also threads that set no waiter, as their message is
// answered by this, and no install has woken them.
enum class Wake { kWaiters, kAll };
// Ends a page's time in the caller's hands: `next` is its word from now on.
void release_page(PagerState& state, Region& region, PageIndex page, PageWord next,
                  Wake wake = Wake::kWaiters);

}  // namespace lunar
