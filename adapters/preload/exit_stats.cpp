// SPDX-License-Identifier: Apache-2.0
// The table of `--stats`, printed once when a process ends (exit, _exit, return from main), with
// one line per figure:
//   lunar: stats: KEY VALUE [(READABLE)]
// so that people and tests read the same. The process that `lunar run` became prints it, and every
// other one that activated the pager or holds much memory outside the tier: the small helpers of a
// shell script print nothing. Programs close standard error before they end (coreutils do), so the
// library keeps a duplicate from the start, under a high number and close-on-exec, and uses it only
// while it is still the same file.
//
// Threading: the thread that ends the process. May run in a signal handler's _exit: formats by
// hand, allocates nothing.
#include "exit_stats.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstring>

#include "base/format.h"
#include "base/units.h"
#include "gate/gate.h"
#include "pager/pager.h"
#include "preload.h"
#include "real_calls.h"
#include "sys/file.h"
#include "sys/log.h"
#include "sys/memory_copy.h"
#include "sys/own_stack.h"
#include "sys/proc.h"
#include "untiered.h"

namespace lunar::preload {
namespace {

constexpr long kHighDescriptor = 900;
// A process prints the table, or a line, if it has more than this outside the tier, and more than
// this part of the budget.
constexpr uint64_t kOutsidePart = 4;
constexpr int64_t kOutsideMin = int64_t(16) << 20;

struct Output {
  int fd = -1;
  sys::FileIdentity file;
};
constinit Output g_output;
// the process that prints: no vfork child, and none that was forked by a raw system call
constinit std::atomic<pid_t> g_pid{0};
constinit std::atomic<bool> g_printing{false};
// The table is made on this stack: the caller may be a handler on a signal stack of 8 KiB that
// calls _exit. Used once in a process.
constinit sys::OwnStack g_stack;

class Table {
 public:
  void text(const char* key, const char* value) {
    length_ += format_line_to(buffer_ + length_, sizeof(buffer_) - length_, "lunar: stats: %s %s\n",
                              key, value);
  }
  void count(const char* key, uint64_t value) {
    length_ += format_to(buffer_ + length_, sizeof(buffer_) - length_, "lunar: stats: %s %llu\n",
                         key, static_cast<unsigned long long>(value));
  }
  void bytes(const char* key, uint64_t value) {
    length_ +=
        format_to(buffer_ + length_, sizeof(buffer_) - length_, "lunar: stats: %s %llu (%s)\n", key,
                  static_cast<unsigned long long>(value), format_size(value).text);
  }
  void write_to(int fd) const { (void)!write(fd, buffer_, length_); }

