// SPDX-License-Identifier: Apache-2.0
// The calls by which IBM's tools talk to its daemon that watches error rates. This library has no
// such daemon. Starting and ending succeed, because every program linked with these calls does
// both; calls that need the daemon fail with ENOSYS.
// Threading: any.
#include <errno.h>

#include "capiblock.h"

#define CBLK_API extern "C" __attribute__((visibility("default")))

namespace {

int not_here() {
  errno = ENOSYS;
  return -1;
}

}  // namespace

CBLK_API int cblk_eras_init() { return 0; }
CBLK_API int cblk_eras_term() { return 0; }
CBLK_API int cblk_eras_register(char*, void**) { return not_here(); }
CBLK_API int cblk_eras_unregister(void*) { return not_here(); }
CBLK_API int cblk_eras_set_trace(void*, int, char*, uint64_t) { return not_here(); }
CBLK_API int cblk_eras_live_dump(void*, char*, uint64_t) { return not_here(); }
CBLK_API int cblk_eras_get_stat(void*, char*, chunk_stats_t*, uint64_t) { return not_here(); }
