// SPDX-License-Identifier: Apache-2.0
// Counters of the kernel: bytes that a disk moved, CPU time of the whole machine, memory of a
// process. The parsers take text, so that tests can call them on any machine.
// Threading: free functions, no state.
#pragma once
#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace lunar::tools {

struct DiskBytes {
  uint64_t read = 0;
  uint64_t written = 0;
};

// Parses a line of /sys/block/*/stat (Documentation/block/stat.rst), with sectors of 512 bytes in
// columns 3 and 7.
std::optional<DiskBytes> parse_disk_stat(std::string_view text);
// The stat file of the block device under the file system of `path`; "" with *why if there is none,
// as with overlayfs.
std::string disk_stat_path(const std::string& path, std::string* why);
std::optional<DiskBytes> read_disk(const std::string& stat_path);

// Seconds in which CPUs were not idle, summed over all CPUs, since an arbitrary moment: the
// difference of two readings counts.
//
// The user and system columns of /proc/stat are samples: the thread that runs at the tick is
// charged the whole tick. They seldom see a program that wakes, works for 10 us and sleeps again;
// this hid up to 40% of the cost of blocking reads, and nothing of the cost of batches. A tickless
// kernel measures the idle and iowait columns to the nanosecond instead. So: elapsed x CPUs - idle
// - iowait - steal.
std::optional<double> parse_idle_seconds(std::string_view text, long ticks_per_second);
double machine_cpu_seconds();

// CPU seconds of a process, with all its threads and reaped children (/proc/PID/stat); 0 if it has
// ended.
std::optional<double> parse_process_cpu_seconds(std::string_view text, long ticks_per_second);
double process_cpu_seconds(pid_t pid);

// Bytes that disks read and wrote for a process: by system calls, faults and rings (/proc/PID/io).
// A write through the page cache counts when it enters the cache. Nothing if the kernel does not
// count them, or this user may not read the counters.
std::optional<uint64_t> process_read_bytes(pid_t pid);
std::optional<uint64_t> process_written_bytes(pid_t pid);

// "VmRSS", "VmHWM", ... of /proc/PID/status in bytes; 0 if the process has ended.
std::optional<uint64_t> parse_status_bytes(std::string_view text, std::string_view name);
uint64_t process_memory(pid_t pid, std::string_view name);

}  // namespace lunar::tools
