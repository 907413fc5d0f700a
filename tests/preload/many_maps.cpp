// SPDX-License-Identifier: Apache-2.0
// Fibre stacks: LIVE maps with a guard page each, of which random ones are ended and made again OPS
// times. Prints the CPU time of a cycle in nanoseconds. Fails if a stack lost its content, or a new
// one has any.
// usage: many_maps LIVE OPS
// Threading: one thread.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

#include <vector>

namespace {

constexpr size_t kStack = size_t{320} << 10, kGuard = 4096;

long* top_of(char* stack) { return reinterpret_cast<long*>(stack + kStack) - 1; }

char* make(long number) {
  constexpr int kFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  void* at = mmap(nullptr, kStack, PROT_READ | PROT_WRITE, kFlags, -1, 0);
  if (at == MAP_FAILED || mprotect(at, kGuard, PROT_NONE) != 0) {
    perror("map");
    exit(1);
  }
  auto* stack = static_cast<char*>(at);
  if (*top_of(stack) != 0) {
    fprintf(stderr, "a new map is not empty\n");
    exit(1);
  }
  *top_of(stack) = number;
  return stack;
}

void end(char* stack, long number) {
  if (*top_of(stack) == number && munmap(stack, kStack) == 0) return;
  fprintf(stderr, "map %ld has lost its content, or cannot be unmapped\n", number);
  exit(1);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  const long live = atol(argv[1]), operations = atol(argv[2]);
  std::vector<char*> stacks;
  for (long i = 0; i < live; ++i) stacks.push_back(make(i + 1));
  uint64_t random = 88172645463325252u;
  timespec from{}, to{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &from);
  for (long n = 0; n < operations; ++n) {
    random ^= random << 13;
    random ^= random >> 7;
    random ^= random << 17;
    const auto i = static_cast<long>(random % static_cast<uint64_t>(live));
    end(stacks[static_cast<size_t>(i)], i + 1);
    stacks[static_cast<size_t>(i)] = make(i + 1);
  }
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &to);
  for (long i = 0; i < live; ++i) end(stacks[static_cast<size_t>(i)], i + 1);
  const double took = static_cast<double>(to.tv_sec - from.tv_sec) * 1e9 +
                      static_cast<double>(to.tv_nsec - from.tv_nsec);
  printf("%.0f\n", took / static_cast<double>(operations));
  return 0;
}
