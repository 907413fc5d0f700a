// SPDX-License-Identifier: Apache-2.0
// Another process of the tree writes into tiered memory by process_vm_writev, as MPI does, while
// the target's pages are evicted. The kernel pins up to 1024 pages before it copies, and brings
// missing ones in meanwhile: what it has pinned must not be evicted under it.
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "preload_test.h"

namespace {

constexpr size_t kTarget = 4u << 20, kPressure = 40u << 20, kPage = 4096;
constexpr unsigned long kRounds = 60;

// Writes round after round, when it is told to; says how much was written.
void write_rounds(pid_t target, char* there, int told, int said) {
  char* content = map_tiered(kTarget);
  unsigned long round;
  while (read(told, &round, sizeof round) == sizeof round) {
    fill(content, kTarget, round);
    const iovec from{content, kTarget}, to{there, kTarget};
    const ssize_t done = g_case == "raw"
                             ? syscall(SYS_process_vm_writev, target, &from, 1ul, &to, 1ul, 0ul)
                             : process_vm_writev(target, &from, 1, &to, 1, 0);
    REQUIRE(write(said, &done, sizeof done) == sizeof done);
  }
}

int body() {
  char *target = map_tiered(kTarget), *other = map_tiered(kPressure);
  fill(other, kPressure, 99);
  (void)prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);
  int told[2], said[2];
  REQUIRE(pipe(told) == 0 && pipe(said) == 0);
  const pid_t self = getpid(), writer = fork();
  REQUIRE(writer >= 0);
  if (writer == 0) {
    close(told[1]);
    write_rounds(self, target, told[0], said[1]);
    _exit(0);
  }
  Meanwhile pressing([other, turn = 0ul]() mutable {
    ++turn;
    for (size_t at = 0; at < kPressure; at += kPage)
      *reinterpret_cast<volatile unsigned long*>(other + at) = turn;
  });
  unsigned long lost = 0;
  for (unsigned long round = 1; round <= kRounds; ++round) {
    REQUIRE(write(told[1], &round, sizeof round) == sizeof round);
    ssize_t done = 0;
    REQUIRE(read(said[0], &done, sizeof done) == sizeof done);
    if (done < 0) SKIP("ptrace", "process_vm_writev is refused here");
    REQUIRE(done == static_cast<ssize_t>(kTarget));
    for (size_t at = 0; at < kTarget; at += kPage)
      lost += !holds(target + at, kPage, round, at / sizeof(long));
  }
  pressing.end();
  close(told[1]);
  if (lost != 0)
    fprintf(stderr, "%lu of %lu pages lost what was written into them\n", lost,
            kRounds * (kTarget / kPage));
  return lost == 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  return run_cases(argc, argv, {"LUNAR_DRAM=16m", "LUNAR_SIZE=1g"},
                   {{"library", body}, {"raw", body}});
}
