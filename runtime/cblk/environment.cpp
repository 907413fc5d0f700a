// SPDX-License-Identifier: Apache-2.0
// Environment variables and the trace file: see environment.h.
// Threading: any. May not: be on the data path, but for a failed call that is traced.
#include "cblk/environment.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <unistd.h>

#include <atomic>

#include "base/format.h"
#include "base/trust.h"
#include "sys/file.h"
#include "sys/thread.h"

namespace lunar::cblk {
namespace {

std::atomic<int> trace_fd{-1};

uint64_t number_of(const char* name) {
  const char* text = environment_value(name);
  if (!text || *text < '0' || *text > '9') return 0;
  char* end = nullptr;
  errno = 0;
  const uint64_t value = strtoull(text, &end, 0);
  return errno == 0 && *end == '\0' ? value : 0;
}

}  // namespace

Environment read_environment() {
  const int kept = errno;
  Environment out;
  out.transfer_blocks_max = number_of("CFLSH_BLK_MAX_XFER");
  out.cache_blocks = number_of("CFLSH_BLK_CACHE_SIZE");
  out.timeout_s = number_of("CFLSH_BLK_TIMEOUT");
  out.size_blocks = number_of("CFLSH_BLK_SIZE");
  out.lun_id = number_of("CFLSH_BLK_LUN_ID");
  errno = kept;
  return out;
}

void trace_open() {
  const char* path = environment_value("CFLSH_BLK_TRACE");
  if (!path || !*path || trace_active()) return;
  const int fd = sys::open_file(path, O_WRONLY | O_CREAT | O_APPEND, 0644);
  int none = -1;
  if (fd >= 0 && !trace_fd.compare_exchange_strong(none, fd)) sys::close_file(fd);
}

bool trace_active() { return trace_fd.load(std::memory_order_relaxed) >= 0; }

void trace(const char* format, ...) {
  const int fd = trace_fd.load(std::memory_order_relaxed);
  if (fd < 0) return;
  char line[512];
  const uint64_t us = sys::now_ns() / 1000;
  size_t length = format_to(line, sizeof line - 1, "%llu.%06llu [%d] ", static_cast<unsigned long long>(us / 1000000),
                            static_cast<unsigned long long>(us % 1000000), static_cast<int>(getpid()));
  va_list args;
  va_start(args, format);
  length += vformat_line_to(line + length, sizeof line - 1 - length, format, args);
  va_end(args);
  line[length++] = '\n';
  (void)sys::write_some(fd, line, length);
}

}  // namespace lunar::cblk
