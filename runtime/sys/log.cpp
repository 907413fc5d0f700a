// SPDX-License-Identifier: Apache-2.0
// The log: a line is built on the stack and written at once, so that lines of several processes do
// not mix. Threading: any thread; level and descriptor are atomics. Allocates nothing and keeps
// errno: fault-path safe.
#include "sys/log.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include <cstdarg>
#include <cstddef>

#include "base/format.h"
#include "sys/file.h"

namespace lunar {
namespace {

std::atomic<int> g_level{static_cast<int>(LogLevel::kWarning)};
std::atomic<int> g_fd{-1};

__attribute__((format(printf, 2, 0))) void write_line(LogLevel level, const char* format,
                                                      va_list args) {
  if (static_cast<int>(level) > g_level.load(std::memory_order_relaxed)) return;
  int saved = errno;
  char line[1024];
  size_t length = format_to(line, sizeof line, "lunar: [%d] ", static_cast<int>(getpid()));
  length += vformat_line_to(line + length, sizeof line - 1 - length, format, args);
  line[length++] = '\n';
  int fd = g_fd.load(std::memory_order_relaxed);
  (void)!sys::write_to_program(fd < 0 ? 2 : fd, line, length);
  errno = saved;
}

}  // namespace

void log_configure(LogLevel level, int fd) {
  g_level.store(static_cast<int>(level), std::memory_order_relaxed);
  g_fd.store(fd, std::memory_order_relaxed);
}

LogLevel log_level() { return static_cast<LogLevel>(g_level.load(std::memory_order_relaxed)); }

LogLevel log_level_from(const char* name) {
  if (!name) return LogLevel::kWarning;
  if (strcmp(name, "error") == 0) return LogLevel::kError;
  if (strcmp(name, "info") == 0) return LogLevel::kInfo;
  return LogLevel::kWarning;
}

#define LUNAR_LOG_FUNCTION(name, level) \
  void name(const char* format, ...) {  \
    va_list args;                       \
    va_start(args, format);             \
    write_line(level, format, args);    \
    va_end(args);                       \
  }
LUNAR_LOG_FUNCTION(log_error, LogLevel::kError)
LUNAR_LOG_FUNCTION(log_warning, LogLevel::kWarning)
LUNAR_LOG_FUNCTION(log_info, LogLevel::kInfo)
#undef LUNAR_LOG_FUNCTION

}  // namespace lunar
