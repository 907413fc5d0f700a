// SPDX-License-Identifier: Apache-2.0
// A child made by a system call of the program's own code, which the preload library does not see:
// it runs until it touches tiered memory, which ends it by SIGSEGV. Where it asks for memory, one
// line says why that is refused.
#include <signal.h>
#include <stdint.h>

#include <string>

#include "preload_test.h"
#include "raw_call.h"
#include "tests/support/own_status.h"

namespace {

constexpr size_t kBytes = 64 << 20;
char* g_memory = nullptr;

struct End {
  int status;
  std::string said;
};

// How a child past the library ends that runs `what`, and what it writes to standard error.
template <class What>
End end_of_child(What what) {
  int ends[2];
  REQUIRE(pipe(ends) == 0);
  const long pid = raw(SYS_clone, SIGCHLD, 0, 0, 0, 0);
  if (pid == 0) {
    if (dup2(ends[1], 2) == 2) what();
    raw(SYS_exit_group, 3);
  }
  REQUIRE(pid > 0 && close(ends[1]) == 0);
  End end{};
  char part[512];
  for (ssize_t n; (n = read(ends[0], part, sizeof part)) > 0;)
    end.said.append(part, static_cast<size_t>(n));
  REQUIRE(waitpid(static_cast<pid_t>(pid), &end.status, 0) == pid && close(ends[0]) == 0);
  fputs(end.said.c_str(), stderr);
  return end;
}

bool dies_by_segv(const End& end) {
  return WIFSIGNALED(end.status) && WTERMSIG(end.status) == SIGSEGV;
}

void touch(const void* address) { (void)*static_cast<const volatile char*>(address); }

// Everything that libc does with tiered memory; its parent's is not the child's to change, and
// there is nobody to wait for.
void use_tiered_memory() {
  constexpr size_t kPart = kBytes / 4;
  const bool refused =
      mlock(g_memory, kPart) != 0 && madvise(g_memory, kPart, MADV_POPULATE_READ) != 0 &&
      madvise(g_memory, kBytes, MADV_DONTNEED) != 0 &&
      madvise(g_memory, kBytes, MADV_PAGEOUT) != 0 && mprotect(g_memory, kPart, PROT_READ) != 0 &&
      mremap(g_memory, kBytes, 2 * kBytes, MREMAP_MAYMOVE) == MAP_FAILED &&
      mmap(g_memory, kPart, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) ==
          MAP_FAILED &&
      mmap(nullptr, kBytes, PROT_READ, kPrivate | MAP_NORESERVE, -1, 0) == MAP_FAILED;
  const bool unmapped = munmap(g_memory, kBytes) == 0;
  const pid_t child = fork();
  if (child == 0) raw(SYS_exit_group, 5);
  int status = 0;
  const bool forked = child > 0 && waitpid(child, &status, 0) == child && status == 5 << 8;
  raw(SYS_exit_group, refused && unmapped && forked ? 4 : 6);
}

size_t anonymous_bytes() {
  const size_t kib = lunar_test::status_kib("RssAnon");
  REQUIRE(kib != 0);
  return kib << 10;
}

// After such children: the content, what is promised of the LUN, and the DRAM in use are as before.
void children_leave_the_parent_alone(const char* line) {
  for (unsigned long round = 2; round < 5; ++round) {
    const End end = end_of_child(use_tiered_memory);
    REQUIRE(end.status == 4 << 8 && end.said.find(line) != std::string::npos);
    REQUIRE(holds(g_memory, kBytes, round - 1));
    fill(g_memory, kBytes, round);
  }
  REQUIRE(holds(g_memory, kBytes, 4) && anonymous_bytes() < 22 * kMiB);
  REQUIRE(mmap(nullptr, 460 * kMiB, PROT_READ, kPrivate, -1, 0) == MAP_FAILED);
  fill(g_memory, kBytes, 1);
}

void body() {
  g_memory = map_tiered(kBytes);
  fill(g_memory, kBytes, 1);
  static volatile char plain[4096];
  const char* line = "by a system call past Lunar";

  // Evicted, and perhaps resident.
  REQUIRE(dies_by_segv(end_of_child([] { touch(g_memory); })));
  REQUIRE(dies_by_segv(end_of_child([] { touch(g_memory + kBytes - 1); })));
  // More memory is refused, and that is why.
  const End refused = end_of_child([] {
    if (mmap(nullptr, kBytes, kRw, kPrivate, -1, 0) == MAP_FAILED) raw(SYS_exit_group, 4);
  });
  REQUIRE(refused.status == 4 << 8 && refused.said.find(line) != std::string::npos);
  children_leave_the_parent_alone(line);
  // The child has the memory that is not tiered.
  REQUIRE(end_of_child([] { plain[0] = 1; }).status == 3 << 8 && plain[0] == 0);
  REQUIRE(holds(g_memory, kBytes, 1));
}

}  // namespace

int main(int argc, char** argv) {
  return run_cases(argc, argv, {"LUNAR_DRAM=16m", "LUNAR_SIZE=512m"}, {{"all", body}});
}
