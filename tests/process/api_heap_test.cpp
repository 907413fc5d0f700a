// SPDX-License-Identifier: Apache-2.0
// The API in a process whose malloc is its own: lunar_malloc is tiered, the program's malloc and
// its use of jemalloc stay as they are, jemalloc's metadata never lies in the tier, and the tier
// ends and starts again. Linked against the runtime itself (for the heap's counters) and its C API.
#include <jemalloc/jemalloc.h>
#include <malloc.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "base/format.h"
#include "heap/heap.h"
#include "lunar/lunar.h"
#include "tests/catch.h"
#include "tests/support/meanwhile.h"

namespace {

lunar_config config() {
  lunar_config c{};
  c.struct_size = sizeof(c);
  c.dram_bytes = 32 << 20;
  c.lun_bytes = 512 << 20;
  return c;
}

size_t counter(const char* format, unsigned arena) {
  char name[64];
  lunar::format_to(name, sizeof(name), format, arena);
  size_t value = 0, size = sizeof(value);
  REQUIRE(mallctl(name, &value, &size, nullptr, 0) == 0);
  return value;
}

unsigned arena_count() {
  unsigned count = 0;
  size_t size = sizeof(count);
  REQUIRE(mallctl("arenas.narenas", &count, &size, nullptr, 0) == 0);
  return count;
}

// Everything committed in the region is pages of extents that hold, or held, allocations: no room
// for metadata is left.
void metadata_stays_in_dram(unsigned first_arena) {
  uint64_t epoch = 1;
  size_t size = sizeof(epoch);
  REQUIRE(mallctl("epoch", &epoch, &size, &epoch, size) == 0);
  size_t pages = 0, base = 0;
  for (unsigned arena = first_arena; arena < arena_count(); ++arena) {
    pages += counter("stats.arenas.%u.pactive", arena) + counter("stats.arenas.%u.pdirty", arena) +
             counter("stats.arenas.%u.pmuzzy", arena);
    base += counter("stats.arenas.%u.base", arena);
  }
  size_t page = 0;
  size = sizeof(page);
  REQUIRE(mallctl("arenas.page", &page, &size, nullptr, 0) == 0);
  const lunar::HeapHookBytes hooks = lunar::heap_hook_bytes();
  REQUIRE(hooks.committed - hooks.ahead == pages * page);
  REQUIRE(base > 0);
}

void allocations() {
  std::vector<std::pair<unsigned char*, size_t>> blocks;
  for (size_t i = 0; i < 600; ++i) {
    size_t bytes = i % 7 == 0 ? 900000 : 1000 + i * 37;
    auto* p =
        static_cast<unsigned char*>(i % 2 == 0 ? lunar_malloc(bytes) : lunar_calloc(1, bytes));
    REQUIRE((p != nullptr && lunar_is_tiered(p) == 1 && lunar_usable_size(p) >= bytes));
    memset(p, static_cast<int>(i % 255) + 1, bytes);
    blocks.emplace_back(p, bytes);
  }
  for (size_t i = 0; i < blocks.size(); ++i) {
    auto [p, bytes] = blocks[i];
    REQUIRE((p[0] == i % 255 + 1 && p[bytes - 1] == i % 255 + 1));
    p = static_cast<unsigned char*>(lunar_realloc(p, bytes * 2));
    REQUIRE((p != nullptr && p[bytes - 1] == i % 255 + 1 && lunar_is_tiered(p) == 1));
    lunar_free(p);
  }
  void* wide = lunar_aligned_alloc(4096, 100);
  REQUIRE((wide != nullptr && reinterpret_cast<uintptr_t>(wide) % 4096 == 0));
  lunar_free(wide);
  errno = 0;
  REQUIRE((lunar_aligned_alloc(24, 100) == nullptr && errno == EINVAL));
  errno = 0;
  REQUIRE((lunar_malloc(size_t(1) << 40) == nullptr && errno == ENOMEM));
  lunar_free(nullptr);
}

void host_is_left_alone() {
  unsigned before = 0, after = 0;
  size_t size = sizeof(before);
  REQUIRE(mallctl("thread.arena", &before, &size, nullptr, 0) == 0);
  void* tiered = lunar_malloc(100);
  REQUIRE((mallctl("thread.arena", &after, &size, nullptr, 0) == 0 && before == after));
  for (int i = 0; i < 1000; ++i) {
    void* plain = malloc(100);
    void* theirs = mallocx(100, 0);
    REQUIRE((lunar_is_tiered(plain) == 0 && lunar_is_tiered(theirs) == 0));
    free(plain);
    dallocx(theirs, 0);
  }
  lunar_free(tiered);
  void* theirs = mallocx(100, 0);  // the freed block is not in the program's thread cache
  REQUIRE(lunar_is_tiered(theirs) == 0);
  dallocx(theirs, 0);
}

void threads() {
  std::atomic<bool> good{true};
  lunar_test::in_parallel(40, [&](int t) {
    std::vector<void*> mine;
    for (int i = 0; i < 500; ++i) {
      void* p = lunar_malloc(static_cast<size_t>(i % 300) + 1);
      good = good && p != nullptr && lunar_is_tiered(p) == 1;
      memset(p, t, static_cast<size_t>(i % 300) + 1);
      mine.push_back(p);
    }
    for (void* p : mine) lunar_free(p);
  });
  REQUIRE(good);
}

void regions() {
  size_t bytes = 96 << 20;
  auto* p = static_cast<unsigned*>(lunar_region_create(bytes));
  REQUIRE((p != nullptr && lunar_is_tiered(p) == 1));
  for (size_t i = 0; i < bytes / 4; ++i) p[i] = static_cast<unsigned>(i * 2654435761u);
  size_t wrong = 0;
  for (size_t i = 0; i < bytes / 4; ++i) wrong += p[i] != static_cast<unsigned>(i * 2654435761u);
  REQUIRE(wrong == 0);
  REQUIRE(lunar_shutdown() == -EBUSY);
  REQUIRE(
      (lunar_region_destroy(p + 1, bytes) == -EINVAL && lunar_region_destroy(p, 4096) == -EINVAL));
  REQUIRE((lunar_region_destroy(p, bytes) == 0 && lunar_is_tiered(p) == 0));
  errno = 0;
  REQUIRE((lunar_region_create(0) == nullptr && errno == EINVAL));
}

// A page that is pinned counts once, however often it is pinned: half of the budget may be.
void pins_do_not_nest() {
  const size_t half = 16 << 20, page = lunar_page_bytes();
  auto* p = static_cast<char*>(lunar_region_create(2 * half));
  lunar_stats stats{};
  stats.struct_size = sizeof(stats);
  REQUIRE((p != nullptr && lunar_pin(p, half - 2 * page) == 0));
  REQUIRE((lunar_pin(p, half - 2 * page) == 0 && lunar_pin(p + page, half - 2 * page) == 0));
  REQUIRE(lunar_pin(p, half + page) == -ENOMEM);
  REQUIRE((lunar_get_stats(&stats) == 0 && stats.pinned_bytes == half - page));
  REQUIRE((lunar_pin(p, half) == 0 && lunar_pin(p + half, page) == -ENOMEM));
  REQUIRE(
      (lunar_unpin(p, 2 * half) == 0 && lunar_get_stats(&stats) == 0 && stats.pinned_bytes == 0));
  REQUIRE(lunar_region_destroy(p, 2 * half) == 0);
}

// A program built with a later lunar.h: what it does not set is served, what it sets is refused.
void members_of_later_versions() {
  struct {
    lunar_config known = config();
    uint64_t later = 0;
  } c;
  c.known.struct_size = sizeof c;
  c.later = 1;
  REQUIRE((lunar_init(&c.known) == -E2BIG && strstr(lunar_error(), "newer") != nullptr));
  c.later = 0;
  REQUIRE(lunar_init(&c.known) == 0);
  REQUIRE(lunar_shutdown() == 0);
}

// At run time the budget may be what it may be at the start.
void budget_has_bounds() {
  lunar_config c = config();
  c.dram_bytes = uint64_t{1} << 50;
  c.lun_bytes = uint64_t{1} << 51;
  CHECK(lunar_set_dram(64 << 20) == -EINVAL);  // not started
  REQUIRE((lunar_init(&c) == -EINVAL &&
           strstr(lunar_error(), "more than this machine has") != nullptr));
  c = config();
  REQUIRE(lunar_init(&c) == 0);
  REQUIRE(lunar_set_dram(uint64_t{1} << 50) == -EINVAL);
  REQUIRE(lunar_set_dram(15 << 20) == -EINVAL);
  REQUIRE(lunar_set_dram(48 << 20) == 0);
  lunar_stats stats{};
  stats.struct_size = sizeof(stats);
  REQUIRE((lunar_get_stats(&stats) == 0 && stats.dram_budget_bytes == 48 << 20));
  char byte = 0;
  REQUIRE((lunar_region_destroy(&byte, 1) == -EINVAL && lunar_unpin(&byte, 1) == -EINVAL));
  REQUIRE(lunar_shutdown() == 0);
}

}  // namespace

