// SPDX-License-Identifier: Apache-2.0
// jemalloc's options at start. Its own memory (tables, and allocations of service threads) is
// outside of the budget: where huge pages are `always`, a touch here and there would make whole
// ones of it (14 MiB in a process that uses 1). The heap's pages lie in regions, whose huge pages
// the pager manages. The program's MALLOC_CONF, or its malloc_conf, comes after this or instead of
// it.
extern "C" {
__attribute__((visibility("default"))) const char* malloc_conf = "thp:never";
}