 private:
  char buffer_[4096] = {};
  size_t length_ = 0;
};

int output_descriptor() {
  return sys::is_file(g_output.fd, g_output.file) ? g_output.fd : STDERR_FILENO;
}

void fill(Table* table) {
  lunar_stats stats{};
  stats.struct_size = sizeof(stats);
  pager_stats(&stats);
  char program[64] = "?";
  int length = sys::read_text("/proc/self/comm", program, sizeof(program));
  if (length > 0 && program[length - 1] == '\n') program[length - 1] = '\0';
  table->text("program", program);
  table->count("pid", static_cast<uint64_t>(getpid()));
  table->bytes("cap_bytes", stats.dram_budget_bytes);
  table->bytes("peak_resident_bytes", stats.resident_peak_bytes);
  const int64_t peak_rss = sys::own_status_bytes("VmHWM");
  table->bytes("peak_rss_bytes", peak_rss > 0 ? static_cast<uint64_t>(peak_rss) : 0);
  table->bytes("committed_bytes", stats.committed_bytes);
  table->count("armed", pager_active() ? 1 : 0);
  if (!pager_active())
    table->text(
        "activated",
        "no: what Lunar tiers did not come near the budget of the process tree and stayed plain");
  UntieredMemory memory;
  if (untiered_memory(&memory) == 0) {
    char text[256];
    untiered_describe(memory, text, sizeof text);
    table->bytes("outside_bytes", memory.outside_bytes());
    table->text("outside", text);
  }
  if (!pager_active()) return;
  table->bytes("fixed_bytes", stats.fixed_bytes);
  table->bytes("evicted_bytes", stats.evicted_bytes);
  table->bytes("evictions_bytes", stats.evictions * stats.page_bytes);
  table->count("evictions", stats.evictions);
  table->count("faults", stats.faults);
  table->count("zero_fills", stats.zero_fills);
  table->count("major_faults", stats.major_faults);
  table->count("second_chances", stats.second_chances);
  table->count("prefetched", stats.prefetched);
  table->bytes("lun_read_bytes", stats.lun_read_bytes);
  table->bytes("lun_written_bytes", stats.lun_written_bytes);
  table->count("read_errors", stats.read_errors);
  table->count("write_errors", stats.write_errors);
  table->count("poisoned", stats.poisoned);
  if (redis::gate_state() == redis::GateState::kOff) return;  // no redis-server
  const redis::GateCounters gate = redis::gate_counters();
  table->count("gate_held", gate.held);
  table->count("gate_overlapped_reads", gate.overlapped_reads);
  table->count("gate_timeouts", gate.timeouts);
}

// Reads smaps only if the resident size leaves room for so much.
bool much_outside(UntieredMemory* memory) {
  lunar_stats stats{};
  stats.struct_size = sizeof(stats);
  pager_stats(&stats);
  auto limit = static_cast<int64_t>(stats.dram_budget_bytes / kOutsidePart);
  if (limit < kOutsideMin) limit = kOutsideMin;
  const auto resident = static_cast<int64_t>(stats.resident_bytes);
  return sys::own_status_bytes("RssAnon") - resident > limit && untiered_memory(memory) == 0 &&
         memory->outside_bytes() > static_cast<uint64_t>(limit);
}

// With LD_PRELOAD set by hand (without `lunar run`) no root is known: every process prints.
bool worth_printing() {
  auto root = static_cast<uint64_t>(g_options.root);
  UntieredMemory memory;
  return pager_active() || root == 0 || root == static_cast<uint64_t>(getpid()) ||
         much_outside(&memory);
}

void print_untiered() {
  UntieredMemory memory;
  char text[256];
  if (much_outside(&memory) && pager_tree_says_once()) {
    untiered_describe(memory, text, sizeof text);
    log_warning("%s: --dram does not cover these (runtime/LIMITS.md)", text);
  } else if (log_level() >= LogLevel::kInfo && worth_printing() && untiered_memory(&memory) == 0) {
    untiered_describe(memory, text, sizeof text);
    log_info("%s", text);
  }
}

// A small process ends without a look at /proc.
bool is_small() {
  rusage usage{};
  return log_level() < LogLevel::kInfo && getrusage(RUSAGE_SELF, &usage) == 0 &&
         usage.ru_maxrss <= kOutsideMin / 1024;
}

// Logs memory outside the tier where no table was requested. In a process tree, one process logs
// it.
void log_untiered() {
  static constinit std::atomic<pid_t> said{0};
  const pid_t pid = getpid();
  if (!ready() || g_options.stats || log_level() < LogLevel::kWarning || sys::memory_is_parents() ||
      is_small() || said.exchange(pid) == pid)
    return;
  g_stack.call(print_untiered);
}

// Called once (g_printing).
void print_table() {
  static constinit Table table;
  fill(&table);
  table.write_to(output_descriptor());
}

}  // namespace

void stats_prepare() {
  g_stack.make();
  if (!g_options.stats) return;
  g_pid.store(getpid(), std::memory_order_relaxed);
  long fd = -1;
  for (long least = kHighDescriptor; fd < 0 && least >= 3; least -= kHighDescriptor - 3)
    fd = sys::control_file(STDERR_FILENO, F_DUPFD_CLOEXEC, reinterpret_cast<void*>(least));
  g_output = {static_cast<int>(fd), sys::file_identity(static_cast<int>(fd))};
}

void stats_enter_child() {
  if (g_options.stats) g_pid.store(getpid(), std::memory_order_relaxed);
}

void stats_print() {
  log_untiered();
  if (!ready() || !g_options.stats || g_pid.load(std::memory_order_relaxed) != getpid()) return;
  if (g_printing.exchange(true)) return;
  g_stack.call([] {
    if (worth_printing()) print_table();
  });
}

}  // namespace lunar::preload

LUNAR_EXPORT __attribute__((noreturn)) void _exit(int status) {
  lunar::preload::stats_print();
  lunar::preload::g_real.exit_now(status);
}

LUNAR_EXPORT __attribute__((noreturn)) void _Exit(int status) noexcept {
  lunar::preload::stats_print();
  lunar::preload::g_real.exit_now(status);
}
