// SPDX-License-Identifier: Apache-2.0
// First touches of memory that is charged as it is touched (MAP_NORESERVE), for tests that fork
// meanwhile.
#pragma once
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "pager/state/state.h"
#include "tests/support/test_tier.h"

namespace tier {

// Committed and accessible memory that nothing has touched.
inline lunar::Region* make_charged_on_touch(uint64_t chunks) {
  const size_t bytes = chunks * lunar::kChunkPages * lunar_page_bytes();
  lunar::Region* region = nullptr;
  REQUIRE(lunar::region_create(bytes, lunar::kRegionChargeOnTouch, &region) == 0);
  REQUIRE(lunar::region_commit_on_touch(region, 0, bytes) == 0);
  REQUIRE(mprotect(lunar::region_base(region), bytes, PROT_READ | PROT_WRITE) == 0);
  return region;
}

// A thread that began a touch 2 ms ago. A handler has its fault, and a test switch delays it.
template <class Touch>
std::thread begin_touch(Touch touch) {
  std::atomic<bool> touching{false};
  std::thread thread([&touching, touch] {
    touching.store(true);
    touch();
  });
  while (!touching.load()) {}
  usleep(2000);
  return thread;
}

}  // namespace tier