TEST_CASE("the tier lives beside the program's own malloc and jemalloc, and starts again",
          "[api]") {
  lunar_config c = config();
  const int rc = lunar_init(&c);
  if (rc == -EPERM || rc == -ENOSYS || rc == -EACCES) LUNAR_SKIP("userfaultfd", lunar_error());
  REQUIRE(rc == 0);
  REQUIRE((lunar_init(&c) == -EEXIST && strstr(lunar_error(), "already") != nullptr));
  unsigned first_arena = arena_count();
  lunar_free(lunar_malloc(1));
  for (int round = 0; round < 2; ++round) {
    allocations();
    host_is_left_alone();
    threads();
    regions();
    pins_do_not_nest();
    if (round == 0) metadata_stays_in_dram(first_arena);
    void* keep = lunar_malloc(10);
    REQUIRE(lunar_shutdown() == -EBUSY);
    lunar_free(keep);
    REQUIRE(lunar_shutdown() == 0);
    REQUIRE(lunar_shutdown() == -EINVAL);
    REQUIRE(lunar_init(&c) == 0);
  }
  lunar_config bad = config();
  bad.options = "nonsense=1";
  REQUIRE((lunar_shutdown() == 0 && lunar_init(&bad) < 0 && strlen(lunar_error()) > 0));
  bad.options = nullptr;
  bad.lun = "/nonexistent/lun";
  REQUIRE((lunar_init(&bad) < 0 && strstr(lunar_error(), "/nonexistent") != nullptr));
  budget_has_bounds();
  members_of_later_versions();
}
