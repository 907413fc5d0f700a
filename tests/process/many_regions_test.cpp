// SPDX-License-Identifier: Apache-2.0
// Ten thousand small API regions, used and destroyed; and what lunar_error says when no more can be
// made. Threading: one thread.
#include <cerrno>
#include <cstring>
#include <string>
#include <vector>

#include "lunar/lunar.h"
#include "tests/catch.h"
#include "tests/support/own_status.h"

namespace {

constexpr size_t kDram = 128 << 20, kBytes = size_t{64} << 10, kRegions = 10000, kMost = 70000;

bool destroy_all(const std::vector<char*>& regions, size_t bytes) {
  size_t refused = 0;
  for (char* region : regions) refused += lunar_region_destroy(region, bytes) != 0;
  return refused == 0;
}

}  // namespace

TEST_CASE("ten thousand small regions keep their content, and the last one refused says why",
          "[api]") {
  lunar_config config{};
  config.struct_size = sizeof(config);
  config.dram_bytes = kDram;
  config.lun_bytes = 1 << 30;
  REQUIRE(lunar_init(&config) == 0);
  std::vector<char*> regions;
  for (size_t i = 0; i < kRegions; ++i) {
    auto* region = static_cast<char*>(lunar_region_create(kBytes));
    if (region == nullptr) FAIL(lunar_error());
    memcpy(region + kBytes / 2, &i, sizeof i);
    regions.push_back(region);
  }
  const auto keep_content = [&] {
    size_t wrong = 0;
    for (size_t i = 0; i < kRegions; ++i)
      wrong += memcmp(regions[i] + kBytes / 2, &i, sizeof i) != 0;
    return wrong == 0;
  };
  CHECK(keep_content());
  const size_t anonymous_kib = lunar_test::status_kib("RssAnon");
  CHECK(anonymous_kib != 0);
  CHECK(anonymous_kib < (kDram >> 10) + 4096);  // tables of so many are small, or in the budget

  // On to the end: that of the table, or of what the kernel maps.
  std::vector<char*> small;
  while (small.size() < kMost) {
    auto* region = static_cast<char*>(lunar_region_create(1));
    if (region == nullptr) break;
    small.push_back(region);
  }
  const int error = errno;
  const std::string why = lunar_error();
  INFO(regions.size() + small.size() << " regions: " << why);
  REQUIRE(small.size() < kMost);
  CHECK(error == ENOMEM);
  CHECK((why.find("65536 regions") != why.npos || why.find("vm.max_map_count") != why.npos ||
         why.find("DRAM budget") != why.npos));
  CHECK(keep_content());
  CHECK(destroy_all(small, 1));
  CHECK(destroy_all(regions, kBytes));
  CHECK(lunar_shutdown() == 0);
}
