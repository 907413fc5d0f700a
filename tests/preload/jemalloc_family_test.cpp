// SPDX-License-Identifier: Apache-2.0
// jemalloc's extended calls on blocks of the early heap, which jemalloc does not know: the blocks
// come back to that heap, keep their bytes when they are resized, and stay out of jemalloc's cache.
// In a program such blocks are rare: a thread of the runtime allocates while another one makes a
// thread. Here they are made on purpose.
// Threading: one thread.
#include "adapters/preload/jemalloc_family.h"

#include <jemalloc/jemalloc.h>

#include <cstring>
#include <vector>

#include "adapters/preload/early_heap.h"
#include "tests/catch.h"

namespace {

using namespace lunar::preload;

char* make(size_t bytes, char fill) {
  auto* block = static_cast<char*>(early_alloc(0, bytes));
  std::memset(block, fill, bytes);
  return block;
}

// More than a thread's cache holds: jemalloc would empty it, and look its own structures up for
// each block.
void give_back(void (*free_block)(void*, size_t)) {
  std::vector<char*> blocks;
  for (int i = 0; i < 2000; ++i) blocks.push_back(make(32, 'x'));
  for (char* block : blocks) free_block(block, 32);
  for (int i = 0; i < 2000; ++i) {
    void* block = mallocx(32, 0);
    REQUIRE((block != nullptr && !early_owns(block)));
    sdallocx(block, 32, 0);
  }
}

}  // namespace

TEST_CASE("blocks of the early heap go back to it by jemalloc's calls", "[preload]") {
  jemalloc_prepare();
  give_back([](void* block, size_t bytes) { sdallocx(block, bytes, 0); });
  give_back([](void* block, size_t) { dallocx(block, 0); });
}

TEST_CASE("blocks of the early heap keep their bytes when jemalloc's calls resize them",
          "[preload]") {
  jemalloc_prepare();
  char* block = make(100, 'a');
  CHECK(sallocx(block, 0) >= 100);
  CHECK(xallocx(block, 1 << 20, 0, 0) < 1 << 20);
  auto* moved = static_cast<char*>(rallocx(block, 1000, 0));
  REQUIRE((moved != nullptr && !early_owns(moved)));
  for (int i = 0; i < 100; ++i) REQUIRE(moved[i] == 'a');
  CHECK(make(100, 'b') == block);  // what was left is used again
  moved = static_cast<char*>(rallocx(moved, 5000, 0));
  CHECK(sallocx(moved, 0) >= 5000);
  dallocx(moved, 0);
}
