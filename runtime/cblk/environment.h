// SPDX-License-Identifier: Apache-2.0
// The environment variables of IBM's block library, read at every open, so that each chunk has its
// own values.
//
//   CFLSH_BLK_MAX_XFER    maximum number of blocks of one transfer on a physical chunk (1..4096;
//                         ignored for a virtual one)
//   CFLSH_BLK_CACHE_SIZE  blocks of a chunk's read cache (0: none). It does not notice other
//                         chunks' or processes' writes
//   CFLSH_BLK_TIMEOUT     how long an I/O may take (default 15 s; 0: no limit), and how long a call
//                         waits for a free command (default 5 s). IBM's library waits for 5 s,
//                         three times; here the kernel repeats an I/O itself, so the time applies
//                         once
//   CFLSH_BLK_TIMEOUT_UNITS  the unit of that number: MILLI, MICRO; anything else: seconds
//   CFLSH_BLK_SIZE        maximum number of blocks of a physical chunk: the rest of a larger device
//                         is not used
//   CFLSH_BLK_TRACE       a file that gets one line for each call that opens, closes, resizes or
//                         fails; and for that file:
//   CFLSH_BLK_TRC_VERBOSITY  0: nothing, 1: calls that fail, 2 or more (default): all of these
//   CFLSH_BLK_TRC_APPEND     OFF: the file is truncated first
//   CFLSH_BLK_TRACE_PID      set: each process has its own file, NAME.PID; a forked child starts
//                            its own at its first open
//   CFLSH_BLK_LUN_ID      a number that identifies the LUN in those lines; not used otherwise
// Ignored, because this library has nothing that they could control: CFLSH_BLK_TRACE_TID (one file
// per thread), _TRC_SYSLOG, _PORT_SEL_MASK, _DUMP, _DUMP_LEVEL, _SIGSEGV_DUMP, _SIGUSR1_DUMP,
// _NOTIFY_LOG_LEVEL. If a value must be a number and is not, it is ignored. A setuid or setgid
// program ignores all variables (config/trust.h).
// Threading: any (as getenv). Not for the data path.
#pragma once
#include <cstdint>

namespace lunar::cblk {

struct Environment {
  uint64_t transfer_blocks_max = 0;  // 0: not set. (This holds for all members except the times.)
  uint64_t cache_blocks = 0;
  uint64_t io_timeout_ns = 0;       // 0: no limit
  uint64_t command_timeout_ns = 0;  // how long to wait for a free command
  uint64_t size_blocks = 0;
  uint64_t lun_id = 0;
};
Environment read_environment();

// The trace file. It is opened, and its verbosity read, once per process, at the first open of a
// chunk for which the variable is set.
constexpr int kTraceFailures = 1, kTraceCalls = 2;  // the verbosity from which on a line is written
void trace_open();
bool trace_active();
void trace(const char* format, ...) __attribute__((format(printf, 1, 2)));  // a failure
void trace_at(int verbosity, const char* format, ...) __attribute__((format(printf, 2, 3)));

}  // namespace lunar::cblk
