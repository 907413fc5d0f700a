// SPDX-License-Identifier: Apache-2.0
// A part of pager.h: keeping pages in DRAM for threads (kept_pages.cpp).
#pragma once
#include <cstddef>
#include <cstdint>

namespace lunar {

// For how long a page is kept.
enum class Keep : uint8_t {
  // until the calling thread has ended: the kernel reads or writes the page then
  kThreadEnd,
  // until the exec that the calling thread is about to call, or until pager_exec_failed
  kExec,
  // for a thread that the calling one is about to make; pager_kept_goes_to says which it is
  kNewThread,
  // until pager_keep_no_more of the same range: the kernel reads or writes the page where it takes
  // no page faults. At most 512 pages in all; further ones are not kept.
  kUntilTold,
};
// Keeps a range in DRAM.
void pager_keep(const void* address, size_t bytes, Keep use);
void pager_exec_failed();
void pager_keep_no_more(const void* address, size_t bytes);
// The new thread is in this process, or in one that shares its memory. child_id <= 0: none was
// made.
void pager_kept_goes_to(const void* address, int child_id, bool a_process);

}  // namespace lunar
