// SPDX-License-Identifier: Apache-2.0
// What the kernel counts for us: bytes a disk really moved, CPU of the whole machine, memory of a
// process.
// The parsers take text, so that tests need no such machine.
// Threading: free functions, no state. May not be used by runtime/ (it allocates).
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

// A line of /sys/block/*/stat (Documentation/block/stat.rst): sectors of 512 bytes in columns 3 and
// 7.
std::optional<DiskBytes> parse_disk_stat(std::string_view text);
// The stat file of the block device under `path`'s file system ("" and *why set when there is none,
// as with overlayfs).
std::string disk_stat_path(const std::string& path, std::string* why);
std::optional<DiskBytes> read_disk(const std::string& stat_path);

// CPU seconds that all CPUs together were not idle, since some moment: two readings are compared.
//
// The user and system columns of /proc/stat are samples: the thread that runs when the tick comes
// is charged the whole tick. A program that wakes, works 10 us and sleeps again is seldom seen;
// here that hid up to 40% of what blocking reads cost, and nothing of what batches cost. The idle
// and iowait columns of a tickless kernel are clocked to the nanosecond instead. So: elapsed x CPUs
// - idle - iowait - steal.
std::optional<double> parse_idle_seconds(std::string_view text, long ticks_per_second);
double machine_cpu_seconds();

// CPU seconds of a process, all its threads and the children it has reaped (/proc/PID/stat); 0 when
// it is gone.
std::optional<double> parse_process_cpu_seconds(std::string_view text, long ticks_per_second);
double process_cpu_seconds(pid_t pid);

// Bytes that a process had disks read and write: by system calls, faults and rings of its own
// (/proc/PID/io; what goes through the page cache counts as written when it is put there). Nothing
// when the kernel does not count them, or the process is not ours to ask about.
std::optional<uint64_t> process_read_bytes(pid_t pid);
std::optional<uint64_t> process_written_bytes(pid_t pid);

// "VmRSS", "VmHWM", ... of /proc/PID/status in bytes; 0 when the process is gone.
std::optional<uint64_t> parse_status_bytes(std::string_view text, std::string_view name);
uint64_t process_memory(pid_t pid, std::string_view name);

}  // namespace lunar::tools
