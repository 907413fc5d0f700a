// SPDX-License-Identifier: Apache-2.0
// The threads of the program, for the files that start, fork and exec.
#pragma once

namespace lunar::preload {

void threads_prepare();      // at start: counts the main thread too
void threads_enter_child();  // in a forked child, which has one thread

// Called by the thread that is about to call exec. True: if exec fails, it calls
// threads_after_exec, which keeps errno.
bool threads_before_exec();
void threads_after_exec();
// Calls exec, and returns only if that fails.
template <class Call>
auto with_mutexes_kept(Call call) {
  const bool kept = threads_before_exec();
  const auto result = call();
  if (kept) threads_after_exec();
  return result;
}

}  // namespace lunar::preload
