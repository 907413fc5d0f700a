// SPDX-License-Identifier: Apache-2.0
// pid_namespace_test LIBRARY CASE: a tree of processes that spans pid namespaces.
//   same-ids       process 1 of a pid namespace forks children that are process 1 of another one,
//                  so that their ids are the same, while its threads have pages read and evicted. A
//                  child has the memory as it was, and closes nothing of its parent's
//   no-threads     a process that may make no threads any more is refused memory, however often,
//                  and keeps its descriptors for itself
#include <dirent.h>
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>

#include <atomic>
#include <thread>
#include <vector>

#include "preload_test.h"

namespace {

constexpr size_t kHeap = 32 * kMiB, kPart = kMiB;
constexpr int kChildren = 6;

// In a pid namespace of its own, where it is process 1.
pid_t fork_first() {
  return static_cast<pid_t>(syscall(SYS_clone, CLONE_NEWPID | SIGCHLD, 0, 0, 0, 0));
}

bool part_holds(const char* p, size_t part) {
  return holds(p + part * kPart, kPart, 1, part * kPart / sizeof(long));
}

void be_child(char* p) {
  REQUIRE(getpid() == 1);
  REQUIRE(holds(p, kHeap, 1));
  std::thread([p] { REQUIRE(mlock(p, kPart) == 0 && munlock(p, kPart) == 0); }).join();
  fill(p, kHeap, 2);
  REQUIRE(holds(p, kHeap, 2));
  _exit(0);
}

// As a child of vfork that is process 1 of a namespace of its own, in this one's memory.
void lock_in_vfork_child(char* p) {
  static char stack[256 << 10] __attribute__((aligned(16)));
  const auto body = [](void* at) -> int {
    const bool good = getpid() == 1 && mlock(at, 4 * kPart) == 0 && munlock(at, 4 * kPart) == 0;
    _exit(good ? 0 : 1);
  };
  REQUIRE(ends_well(
      clone(body, stack + sizeof stack, CLONE_VM | CLONE_VFORK | CLONE_NEWPID | SIGCHLD, p)));
  REQUIRE(mlock(p, kPart) == 0 && munlock(p, kPart) == 0);
}

void fork_among_readers() {
  REQUIRE(getpid() == 1);
  char* p = map_tiered(kHeap);
  fill(p, kHeap, 1);
  lock_in_vfork_child(p);
  constexpr unsigned kReaders = 3;
  std::atomic<unsigned> begun{0};
  Meanwhile reading(
      [&, i = 0ul](unsigned t) mutable {
        const size_t part = stamp(t, i) % (kHeap / kPart);
        if (t == 0)
          REQUIRE(mlock(p + part * kPart, kPart) == 0 && munlock(p + part * kPart, kPart) == 0);
        REQUIRE(part_holds(p, part));
        if (i++ == 0) ++begun;
      },
      kReaders);
  // A fork by a system call runs no handlers of the allocator's, so no thread may be inside it: it
  // is as it starts.
  while (begun.load() != kReaders) usleep(1000);
  for (int i = 0; i < kChildren; ++i) {
    const pid_t child = fork_first();
    if (child == 0) be_child(p);
    REQUIRE(ends_well(child));
  }
  reading.end();
  REQUIRE(holds(p, kHeap, 1));
}

bool can_make_namespace() {
  const pid_t first = fork_first();
  if (first == 0) _exit(0);
  if (first < 0)
    printf("skip: pid-namespace: a pid namespace cannot be made (%s)\n", strerror(errno));
  return ends_well(first);
}

int in_namespace() {
  if (!can_make_namespace()) return 77;
  const pid_t first = fork_first();
  if (first == 0) {
    fork_among_readers();
    _exit(0);
  }
  return ends_well(first) ? 0 : 1;
}

int descriptors() {
  int count = 0;
  DIR* all = opendir("/proc/self/fd");
  REQUIRE(all != nullptr);
  while (readdir(all) != nullptr) ++count;
  closedir(all);
  return count;
}

int no_threads() {
  constexpr int kAttempts = 5;
  constexpr useconds_t kApart = 150000;  // an attempt to become active is not repeated sooner
  if (!can_make_namespace()) return 77;
  REQUIRE(unshare(CLONE_NEWPID) == 0);
  const auto refused = [] { return map_if_possible(2 * kHeap) == nullptr; };
  REQUIRE(refused());
  const int before = descriptors();
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    usleep(kApart);
    REQUIRE(refused());
  }
  REQUIRE(descriptors() == before);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return run_cases(argc, argv, {"LUNAR_DRAM=16m", "LUNAR_SIZE=1g"},
                   {{"same-ids", in_namespace}, {"no-threads", no_threads, {"LUNAR_DRAM=32m"}}});
}
