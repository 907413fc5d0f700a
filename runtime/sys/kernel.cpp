// SPDX-License-Identifier: Apache-2.0
// See kernel.h. Threading: stateless; any thread. Allocates nothing.
#include "sys/kernel.h"

#include <errno.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "base/test_switches.h"
#include "sys/file.h"
#include "sys/mem.h"
#include "sys/memory_constants.h"

#ifndef PR_GET_MEMORY_MERGE  // 6.4
#define PR_GET_MEMORY_MERGE 68
#endif

namespace lunar::sys {
namespace {

struct Tried {
  const char* call = "";  // the one that failed
  int error = 0;
  bool written_in_place = false;
};

void try_page(volatile char* page, int pipe[2], Tried* tried) {
  auto step = [&](const char* call, int64_t rc) {
    if (rc < 0) *tried = {call, static_cast<int>(rc), false};
    return rc >= 0;
  };
  void* address = const_cast<char*>(page);
  const size_t bytes = page_bytes();
  const iovec whole{address, bytes};
  page[0] = 1;
  if (!step("madvise(MADV_POPULATE_WRITE)", advise(address, bytes, MADV_POPULATE_WRITE))) return;
  if (!step("vmsplice", splice_pages(pipe[1], &whole, 1))) return;
  if (!step("mprotect", protect(address, bytes, PROT_READ)) ||
      !step("mprotect", protect(address, bytes, PROT_READ | PROT_WRITE)))
    return;
  page[0] = 2;
  char seen = 0;
  if (step("read", read_some(pipe[0], &seen, 1))) tried->written_in_place = seen == 2;
}

Tried try_kernel() {
  Tried tried;
  int pipe[2];
  if (int rc = make_pipe(pipe, page_bytes()); rc < 0) return {"pipe", rc, false};
  void* page = nullptr;
  if (int rc = map(nullptr, page_bytes(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0, &page); rc < 0) {
    tried = {"mmap", rc, false};
  } else {
    try_page(static_cast<char*>(page), pipe, &tried);
    (void)unmap(page, page_bytes());
  }
  close_file(pipe[0]);
  close_file(pipe[1]);
  return tried;
}

}  // namespace

int kernel_check(ErrorText* why) {
  utsname name{};
  (void)uname(&name);
  const Tried tried = try_kernel();
  if (tried.error == -EPERM || tried.error == -EACCES || tried.error == -ENOSYS || tried.error == -EMFILE ||
      tried.error == -ENFILE || tried.error == -ENOMEM)
    return why->set(
        tried.error,
        "kernel: %s, which evicting needs, is refused (%s): a system call filter or a limit of this process?",
        tried.call, errno_text(tried.error));
  if (tried.error == 0 && tried.written_in_place && !test_switches.old_kernel) return 0;
  return why->set(-EOPNOTSUPP,
                  "kernel: %s is too old: evicting while the program writes would lose writes (no PG_anon_exclusive); "
                  "boot 5.19 or later",
                  name.release);
}

bool memory_merging() { return syscall(SYS_prctl, PR_GET_MEMORY_MERGE, 0UL, 0UL, 0UL, 0UL) == 1; }

}  // namespace lunar::sys
