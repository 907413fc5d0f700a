// SPDX-License-Identifier: Apache-2.0
// A stack of Lunar's own, for calls that need more than the program's may have left: a signal stack
// may have 8 KiB, a thread's 16, and what libc itself does in such a place fits into one or two.
// Threading: one user at a time (under a lock that is given back on the former stack). A forked
// child has a copy. No allocation after make(). Under a sanitizer, which follows stacks, and on
// processors not known here, calls stay where they are.
#pragma once
#include <cstddef>

namespace lunar::sys {

class OwnStack {
 public:
  void make();  // once; where there is no memory, calls stay where they are
  template <class Run>
  void call(Run run) {
    call(&run, [](void* argument) { (*static_cast<Run*>(argument))(); });
  }

 private:
  void call(void* argument, void (*run)(void* argument));
  char* base_ = nullptr;  // lowest: a page without rights
};

}  // namespace lunar::sys
