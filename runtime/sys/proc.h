// SPDX-License-Identifier: Apache-2.0
// Facts about this process from /proc: descriptors that may pin memory, names of threads. No allocation; blocking file
// reads, so not for handlers.
#pragma once
#include <cstddef>
#include <cstdint>

namespace lunar::sys {

// PROT_* of the mapping that holds `address`, or -errno (-ENOMEM: nothing is mapped there). Reads /proc/self/maps up to
// there.
[[nodiscard]] int protection_of(const void* address);
// The mapping that holds `address`, likewise. `anonymous`: private, and of no file ([heap] and [stack] are not
// counted).
struct MappedRange {
  uintptr_t begin, end;
  int protection;
  bool anonymous;
};
[[nodiscard]] int mapping_of(const void* address, MappedRange* out);
// A living thread that uses the program's descriptor table: the main thread, or another one when that has ended
// (pthread_exit). Looks again every 10 ms; `fresh`: now.
int program_thread(bool fresh = false);
// "/proc/self/task/<program_thread()>/fd": the program's table (a service thread's own table is another one).
const char* program_fd_directory(char* buffer, size_t size);
// Whether a thread of this process has a name that begins so.
bool has_thread_named(const char* prefix);
// Whether that of the calling thread does: one system call.
bool this_thread_is_named(const char* prefix);
// Number of other threads of this process that have not ended (a main thread that has is a zombie); -errno without
// /proc.
int other_live_threads();
bool process_lives(int pid);  // also a zombie
uint64_t pid_namespace();     // a number for that of this process; 0: /proc does not tell
bool proc_has_own_ids();      // whether /proc shows process ids of that namespace, and not of one around it
// Whether a thread of this process with that id is there.
bool thread_lives(int thread_id);
// Ends the process with the status of its first thread, as the kernel does when the first thread ended before the
// others.
[[noreturn]] void end_as_first_thread();
// A line of /proc/self/status that is in KiB (VmHWM, VmPin), in bytes; or -errno.
[[nodiscard]] int64_t own_status_bytes(const char* key);
[[nodiscard]] int64_t machine_memory_bytes(const char* key);  // likewise of /proc/meminfo (MemTotal, MemAvailable)
// With vm.overcommit_memory=2: what the machine's commit limit leaves for this process; or -errno, where /proc does not
// tell.
[[nodiscard]] int64_t commit_bytes_left();
// Number of entries where the kernel tells it cheaply (st_size, 6.2+), else a value that changes at every call.
uint64_t directory_size(const char* path);
// Whether a descriptor is io_uring, AIO, RDMA, or a file opened with O_DIRECT; sets *which. Our own are not counted;
// where one of them was just being made or closed, so that it may be the one found: kUnsure.
enum class Pinning : uint8_t { kNo, kYes, kUnsure };
Pinning descriptors_may_pin(const char* fd_directory, int* which);
// Scope in which a descriptor of ours is open but not in the list of ours: while it is made, or closed.
class MakingDescriptor {
 public:
  MakingDescriptor();
  ~MakingDescriptor();
  MakingDescriptor(const MakingDescriptor&) = delete;
  MakingDescriptor& operator=(const MakingDescriptor&) = delete;
};
// Descriptors of ours in the program's table, and bytes we registered with the kernel: not to be taken for the
// program's.
void note_own_descriptor(int fd, bool add);
bool is_own_descriptor(int fd);
int next_own_descriptor(int from);  // the lowest from there on, or -1
void note_own_pinned(int64_t bytes);
uint64_t own_pinned_bytes();

}  // namespace lunar::sys
