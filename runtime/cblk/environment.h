// SPDX-License-Identifier: Apache-2.0
// The environment variables that users of IBM's block library know, read at every open, so that a chunk keeps its own.
//
//   CFLSH_BLK_MAX_XFER    blocks of one transfer of a physical chunk at most (1..4096; never of a virtual one)
//   CFLSH_BLK_CACHE_SIZE  blocks of a read cache a chunk (0: none). It knows of no other chunk's or process' writes
//   CFLSH_BLK_TIMEOUT     seconds that a blocking cblk_aresult waits (default: no limit), and that a command waits for a free
//                         one (default 5)
//   CFLSH_BLK_SIZE        blocks of a physical chunk at most: the rest of a larger device is left alone
//   CFLSH_BLK_TRACE       a file that gets one line a call that opens, closes, sizes or fails
//   CFLSH_BLK_LUN_ID      a number that names the LUN in those lines; nothing else
// A value that is no number is as good as none. In a setuid or setgid program all are as if not set (base/trust.h).
// Threading: any (as getenv). Not for the data path.
#pragma once
#include <cstdint>

namespace lunar::cblk {

struct Environment {
  uint64_t transfer_blocks_max = 0;   // 0: not set, in all of these
  uint64_t cache_blocks = 0;
  uint64_t timeout_s = 0;
  uint64_t size_blocks = 0;
  uint64_t lun_id = 0;
};
Environment read_environment();

// The trace file: opened at the first chunk's open that finds the variable set, once a process.
void trace_open();
bool trace_active();
void trace(const char* format, ...) __attribute__((format(printf, 1, 2)));

}  // namespace lunar::cblk
