// SPDX-License-Identifier: Apache-2.0
// Environment variables and the trace file: see environment.h.
// Threading: any. May not: be on the data path, but for a failed call that is traced.
#include "cblk/environment.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>

#include "base/format.h"
#include "config/trust.h"
#include "sys/file.h"
#include "sys/thread.h"

namespace lunar::cblk {
namespace {

std::atomic<int> trace_fd{-1};
std::atomic<int> trace_verbosity{kTraceCalls};
std::atomic<pid_t> trace_pid{0};  // the process of the file, if each process has its own; else 0

constexpr uint64_t kIoTimeoutNs = 15'000'000'000, kCommandTimeoutNs = 5'000'000'000;

// Reads a number from the environment. False: it is not set, or is not a number.
bool number_of(const char* name, uint64_t* value) {
  const char* text = environment_value(name);
  if (!text || *text < '0' || *text > '9') return false;
  char* end = nullptr;
  errno = 0;
  const uint64_t number = strtoull(text, &end, 0);
  if (errno != 0 || *end != '\0') return false;
  *value = number;
  return true;
}

void read_timeouts(Environment* out) {
  out->io_timeout_ns = kIoTimeoutNs;
  out->command_timeout_ns = kCommandTimeoutNs;
  uint64_t number = 0;
  if (!number_of("CFLSH_BLK_TIMEOUT", &number)) return;
  const char* units = environment_value("CFLSH_BLK_TIMEOUT_UNITS");
  const uint64_t unit = units && strcmp(units, "MILLI") == 0   ? 1'000'000
                        : units && strcmp(units, "MICRO") == 0 ? 1'000
                                                               : 1'000'000'000;
  // A time that no clock will reach means no limit.
  out->io_timeout_ns = number <= INT64_MAX / unit / 4 ? number * unit : 0;
  if (out->io_timeout_ns) out->command_timeout_ns = out->io_timeout_ns;
}

}  // namespace

Environment read_environment() {
  const int kept = errno;
  Environment out;
  (void)number_of("CFLSH_BLK_MAX_XFER", &out.transfer_blocks_max);
  (void)number_of("CFLSH_BLK_CACHE_SIZE", &out.cache_blocks);
  (void)number_of("CFLSH_BLK_SIZE", &out.size_blocks);
  (void)number_of("CFLSH_BLK_LUN_ID", &out.lun_id);
  read_timeouts(&out);
  errno = kept;
  return out;
}

void trace_open() {
  const char* path = environment_value("CFLSH_BLK_TRACE");
  if (!path || !*path) return;
  const pid_t pid = getpid(), owner = trace_pid.load(std::memory_order_relaxed);
  int before = trace_fd.load(std::memory_order_relaxed);
  if (before >= 0 && (owner == 0 || owner == pid)) return;
  const bool own = environment_value("CFLSH_BLK_TRACE_PID") != nullptr;
  const char* append = environment_value("CFLSH_BLK_TRC_APPEND");
  uint64_t verbosity = kTraceCalls;
  (void)number_of("CFLSH_BLK_TRC_VERBOSITY", &verbosity);
  char name[4096];
  // A truncated name would be another file's.
  if (format_to(name, sizeof name, own ? "%s.%d" : "%s", path, static_cast<int>(pid)) ==
      sizeof name - 1)
    return;
  const int fd = sys::open_file(
      name, O_WRONLY | O_CREAT | O_APPEND | (append && strcmp(append, "OFF") == 0 ? O_TRUNC : 0),
      0644);
  if (fd < 0) return;
  trace_verbosity.store(static_cast<int>(std::min<uint64_t>(verbosity, kTraceCalls)),
                        std::memory_order_relaxed);
  // If another thread was faster, its file is used. The descriptor of a parent's file stays open,
  // because another thread may be writing a line to it.
  if (trace_fd.compare_exchange_strong(before, fd))
    trace_pid.store(own ? pid : 0, std::memory_order_relaxed);
  else
    sys::close_file(fd);
}

bool trace_active() { return trace_fd.load(std::memory_order_relaxed) >= 0; }

namespace {

void trace_line(int verbosity, const char* format, va_list args) {
  const int fd = trace_fd.load(std::memory_order_relaxed);
  if (fd < 0 || verbosity > trace_verbosity.load(std::memory_order_relaxed)) return;
  char line[512];
  const uint64_t us = sys::now_ns() / 1000;
  size_t length = format_to(
      line, sizeof line - 1, "%llu.%06llu [%d] ", static_cast<unsigned long long>(us / 1000000),
      static_cast<unsigned long long>(us % 1000000), static_cast<int>(getpid()));
  length += vformat_line_to(line + length, sizeof line - 1 - length, format, args);
  line[length++] = '\n';
  (void)sys::write_some(fd, line, length);
}

}  // namespace

void trace(const char* format, ...) {
  va_list args;
  va_start(args, format);
  trace_line(kTraceFailures, format, args);
  va_end(args);
}

void trace_at(int verbosity, const char* format, ...) {
  va_list args;
  va_start(args, format);
  trace_line(verbosity, format, args);
  va_end(args);
}

}  // namespace lunar::cblk
