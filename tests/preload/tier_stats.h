// SPDX-License-Identifier: Apache-2.0
// lunar_get_stats() for tests that run under the preload library and are not linked with Lunar.
#pragma once
#include "lunar/lunar.h"
#include "preload_test.h"

#pragma weak lunar_get_stats

inline lunar_stats tier_stats() {
  lunar_stats stats{};
  stats.struct_size = sizeof stats;
  REQUIRE(lunar_get_stats != nullptr && lunar_get_stats(&stats) == 0);
  return stats;
}
