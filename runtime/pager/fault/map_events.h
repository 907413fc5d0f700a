// SPDX-License-Identifier: Apache-2.0
// Raw calls (README.md): munmap, mremap and mmap with MAP_FIXED of tiered memory by a system call
// in the program's own code, which the pager cannot serve. The kernel reports them by an event of
// the userfaultfd, after the change; until the event is read, no page can be installed anywhere
// (EAGAIN). EVENT_REMOVE stays off, because the pager's own MADV_DONTNEED would wait for it.
#pragma once
#include <cstddef>

#include "sys/thread.h"
#include "sys/uffd.h"

namespace lunar {

struct PagerState;

// Around a call of the pager that unmaps registered pages or maps over them, whose event is
// expected. pre: no other thread can have locked these pages. Threading: a program's thread, inside
// a MutatorScope; waits for others.
class OwnUnmap {
 public:
  OwnUnmap(PagerState& state, char* begin, size_t bytes);
  ~OwnUnmap();  // waits until no handler is judging the event
  OwnUnmap(const OwnUnmap&) = delete;
  OwnUnmap& operator=(const OwnUnmap&) = delete;

 private:
  sys::Locked<sys::Mutex> lock_;
  PagerState& state_;
};

// Reads messages for handler number `handler`. Leaves the faults in `messages`, and returns how
// many there are, or -errno. An event ends the process, unless it is that of an OwnUnmap.
int read_faults(const PagerState& state, unsigned handler, sys::UffdMessage* messages,
                unsigned max);

}  // namespace lunar
