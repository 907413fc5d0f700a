// SPDX-License-Identifier: Apache-2.0
// A program whose own fstat takes a lock without fork handlers, as fakeroot's does, forks
// while another thread is in it. Lunar does not call it: the child would wait for that thread.
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include <atomic>
#include <mutex>
#include <thread>

#include "preload_test.h"

namespace {
std::mutex lock;

int locked_status(int fd, void* out) {
  const std::lock_guard guard(lock);
  return static_cast<int>(syscall(SYS_newfstatat, fd, "", out, AT_EMPTY_PATH));
}
}  // namespace

extern "C" int fstat(int fd, struct stat* out) {
  return locked_status(fd, out);
}  // by the name of fstat64

namespace {

constexpr size_t kHeap = size_t{40} << 20;

void fork_next_to_fstat() {
  char* p = map_tiered(kHeap);
  auto* heap = static_cast<char*>(p);
  fill(heap, kHeap, 1);
  const Meanwhile other([status = (struct stat){}]() mutable { REQUIRE(fstat(0, &status) == 0); });
  for (int i = 0; i < 10; ++i) {
    const pid_t child = fork();
    if (child == 0) _exit(holds(heap, kHeap, 1) ? 0 : 1);
    REQUIRE(ends_well(child));
  }
}

}  // namespace

int main(int argc, char** argv) {
  return run_cases(argc, argv, {"LUNAR_DRAM=24m", "LUNAR_SIZE=1g"}, {{"all", fork_next_to_fstat}});
}
