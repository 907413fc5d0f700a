// SPDX-License-Identifier: Apache-2.0
// The environment variables that users of IBM's block library know, read at every open, so that a chunk keeps its own.
//
//   CFLSH_BLK_MAX_XFER    blocks of one transfer of a physical chunk at most (1..4096; never of a virtual one)
//   CFLSH_BLK_CACHE_SIZE  blocks of a read cache a chunk (0: none). It knows of no other chunk's or process' writes
//   CFLSH_BLK_TIMEOUT     how long an I/O may take (default 15 s; 0: no limit), and a command waits for a free one
//                         (default 5 s). IBM's library tries for 5 s, three times; here the kernel tries again by
//                         itself, so it counts once
//   CFLSH_BLK_TIMEOUT_UNITS  of that number: MILLI, MICRO; anything else: seconds
//   CFLSH_BLK_SIZE        blocks of a physical chunk at most: the rest of a larger device is left alone
//   CFLSH_BLK_TRACE       a file that gets one line a call that opens, closes, sizes or fails; and for it
//   CFLSH_BLK_TRC_VERBOSITY  0: nothing, 1: calls that fail, 2 or more (default): all of these
//   CFLSH_BLK_TRC_APPEND     OFF: the file is emptied first
//   CFLSH_BLK_TRACE_PID      set: the file is NAME.PID, one a process; a forked child begins its own at its first open
//   CFLSH_BLK_LUN_ID      a number that names the LUN in those lines; nothing else
// Without effect, as what they steer is not here: CFLSH_BLK_TRACE_TID (one file a thread), _TRC_SYSLOG, _PORT_SEL_MASK,
// _DUMP, _DUMP_LEVEL, _SIGSEGV_DUMP, _SIGUSR1_DUMP, _NOTIFY_LOG_LEVEL.
// A value that is no number is as good as none. In a setuid or setgid program all are as if not set (config/trust.h).
// Threading: any (as getenv). Not for the data path.
#pragma once
#include <cstdint>

namespace lunar::cblk {

struct Environment {
  uint64_t transfer_blocks_max = 0;  // 0: not set, but for the times
  uint64_t cache_blocks = 0;
  uint64_t io_timeout_ns = 0;       // 0: no limit
  uint64_t command_timeout_ns = 0;  // for a free one
  uint64_t size_blocks = 0;
  uint64_t lun_id = 0;
};
Environment read_environment();

// The trace file: opened, and its verbosity read, at the first chunk's open that finds the variable set, once a
// process.
constexpr int kTraceFailures = 1, kTraceCalls = 2;  // verbosity from which on a line is written
void trace_open();
bool trace_active();
void trace(const char* format, ...) __attribute__((format(printf, 1, 2)));  // a failure
void trace_at(int verbosity, const char* format, ...) __attribute__((format(printf, 2, 3)));

}  // namespace lunar::cblk
