// SPDX-License-Identifier: Apache-2.0
// Descriptors and files: 0/count or -errno, no allocation, straight to the kernel (not through
// interposed libc symbols).
#pragma once
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>

#include <cstddef>
#include <cstdint>

namespace lunar::sys {

// O_CLOEXEC is always added
[[nodiscard]] int open_file(const char* path, int flags, mode_t mode = 0);
// Keeps /proc open, so that files below it can also be opened after chroot. Returns the descriptor,
// or -1.
int keep_proc_directory();
bool is_proc_directory(int fd);  // the descriptor that is kept, and still /proc
int proc_directory();            // the descriptor that is kept, or -1
// as asked, nothing added
[[nodiscard]] int open_at(int directory, const char* path, int flags, mode_t mode);
[[nodiscard]] long control_file(int fd, int command, void* argument);  // fcntl
// O_TMPFILE, else create + unlink
[[nodiscard]] int open_unlinked(const char* directory, int flags);
int close_file(int fd);
// Moves a descriptor of Lunar away from the low numbers that programs and shells use by name (`exec
// 3>file`); closes the old number. Returns the new one, or `fd` itself when none is free.
int move_high(int fd);
// Identifies the file of a descriptor. The number is not enough: the program may have closed
// Lunar's descriptor and opened its own file under that number, also one of the same kind. (Rings
// and userfaultfds have an inode each, from 5.16 on; eventfds and pidfds do not.)
struct FileIdentity {
  uint64_t device = 0, inode = 0;
  bool operator==(const FileIdentity&) const = default;
};
FileIdentity file_identity(int fd);                  // {}: of none
bool is_file(int fd, const FileIdentity& identity);  // in the calling thread's table; false for {}
// A memory file (memfd), sealed in that size. -EFBIG: RLIMIT_FSIZE is below it.
[[nodiscard]] int make_memory_file(const char* name, uint64_t bytes);
// Whether `fd` is memory sealed in size (the account of `lunar run`). False if another file has
// this number now.
bool is_sealed_memory(int fd);
bool is_zero_device(int fd);  // /dev/zero
// Closes every descriptor of the calling thread's table except those listed (in any order); for
// unshared tables.
void close_all_but(const int* keep, unsigned count);
[[nodiscard]] int64_t read_at(int fd, void* buffer, size_t bytes, uint64_t offset);
[[nodiscard]] int64_t write_at(int fd, const void* buffer, size_t bytes, uint64_t offset);
[[nodiscard]] int64_t readv_at(int fd, const iovec* iov, int count, uint64_t offset);
[[nodiscard]] int64_t writev_at(int fd, const iovec* iov, int count, uint64_t offset,
                                int flags = 0);  // RWF_*
[[nodiscard]] int64_t read_some(int fd, void* buffer, size_t bytes);
[[nodiscard]] int64_t readv_some(int fd, const iovec* iov, int count);
[[nodiscard]] int64_t write_some(int fd, const void* buffer, size_t bytes);
// As write_some, to a descriptor of the *program's* table: a service thread has a table of its own,
// and takes a copy by pidfd_getfd (5.6), or opens the file again through /proc. Waits up to 0.1 s
// for a full pipe or terminal, and for a second after that not at all (-EAGAIN). -EPIPE is returned
// without SIGPIPE.
[[nodiscard]] int64_t write_to_program(int fd, const void* buffer, size_t bytes);
// Reads a small file (/proc, /sys) into a NUL-terminated buffer; returns the length read, at most
// size-1, or -errno.
[[nodiscard]] int read_text(const char* path, char* buffer, size_t size);
// Calls `visit` with each line of a file of /proc, without the line end, until it returns false.
// Cuts off lines that do not fit into `line`. 0 or -errno.
[[nodiscard]] int visit_lines(const char* path, char* line, size_t size,
                              bool (*visit)(void* context, char* line), void* context);
template <class Visit>  // bool(char* line)
[[nodiscard]] int each_line(const char* path, char* line, size_t size, Visit visit) {
  return visit_lines(
      path, line, size,
      [](void* context, char* text) { return (*static_cast<Visit*>(context))(text); }, &visit);
}
// Name of any entry of a directory (dot files skipped): its length, 0 when the directory is empty,
// or -errno.
[[nodiscard]] int first_entry(const char* directory, char* name, size_t size);
// Name of the n-th entry (from 0) that begins with `prefix`: its length, 0 when there are not so
// many, or -errno.
[[nodiscard]] int nth_entry(const char* directory, const char* prefix, unsigned n, char* name,
                            size_t size);
[[nodiscard]] int visit_entries(const char* directory,
                                bool (*visit)(void* context, const char* name), void* context);
template <class Visit>  // bool(const char* name): false ends the walk
[[nodiscard]] int each_entry(const char* directory, Visit visit) {
  return visit_entries(
      directory,
      [](void* context, const char* name) { return (*static_cast<Visit*>(context))(name); },
      &visit);
}
[[nodiscard]] int close_numbers(unsigned first, unsigned last, int flags);  // close_range
[[nodiscard]] int duplicate_to(int from, int to, int flags);                // dup3
// fallocate, extends the file
[[nodiscard]] int allocate_space(int fd, uint64_t offset, uint64_t length);
// The greatest length that a file may reach (RLIMIT_FSIZE); UINT64_MAX: no limit.
uint64_t file_bytes_most();
// Both make a range read as zeros. punch_hole gives its space back to the file system; zero_range
// keeps it (-EOPNOTSUPP: this file system has no such call).
[[nodiscard]] int punch_hole(int fd, uint64_t offset, uint64_t length);
[[nodiscard]] int zero_range(int fd, uint64_t offset, uint64_t length);
// SEEK_HOLE, SEEK_DATA: the offset; -ENXIO beyond the end
[[nodiscard]] int64_t next_hole(int fd, uint64_t offset);
[[nodiscard]] int64_t next_data(int fd, uint64_t offset);
[[nodiscard]] int sync_data(int fd);                      // fdatasync
[[nodiscard]] int set_file_size(int fd, uint64_t bytes);  // ftruncate
// Locks byte ranges of a file. The open file description owns the locks (F_OFD_SETLK): forked
// children share them, and they end with the last descriptor of that description. kExclusive needs
// a descriptor open for writing. Never waits: -EAGAIN.
enum class RangeLock { kNone, kShared, kExclusive };
[[nodiscard]] int lock_range(int fd, RangeLock kind, uint64_t offset, uint64_t length);
// Whether a lock of another description conflicts with an exclusive lock: 1, 0, or -errno.
[[nodiscard]] int range_locked(int fd, uint64_t offset, uint64_t length);
// Opens the file of `fd` again (a new open file description), with its access mode and the flags
// `more`. O_CLOEXEC. Needs /proc.
[[nodiscard]] int open_again(int fd, int more = 0);
[[nodiscard]] int random_bytes(void* out, size_t bytes);  // up to 256
[[nodiscard]] int file_status(int fd, struct stat* out);
void set_mode(int fd, mode_t mode);                            // fchmod; fails silently
[[nodiscard]] int set_owner(int fd, uid_t user, gid_t group);  // fchown
// Access rights beyond the file mode, as the kernel keeps them (system.posix_acl_access): bytes, or
// -errno (-ENODATA: none).
[[nodiscard]] int get_acl(int fd, void* out, size_t size);
[[nodiscard]] int set_acl(int fd, const void* acl, size_t bytes);
[[nodiscard]] int rename_file(const char* from, const char* to);
[[nodiscard]] int link_status(const char* path, struct stat* out);  // lstat
// Path of the file, as /proc reports it: its length, or -errno.
[[nodiscard]] int descriptor_path(int fd, char* path, size_t size);
// flags: AT_STATX_DONT_SYNC
[[nodiscard]] int path_status(const char* path, struct stat* out, int flags = 0);
[[nodiscard]] int file_system_type(int fd, uint64_t* magic, uint64_t* free_bytes);  // statfs
// 0 when the file's blocks have addresses on a device (FIEMAP), -EOPNOTSUPP on file systems in
// memory.
[[nodiscard]] int extent_map_supported(int fd);
// The alignment, in bytes, that O_DIRECT needs of offsets, lengths and addresses. -EINVAL: no
// direct I/O on this file.
[[nodiscard]] int direct_io_align(int fd, uint32_t* bytes);
[[nodiscard]] int block_device_size(int fd, uint64_t* bytes);
[[nodiscard]] int block_discard(int fd, uint64_t offset, uint64_t length);
// O_NONBLOCK|O_CLOEXEC. Returns its capacity, which is as near to `bytes` as the user's limit
// allows, or -errno.
[[nodiscard]] int make_pipe(int fds[2], size_t bytes);
[[nodiscard]] int make_eventfd();  // O_NONBLOCK|O_CLOEXEC
void eventfd_signal(int fd);
void eventfd_clear(int fd);
// EPOLL_CTL_ADD or _MOD; the event's data is `fd`
[[nodiscard]] int epoll_set(int epoll, int fd, uint32_t events, bool add);
[[nodiscard]] int epoll_remove(int epoll, int fd);
// Waits until one of at most 64 descriptors is readable: how many are, 0 at the timeout (< 0:
// none), or -errno. Bit i of *ready_mask: fds[i].
[[nodiscard]] int poll_readable(const int* fds, unsigned count, int64_t timeout_ns,
                                uint64_t* ready_mask);

}  // namespace lunar::sys
