// SPDX-License-Identifier: Apache-2.0
// The table that a process prints when it ends (`--stats`).
#pragma once

namespace lunar::preload {

// At start: keeps standard error reachable, because programs close it before they end.
void stats_prepare();
void stats_print();        // once per process; does nothing without option `stats`
void stats_enter_child();  // in a forked child

}  // namespace lunar::preload
