// SPDX-License-Identifier: Apache-2.0
// A separate stack, for calls that need more space than the program's stack may have left: a signal
// stack may have 8 KiB and a thread's stack 16 KiB, and libc's own functions need only one or two
// KiB there.
// Threading: one user at a time (under a lock that is released on the former stack). A forked child
// has a copy. No allocation after make(). Under a sanitizer, which follows stacks, and on
// processors not known here, calls stay where they are.
#pragma once
#include <cstddef>

namespace lunar::sys {

class OwnStack {
 public:
  void make();  // once; without memory, calls stay on the caller's stack
  template <class Run>
  void call(Run run) {
    call(&run, [](void* argument) { (*static_cast<Run*>(argument))(); });
  }

 private:
  void call(void* argument, void (*run)(void* argument));
  char* base_ = nullptr;  // lowest: a page without rights
};

}  // namespace lunar::sys
