// SPDX-License-Identifier: Apache-2.0
// Ten thousand small API regions, used and destroyed; and what lunar_error says when no more can be made.
// Threading: one thread.
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <vector>

#include "lunar/lunar.h"

#include <unistd.h>

#define CHECK(condition)                                                                                           \
  do {                                                                                                             \
    if (!(condition)) {                                                                                            \
      fprintf(stderr, "%s:%d: failed: %s (errno %d, %s)\n", __FILE__, __LINE__, #condition, errno, lunar_error()); \
      _exit(1);                                                                                                    \
    }                                                                                                              \
  } while (0)

namespace {

constexpr size_t kBytes = size_t{64} << 10, kRegions = 10000, kMost = 70000;

void destroy_all(std::vector<char*>* regions, size_t bytes) {
  for (char* region : *regions) CHECK(lunar_region_destroy(region, bytes) == 0);
  regions->clear();
}

}  // namespace

int main() {
  lunar_config config{};
  config.struct_size = sizeof(config);
  config.dram_bytes = 128 << 20;
  config.lun_bytes = 1 << 30;
  CHECK(lunar_init(&config) == 0);
  std::vector<char*> regions;
  for (size_t i = 0; i < kRegions; ++i) {
    auto* region = static_cast<char*>(lunar_region_create(kBytes));
    CHECK(region != nullptr);
    memcpy(region + kBytes / 2, &i, sizeof i);
    regions.push_back(region);
  }
  for (size_t i = 0; i < kRegions; ++i) CHECK(memcmp(regions[i] + kBytes / 2, &i, sizeof i) == 0);

  // On to the end: that of the table, or of what the kernel maps.
  std::vector<char*> small;
  while (small.size() < kMost) {
    auto* region = static_cast<char*>(lunar_region_create(1));
    if (region == nullptr) break;
    small.push_back(region);
  }
  printf("%zu regions: %s\n", regions.size() + small.size(), lunar_error());
  CHECK(small.size() < kMost && errno == ENOMEM);
  CHECK(strstr(lunar_error(), "65536 regions") != nullptr || strstr(lunar_error(), "vm.max_map_count") != nullptr);
  for (size_t i = 0; i < kRegions; ++i) CHECK(memcmp(regions[i] + kBytes / 2, &i, sizeof i) == 0);
  destroy_all(&small, 1);
  destroy_all(&regions, kBytes);
  CHECK(lunar_shutdown() == 0);
  return 0;
}
