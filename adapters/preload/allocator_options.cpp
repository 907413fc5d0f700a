// SPDX-License-Identifier: Apache-2.0
// jemalloc's options at start. jemalloc's own memory (tables, and allocations of service threads)
// is outside of the budget: where huge pages are `always`, scattered touches would make whole huge
// pages of it (14 MiB in a process that uses 1 MiB). The heap's pages lie in regions, whose huge
// pages the pager manages. The program's MALLOC_CONF applies after this, and its malloc_conf
// instead of it.
extern "C" {
__attribute__((visibility("default"))) const char* malloc_conf = "thp:never";
}
