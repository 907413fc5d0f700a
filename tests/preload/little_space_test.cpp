// SPDX-License-Identifier: Apache-2.0
// little_space_test LIBRARY: a program starts, and works, under an address space limit of not much more than the 16 GiB
// that Lunar reserves for its heap.
#include <sys/resource.h>

#include "preload_test.h"

namespace {

constexpr rlim_t kGiB = 1 << 30, kMiB = 1 << 20;

int use_heap() {
  for (unsigned i = 0; i < 64; ++i) {
    void* block = malloc(kMiB / 4);
    CHECK(block != nullptr);
    fill(block, kMiB / 4, i);
    CHECK(holds(block, kMiB / 4, i));
    free(block);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const auto run = [=] { return run_preloaded(argc, argv, {"LUNAR_DRAM=16m", "LUNAR_SIZE=1g"}, use_heap); };
  rlimit before{};
  CHECK(getrlimit(RLIMIT_AS, &before) == 0);
  const rlimit little{16 * kGiB + 512 * kMiB, before.rlim_max};
  CHECK(setrlimit(RLIMIT_AS, &little) == 0);
  const int rc = run();
  CHECK(setrlimit(RLIMIT_AS, &before) == 0);
  return rc == 77 && run() != 77 ? 1 : rc;  // a skip only where it does not start without the limit
}
