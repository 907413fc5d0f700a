// SPDX-License-Identifier: Apache-2.0
// The copy of the memory that a process runs in, and the counters of each copy.
#include <sys/wait.h>
#include <unistd.h>

#include "sys/memory_copy.h"
#include "sys/proc.h"
#include "tests/catch.h"

using namespace lunar;

namespace {

constexpr int64_t kPinned = 1 << 20;

int status_of(pid_t child) {
  int status = -1;
  return child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) ? WEXITSTATUS(status)
                                                                               : -1;
}

}  // namespace

TEST_CASE("memory copy: each forked child has a number that its ancestors did not have") {
  const uint32_t parent = sys::memory_copy();
  REQUIRE(parent != 0);
  const pid_t child = fork();
  if (child == 0) {
    const uint32_t own = sys::memory_copy();
    const pid_t grandchild = fork();
    if (grandchild == 0) _exit(sys::memory_copy() != own && sys::memory_copy() != parent ? 0 : 1);
    _exit(status_of(grandchild) == 0 && own != parent && own == sys::memory_copy() ? 0 : 1);
  }
  CHECK(status_of(child) == 0);
  CHECK(sys::memory_copy() == parent);
}

#ifndef __SANITIZE_THREAD__  // to which vfork() is fork()
TEST_CASE("memory copy: a child of vfork only runs in its parent's, a forked one does not") {
  sys::note_memory_owner();
  CHECK_FALSE(sys::memory_is_parents());
  const uint32_t parent = sys::memory_copy();
  const pid_t shares = vfork();
  if (shares == 0) _exit(sys::memory_is_parents() && sys::memory_copy() == parent ? 0 : 1);
  CHECK(status_of(shares) == 0);
  const pid_t copies = fork();
  if (copies == 0) _exit(sys::memory_is_parents() ? 1 : 0);
  CHECK(status_of(copies) == 0);
  CHECK_FALSE(sys::memory_is_parents());
}

TEST_CASE("memory copy: pinned pages count for the memory that they belong to") {
  const uint64_t before = sys::own_pinned_bytes();
  sys::note_own_pinned(kPinned);
  const pid_t copies = fork();
  if (copies == 0) _exit(sys::own_pinned_bytes() == 0 ? 0 : 1);
  CHECK(status_of(copies) == 0);
  const pid_t shares = vfork();  // VmPin belongs to the shared memory
  if (shares == 0) {
    sys::note_own_pinned(kPinned);
    _exit(0);
  }
  CHECK(status_of(shares) == 0);
  CHECK(sys::own_pinned_bytes() == before + 2 * kPinned);
  sys::note_own_pinned(-2 * kPinned);
}
#endif
