// SPDX-License-Identifier: Apache-2.0
// jemalloc's extended calls (jemalloc_family.cpp).
#pragma once

namespace lunar::preload {

// Finds jemalloc's own. Before the first of these calls, with one thread.
void jemalloc_prepare();

}  // namespace lunar::preload
