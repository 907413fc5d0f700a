// SPDX-License-Identifier: Apache-2.0
// LUNAR MEMORY counts the pieces of a value. Threading: main.
#include <sys/mman.h>
#include <unistd.h>

#include "adapters/redis/key_memory.h"
#include "adapters/redis/tier.h"
#include "tests/catch.h"

namespace lunar::redis {

constinit Api g_api;
const Tier& tier() {
  static constinit Tier none;
  return none;
}

}  // namespace lunar::redis

TEST_CASE("a page that pieces share counts once, in whatever order they come", "[redis]") {
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  auto* memory = static_cast<char*>(mmap(nullptr, 4 * page, PROT_READ | PROT_WRITE,
                                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0));
  REQUIRE(memory != MAP_FAILED);
  const lunar_range first{memory, page + 50}, shared{memory + page + 100, 100},
      last{memory + 3 * page - 10, 20};
  const lunar_range orders[][3] = {
      {first, shared, last}, {shared, first, last}, {last, shared, first}, {first, last, shared}};
  for (const auto& pieces : orders) {
    lunar::redis::KeyMemory value;
    for (const lunar_range& piece : pieces) value.pieces[value.count++] = piece;
    value.tiered = value.count;
    uint64_t bytes = 0, resident = 0;
    key_memory_resident(value, &bytes, &resident);
    REQUIRE((bytes == 4 * page && resident == 4 * page));
  }
  munmap(memory, 4 * page);
}
