// SPDX-License-Identifier: Apache-2.0
// Part of pager.h: keeping pages in DRAM for threads (kept_pages.cpp).
#pragma once
#include <cstddef>
#include <cstdint>

namespace lunar {

enum class Keep : uint8_t {
  kThreadEnd,  // until the calling thread has ended: the kernel reads or writes it when the thread
               // ends
  kExec,  // until the exec that the calling thread is about to call, or until pager_exec_failed
  kNewThread,  // for a thread that the calling one is about to make; pager_kept_goes_to says which
               // it is
  // Until pager_keep_no_more of the same range: the kernel reads or writes it where it takes no
  // page faults. No more than 512 pages in all: of others nothing is kept.
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
