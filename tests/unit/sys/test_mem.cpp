// SPDX-License-Identifier: Apache-2.0
// Claims of address space, also where a filter refuses what tells holes from mappings.
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/units.h"
#include "sys/mem.h"
#include "tests/catch.h"

using namespace lunar;

namespace {

void refuse(unsigned call) {
  sock_filter code[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program{4, code};
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0)
    _exit(77);
}

// 0, or which claim is answered wrongly.
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

TEST_CASE("a claim tells what is mapped wholly, in part and not at all") { CHECK(claim_around_a_hole() == 0); }

TEST_CASE("a claim tells so without msync") {
  const pid_t child = fork();
  if (child == 0) {
    refuse(SYS_msync);
    _exit(claim_around_a_hole());
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 77) LUNAR_SKIP("seccomp", "there are no filters here");
  CHECK(status == 0);
}
