// SPDX-License-Identifier: Apache-2.0
// What jemalloc is asked for when it starts. Its own memory (tables, and what service threads allocate) is outside of the budget: where huge
// pages are `always`, a touch here and there would make whole ones of it (14 MiB in a process that uses 1). The heap's pages lie in regions,
// whose huge pages the pager sees to. The program's MALLOC_CONF, or a malloc_conf of its own, comes after this or instead of it.
extern "C" {
__attribute__((visibility("default"))) const char* malloc_conf = "thp:never";
}
