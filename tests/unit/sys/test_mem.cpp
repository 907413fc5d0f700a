// SPDX-License-Identifier: Apache-2.0
// Claims of address space, also where a filter refuses what tells holes from mappings.
#include <errno.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/units.h"
#include "sys/mem.h"
#include "tests/catch.h"
#include "tests/support/refused_calls.h"

using namespace lunar;

namespace {

// 0, or the number of the claim that has a wrong answer.
int claim_around_a_hole() {
  constexpr size_t kBytes = 2 * kGiB;
  const size_t page = sys::page_bytes();
  void* map = mmap(nullptr, kBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (map == MAP_FAILED) return 1;
  char *base = static_cast<char*>(map), *hole = base + kBytes / 2 + 3 * page;
  if (sys::claim(base, kBytes) != -EEXIST) return 2;
  if (munmap(hole, page) != 0) return 3;
  if (sys::claim(base, kBytes) != -EBUSY) return 4;
  if (sys::claim(hole, page) != 0) return 5;
  return sys::claim(base, kBytes) == -EEXIST ? 0 : 6;
}

}  // namespace

TEST_CASE("a claim says whether a range is mapped wholly, in part or not at all") {
  CHECK(claim_around_a_hole() == 0);
}

TEST_CASE("a claim tells so without msync") {
  const pid_t child = fork();
  if (child == 0) _exit(refuse_calls({SYS_msync}) ? claim_around_a_hole() : 77);
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 77)
    LUNAR_SKIP("seccomp", "there are no filters here");
  CHECK(status == 0);
}
