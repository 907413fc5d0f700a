// SPDX-License-Identifier: Apache-2.0
// Log: one line per message, `lunar: [pid] text`, one write(2) each, to standard error (or option
// `log_file`). By default only warnings and errors are logged. Unprintable bytes of arguments are
// escaped. LUNAR_LOG_LIMITED logs at most `limit` messages of a call site, the last one with
// "further ones are not shown".
// Threading: any thread, also on the fault path and in a forked child. Allocates nothing, takes no
// lock, keeps errno.
#pragma once
#include <atomic>

namespace lunar {

enum class LogLevel : int { kError = 0, kWarning = 1, kInfo = 2 };

void log_configure(LogLevel level, int fd);  // fd stays the caller's; -1 = standard error
LogLevel log_level();
// "error", "warning", "info" (option `log`); anything else is kWarning.
LogLevel log_level_from(const char* name);
void log_error(const char* format, ...) __attribute__((format(printf, 1, 2)));
void log_warning(const char* format, ...) __attribute__((format(printf, 1, 2)));
void log_info(const char* format, ...) __attribute__((format(printf, 1, 2)));

}  // namespace lunar

// At most `limit` lines per call site and process: LUNAR_LOG_LIMITED(log_warning, 10, "read error
// at %llu", offset).
#define LUNAR_LOG_LIMITED(log_function, limit, format, ...)                                       \
  do {                                                                                            \
    static ::std::atomic<unsigned> lunar_log_count{0};                                            \
    unsigned lunar_log_seen = lunar_log_count.load(::std::memory_order_relaxed);                  \
    if (lunar_log_seen < (limit)) {                                                               \
      lunar_log_seen = lunar_log_count.fetch_add(1, ::std::memory_order_relaxed) + 1;             \
      if (lunar_log_seen < (limit)) ::lunar::log_function(format __VA_OPT__(, ) __VA_ARGS__);     \
      if (lunar_log_seen == (limit))                                                              \
        ::lunar::log_function(format " (further ones are not shown)" __VA_OPT__(, ) __VA_ARGS__); \
    }                                                                                             \
  } while (0)
