// SPDX-License-Identifier: Apache-2.0
// little_space_test LIBRARY CASE: a program under a limit on address space (ulimit -v).
//   heap   it starts, and works, with not much more than the 16 GiB that Lunar reserves for its
//          heap
//   maps   a program that leaves itself 1 GiB more: its maps are tiered all the same; what does not
//          fit is refused
#include <sys/resource.h>

#include "preload_test.h"

namespace {

void use_heap() {
  for (unsigned i = 0; i < 64; ++i) {
    void* block = malloc(kMiB / 4);
    REQUIRE(block != nullptr);
    fill(block, kMiB / 4, i);
    REQUIRE(holds(block, kMiB / 4, i));
    free(block);
  }
}

size_t address_space() {
  unsigned long pages = 0;
  FILE* file = fopen("/proc/self/statm", "r");
  REQUIRE(file != nullptr && fscanf(file, "%lu", &pages) == 1 && fclose(file) == 0);
  return pages * static_cast<unsigned long>(sysconf(_SC_PAGESIZE));
}

void use_maps() {
  constexpr size_t kBytes = 64 * kMiB;  // four times the budget
  const rlim_t most = address_space() + kGiB;
  const rlimit limit{most, most};
  REQUIRE(setrlimit(RLIMIT_AS, &limit) == 0);
  char *p = map_tiered(kBytes), *q = map_tiered(kBytes, kRw, kPrivate | MAP_NORESERVE);
  fill(p, kBytes, 7);
  fill(q, kBytes, 8);
  REQUIRE(holds(p, kBytes, 7) && holds(q, kBytes, 8));
  for (size_t bytes = 100 * kMiB; bytes >= 25 * kMiB; bytes /= 2) {
    for (const char* more;
         (more = map_if_possible(bytes, PROT_READ, kPrivate | MAP_NORESERVE)) != nullptr;)
      REQUIRE(tiered(more));
    REQUIRE(errno == ENOMEM);
  }
  REQUIRE(holds(p, kBytes, 7) && holds(q, kBytes, 8));
}

}  // namespace

int main(int argc, char** argv) {
  const auto run = [=] {
    return run_cases(argc, argv, {"LUNAR_DRAM=16m", "LUNAR_SIZE=1g"},
                     {{"heap", use_heap}, {"maps", use_maps, {"LUNAR_SIZE=192m"}}});
  };
  if (inside() || argc != 3 || strcmp(argv[2], "heap") != 0) return run();
  rlimit before{};
  REQUIRE(getrlimit(RLIMIT_AS, &before) == 0);
  const rlimit little{16 * kGiB + 512 * kMiB, before.rlim_max};
  REQUIRE(setrlimit(RLIMIT_AS, &little) == 0);
  const int rc = run();
  REQUIRE(setrlimit(RLIMIT_AS, &before) == 0);
  return rc == 77 && run() != 77 ? 1 : rc;  // a skip only where it does not start without the limit
}
