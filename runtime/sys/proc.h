// SPDX-License-Identifier: Apache-2.0
// Facts from /proc, such as descriptors that may pin memory and names of threads. All are about
// this process, unless a function takes a process id. Allocates nothing. Reads files, which blocks:
// not on the fault path.
#pragma once
#include <cstddef>
#include <cstdint>

#include "sys/file.h"

namespace lunar::sys {

// The mapping at `address`. 0 or -errno (-ENOMEM: nothing is mapped there). Reads /proc/self/maps
// up to that line. `anonymous`: private and not of a file; false for [heap] and [stack].
struct MappedRange {
  uintptr_t begin, end;
  int protection;
  bool anonymous;
};
[[nodiscard]] int mapping_of(const void* address, MappedRange* out);
// A live thread that uses the program's descriptor table: the main thread, or another one after the
// main thread has ended (pthread_exit). The answer is cached for 10 ms; `fresh` bypasses the cache.
int program_thread(bool fresh = false);
// "/proc/self/task/<program_thread()>/fd": the program's descriptors (a service thread has a table
// of its own).
const char* program_fd_directory(char* buffer, size_t size);
// Whether any thread of this process has a name that begins with `prefix`.
bool has_thread_named(const char* prefix);
// Whether the calling thread has such a name. Makes one system call.
bool this_thread_is_named(const char* prefix);
// Number of other threads of this process that have not ended (a main thread that has ended stays
// as a zombie and is not counted); -errno without /proc.
int other_live_threads();
uint64_t pid_namespace();  // identifies this process' namespace; 0: unknown (no /proc)
// Whether this process has a thread with that id.
bool thread_lives(int thread_id);
bool process_lives(int process_id);  // until its parent has waited for it
// Ends the process with the exit status of its first thread, as the kernel does when that thread
// has ended before the others.
[[noreturn]] void end_as_first_thread();
// The value of a line of /proc/self/status that is in KiB (VmHWM, VmPin), in bytes; or -errno.
[[nodiscard]] int64_t own_status_bytes(const char* key);
// The same for /proc/meminfo (MemTotal, MemAvailable); 0: there is no such line, or no /proc.
uint64_t machine_memory_bytes(const char* key);
// Number of entries of a directory of descriptors in /proc; without /proc, a value that changes
// with every call.
uint64_t directory_size(const char* path);
// Whether one of the program's descriptors is io_uring, AIO, RDMA, a file opened with O_DIRECT, or
// a file of FUSE, 9p or CIFS that is open for reading and may be read without a cache; *which: its
// number. Lunar's descriptors do not count. kUnsure: one was found while Lunar was making or
// closing a descriptor, and may be that one.
enum class Pinning : uint8_t { kNo, kYes, kUnsure };
Pinning descriptors_may_pin(const char* fd_directory, int* which);
// Whether `fd` is such a file of FUSE, 9p or CIFS. May wait for the server of its file system.
bool file_may_be_unbuffered(int fd);
// Scope in which Lunar makes or closes a descriptor, which is then open without being recorded.
class MakingDescriptor {
 public:
  MakingDescriptor();
  ~MakingDescriptor();
  MakingDescriptor(const MakingDescriptor&) = delete;
  MakingDescriptor& operator=(const MakingDescriptor&) = delete;
};
// Records Lunar's descriptors in the program's table, and the bytes that Lunar registered with the
// kernel, so that they do not count as the program's.
void note_own_descriptor(int fd, bool add);
bool is_own_descriptor(int fd);
int next_own_descriptor(int from);  // the lowest that is not below `from`, or -1
void note_own_pinned(int64_t bytes);
uint64_t own_pinned_bytes();

int process_number(const char* name);  // of an entry of /proc; 0: not a process
void visit_descriptor_tables(int pid, const char* kind,
                             bool (*visit)(void* context, const char* directory), void* context);
// Calls `visit` with the number of each process that /proc shows, until it returns false. -errno:
// no /proc.
template <class Visit>  // bool(int pid)
[[nodiscard]] int each_process(Visit visit) {
  return each_entry("/proc", [&](const char* name) {
    const int pid = process_number(name);
    return pid <= 0 || visit(pid);
  });
}
// Calls `visit` with the directory of each descriptor table of a process, until it returns false:
// the process' own table, and those of its service threads, which the program cannot close. `kind`:
// "fd" (the files) or "fdinfo" (their states).
template <class Visit>  // bool(const char* directory)
void each_descriptor_table(int pid, const char* kind, Visit visit) {
  visit_descriptor_tables(
      pid, kind,
      [](void* context, const char* directory) {
        return (*static_cast<Visit*>(context))(directory);
      },
      &visit);
}

}  // namespace lunar::sys
