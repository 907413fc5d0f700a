// SPDX-License-Identifier: Apache-2.0
// Part of pager.h: keeping pages in DRAM for threads (kept_pages.cpp).
#pragma once
#include <cstddef>

namespace lunar {

// Keeps a range in DRAM until the calling thread has ended: the kernel reads or writes it when the thread ends.
void pager_keep_for_thread(const void* address, size_t bytes);
// Likewise, until the exec that the calling thread is about to call, or until pager_exec_failed.
void pager_keep_for_exec(const void* address, size_t bytes);
void pager_exec_failed();
// Keeps a range in DRAM until pager_keep_no_more of the same range: the kernel reads or writes it where it takes no
// page faults. No more than 512 pages in all: of others nothing is kept.
void pager_keep_until_told(const void* address, size_t bytes);
void pager_keep_no_more(const void* address, size_t bytes);
// Likewise, for a thread that the calling one is about to make; pager_kept_goes_to says which it is, in its own process
// or in one that shares its memory. child_id <= 0: none was made.
void pager_keep_for_new_thread(const void* address, size_t bytes);
void pager_kept_goes_to(const void* address, int child_id, bool a_process);

}  // namespace lunar
