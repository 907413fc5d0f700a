// SPDX-License-Identifier: Apache-2.0
// Fills empty pages (kEmpty) with zeros.
// Threading: any thread that may use the pager's descriptors. Fault path: no allocation, no host
// lock.
#pragma once
#include "pager/fault/fill_request.h"

namespace lunar {

struct Region;

// A read-only run of zero pages that all threads share: untouched private memory, so it costs no
// DRAM.
const char* zero_run();

// Makes `page` resident; for a fault, with empty pages behind it. kResident, kNoRoom or kChanged.
FillResult zero_fill(PagerState& state, Region& region, PageIndex page, const FillRequest& request);

}  // namespace lunar
