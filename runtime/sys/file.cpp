// SPDX-License-Identifier: Apache-2.0
// Descriptors and files, straight to the kernel.
//
// Idea: one wrapper per system call, `0 / count / -errno`. Calls that a host program or a preloaded
// library may interpose (open, close, read, write, pipe) go through syscall(2) by number, so that
// the runtime never calls its own shim.
// Threading: any thread, also in a forked child.
// May not: allocate, use stdio, retry without bound (EINTR is the caller's, except where the call
// is not interruptible in a way the caller could use: fallocate and small text files).
#include "sys/file.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/fiemap.h>
#include <linux/fs.h>
#include <linux/magic.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>

#include "base/format.h"
#include "sys/proc.h"
#include "sys/thread.h"

#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434
#endif
#ifndef SYS_pidfd_getfd
#define SYS_pidfd_getfd 438
#endif

namespace lunar::sys {
namespace {

static_assert(sizeof(long) == 8, "offsets are passed to the kernel in one register");

int64_t result(long r) { return r < 0 ? -errno : r; }

constexpr char kProc[] = "/proc/";
std::atomic<int> g_proc_directory{-1};
std::atomic<uint64_t> g_proc_device{0};

int create_unlinked(const char* directory, int flags) {
  char path[4096];
  static uint32_t sequence = 0;  // names need only differ within a process; O_EXCL settles the rest
  for (int attempt = 0; attempt < 64; ++attempt) {
    const uint32_t n = __atomic_fetch_add(&sequence, 1, __ATOMIC_RELAXED);
    const size_t length =
        format_to(path, sizeof path, "%s/.lunar-%d-%u-%d", directory, static_cast<int>(getpid()), n,
                  static_cast<int>(syscall(SYS_gettid)));
    if (length + 1 >= sizeof path) return -ENAMETOOLONG;
    // A file system without O_DIRECT would make the file and then refuse. So O_DIRECT is set after
    // the name is removed.
    const int fd = open_file(path, (flags & ~O_DIRECT) | O_CREAT | O_EXCL, 0600);
    if (fd == -EEXIST) continue;
    if (fd < 0) return fd;
    if (syscall(SYS_unlinkat, AT_FDCWD, path, 0) == 0 &&
        syscall(SYS_fcntl, fd, F_SETFL, flags & O_DIRECT) == 0)
      return fd;
    const int err = -errno;
    close_file(fd);
    return err;
  }
  return -EEXIST;
}

// linux_dirent64, as getdents64 lays it out: u64 inode, s64 position, u16 length, u8 type, then the
// name.
constexpr size_t kEntryLengthAt = 16, kEntryNameAt = 19;

// Calls visit(name) for each entry until it returns false. 0 or -errno.
template <class Visit>
int for_each_entry(const char* path, Visit visit) {
  const int fd = open_file(path, O_RDONLY | O_DIRECTORY);
  if (fd < 0) return fd;
  alignas(8) char buffer[2048];
  int status = 0;
  for (bool more = true; more;) {
    const long bytes = syscall(SYS_getdents64, fd, buffer, sizeof buffer);
    if (bytes <= 0) {
      status = bytes < 0 ? -errno : 0;
      break;
    }
    for (long at = 0; at < bytes && more;) {
      const char* entry = buffer + at;
      uint16_t length;
      memcpy(&length, entry + kEntryLengthAt, sizeof length);
      at += length;
      if (entry[kEntryNameAt] != '.') more = visit(fd, entry + kEntryNameAt);
    }
  }
  close_file(fd);
  return status;
}

// Where a filter refuses close_range: walks the thread's own table.
void close_listed(const int* keep, unsigned count) {
  for (bool again = true; again;) {
    again = false;
    (void)for_each_entry("/proc/thread-self/fd", [&](int self, const char* name) {
      const int fd = atoi(name);
      bool kept = fd == self;
      for (unsigned i = 0; i < count; ++i) kept |= keep[i] == fd;
      if (kept) return true;
      close_file(fd);
      again = true;  // the listing moved under us: start over until nothing is left to close
      return true;
    });
  }
}

}  // namespace

int open_file(const char* path, int flags, mode_t mode) {
  const int fd =
      static_cast<int>(result(syscall(SYS_openat, AT_FDCWD, path, flags | O_CLOEXEC, mode)));
  const int proc = g_proc_directory.load(std::memory_order_relaxed);
  if ((fd != -ENOENT && fd != -EACCES) || proc < 0 || strncmp(path, kProc, sizeof kProc - 1) != 0)
    return fd;
  // The root directory has changed, and has no /proc. (If the program has reused the descriptor's
  // number, that directory does not contain this entry.)
  return static_cast<int>(
      result(syscall(SYS_openat, proc, path + sizeof kProc - 1, flags | O_CLOEXEC, mode)));
}

int proc_directory() { return g_proc_directory.load(std::memory_order_relaxed); }

bool is_proc_directory(int fd) {
  struct stat status;
  return fd >= 0 && fd == proc_directory() && file_status(fd, &status) == 0 &&
         status.st_dev == g_proc_device.load() && S_ISDIR(status.st_mode);
}

int keep_proc_directory() {
  int fd = g_proc_directory.load(std::memory_order_relaxed);
  if (fd >= 0) return fd;
  fd = static_cast<int>(
      result(syscall(SYS_openat, AT_FDCWD, "/proc", O_PATH | O_DIRECTORY | O_CLOEXEC, 0)));
  if (fd < 0) return -1;
  fd = move_high(fd);
  struct stat status;
  if (file_status(fd, &status) == 0) g_proc_device.store(status.st_dev);
  g_proc_directory.store(fd, std::memory_order_relaxed);
  return fd;
}

int open_at(int directory, const char* path, int flags, mode_t mode) {
  return static_cast<int>(result(syscall(SYS_openat, directory, path, flags, mode)));
}

long control_file(int fd, int command, void* argument) {
  return static_cast<long>(result(syscall(SYS_fcntl, fd, command, argument)));
}

int open_unlinked(const char* directory, int flags) {
  const int fd = open_file(directory, (flags & ~O_CREAT) | O_TMPFILE, 0600);
  // Kernels and file systems without O_TMPFILE return several errors. If the directory refuses for
  // another reason, it also refuses the plain way.
  if (fd >= 0 || (fd != -EOPNOTSUPP && fd != -EISDIR && fd != -ENOENT && fd != -EINVAL)) return fd;
  return create_unlinked(directory, flags);
}

int close_file(int fd) {
  // EINTR leaves the descriptor closed on Linux: never retried.
  return static_cast<int>(result(syscall(SYS_close, fd)));
}

void close_all_but(const int* keep, unsigned count) {
  unsigned from = 0;
  for (;;) {
    unsigned next = UINT32_MAX;  // the smallest descriptor to keep that is >= from
    for (unsigned i = 0; i < count; ++i) {
      if (keep[i] >= 0 && static_cast<unsigned>(keep[i]) >= from &&
          static_cast<unsigned>(keep[i]) < next)
        next = static_cast<unsigned>(keep[i]);
    }
    const unsigned last = next == UINT32_MAX ? UINT32_MAX : next - 1;
    if (next != from) {
#ifdef SYS_close_range
      if (syscall(SYS_close_range, from, last, 0) != 0) return close_listed(keep, count);
#else
      return close_listed(keep, count);
#endif
    }
    if (next == UINT32_MAX) return;
    from = next + 1;
  }
}

int64_t read_at(int fd, void* buffer, size_t bytes, uint64_t offset) {
  return result(syscall(SYS_pread64, fd, buffer, bytes, offset));
}

int64_t write_at(int fd, const void* buffer, size_t bytes, uint64_t offset) {
  return result(syscall(SYS_pwrite64, fd, buffer, bytes, offset));
}

int64_t readv_at(int fd, const iovec* iov, int count, uint64_t offset) {
  // low, high halves: 64-bit kernels use the first
  return result(syscall(SYS_preadv, fd, iov, count, offset, 0));
}

int64_t writev_at(int fd, const iovec* iov, int count, uint64_t offset, int flags) {
  if (flags == 0) return result(syscall(SYS_pwritev, fd, iov, count, offset, 0));
  return result(syscall(SYS_pwritev2, fd, iov, count, offset, 0, flags));
}

int64_t read_some(int fd, void* buffer, size_t bytes) {
  return result(syscall(SYS_read, fd, buffer, bytes));
}
int64_t readv_some(int fd, const iovec* iov, int count) {
  return result(syscall(SYS_readv, fd, iov, count));
}
int64_t write_some(int fd, const void* buffer, size_t bytes) {
  return result(syscall(SYS_write, fd, buffer, bytes));
}

int move_high(int fd) {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return fd;
  const int base = limit.rlim_cur > 1300 ? 1000 : static_cast<int>(limit.rlim_cur / 4 * 3);
  const long high = syscall(SYS_fcntl, fd, F_DUPFD_CLOEXEC, base);
  if (high < 0) return fd;
  close_file(fd);
  return static_cast<int>(high);
}

FileIdentity file_identity(int fd) {
  struct stat status;
  return file_status(fd, &status) < 0 ? FileIdentity{} : FileIdentity{status.st_dev, status.st_ino};
}

bool is_file(int fd, const FileIdentity& identity) {
  return identity.inode != 0 && file_identity(fd) == identity;
}

int make_memory_file(const char* name, uint64_t bytes) {
  if (file_bytes_most() < bytes) return -EFBIG;  // and SIGXFSZ
  const int fd =
      static_cast<int>(result(syscall(SYS_memfd_create, name, MFD_CLOEXEC | MFD_ALLOW_SEALING)));
  if (fd < 0) return fd;
  int rc = set_file_size(fd, bytes);
  if (rc == 0)
    rc = static_cast<int>(result(syscall(SYS_fcntl, fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW)));
  if (rc == 0) return fd;
  close_file(fd);
  return rc;
}

bool is_sealed_memory(int fd) {
  const long seals = syscall(SYS_fcntl, fd, F_GET_SEALS);
  return seals >= 0 && (seals & (F_SEAL_SHRINK | F_SEAL_GROW)) == (F_SEAL_SHRINK | F_SEAL_GROW);
}

namespace {

// A copy of the program's descriptor in the calling service thread's own table. It is kept for a
// moment only: with a lasting copy other processes would not notice that the program has closed it.
// Where a filter refuses the copy, the file is opened again by its path. That fails for a socket,
// and for a file that the program's user may not open.
int copy_of_program(int fd) {
  const int tid = program_thread(true);
  // fails if the first thread has ended
  const auto process = static_cast<int>(syscall(SYS_pidfd_open, tid, 0));
  int copy = -EBADF;
  if (process >= 0) {
    copy = static_cast<int>(result(syscall(SYS_pidfd_getfd, process, fd, 0)));
    close_file(process);
  }
  if (copy >= 0) return copy;
  char path[64];
  format_to(path, sizeof path, "/proc/self/task/%d/fd/%d", tid, fd);
  // O_NONBLOCK: does not wait for a pipe's reader.
  return open_file(path, O_WRONLY | O_APPEND | O_NONBLOCK);
}

// A pipe or terminal that nobody reads stays full: this waits for it for kWaitMs, and then skips it
// for kPassOverNs. A pipe without a reader would raise SIGPIPE.
int64_t write_soon(int fd, const void* buffer, size_t bytes) {
  constexpr int kWaitMs = 100;
  constexpr uint64_t kPassOverNs = 1000000000;
  static std::atomic<uint64_t> full_until{0};
  pollfd one{fd, POLLOUT, 0};
  const int ready =
      poll(&one, 1, now_ns() < full_until.load(std::memory_order_relaxed) ? 0 : kWaitMs);
  if (ready == 0) full_until.store(now_ns() + kPassOverNs, std::memory_order_relaxed);
  if (ready == 0) return -EAGAIN;
  if (ready > 0 && (one.revents & (POLLERR | POLLNVAL)) != 0) return -EPIPE;
  return write_some(fd, buffer, bytes);
}

}  // namespace

int64_t write_to_program(int fd, const void* buffer, size_t bytes) {
  if (in_program_files()) return write_soon(fd, buffer, bytes);
  const int copy = copy_of_program(fd);
  if (copy < 0) return copy;
  int64_t rc = write_soon(copy, buffer, bytes);
  close_file(copy);
  return rc;
}

int read_text(const char* path, char* buffer, size_t size) {
  if (size == 0) return -EINVAL;
  const int fd = open_file(path, O_RDONLY);
  if (fd < 0) return fd;
  size_t have = 0;
  int status = 0;
  while (have + 1 < size) {
    const int64_t n = read_some(fd, buffer + have, size - 1 - have);
    if (n == -EINTR) continue;
    if (n < 0) status = static_cast<int>(n);
    if (n <= 0) break;
    have += static_cast<size_t>(n);
  }
  close_file(fd);
  buffer[have] = '\0';
  return status < 0 ? status : static_cast<int>(have);
}

int visit_lines(const char* path, char* line, size_t size, bool (*visit)(void*, char*),
                void* context) {
  const int fd = open_file(path, O_RDONLY);
  if (fd < 0) return fd;
  char text[1024];
  size_t length = 0;
  int64_t got = 0;
  for (bool more = true; more && ((got = read_some(fd, text, sizeof text)) > 0 || got == -EINTR);)
    for (int64_t i = 0; i < got && more; ++i) {
      if (text[i] != '\n') {
        if (length + 1 < size) line[length++] = text[i];
        continue;
      }
      line[length] = '\0';
      length = 0;
      more = visit(context, line);
    }
  close_file(fd);
  return got < 0 ? static_cast<int>(got) : 0;
}

int visit_entries(const char* directory, bool (*visit)(void* context, const char* name),
                  void* context) {
  return for_each_entry(directory, [&](int, const char* entry) { return visit(context, entry); });
}

int close_numbers(unsigned first, unsigned last, int flags) {
  return static_cast<int>(result(syscall(SYS_close_range, first, last, flags)));
}
int duplicate_to(int from, int to, int flags) {
  return static_cast<int>(result(syscall(SYS_dup3, from, to, flags)));
}

int first_entry(const char* directory, char* name, size_t size) {
  int found = 0;
  const int status = for_each_entry(directory, [&](int, const char* entry) {
    found = static_cast<int>(format_to(name, size, "%s", entry));
    return false;
  });
  return status < 0 ? status : found;
}

int nth_entry(const char* directory, const char* prefix, unsigned n, char* name, size_t size) {
  int found = 0;
  const int status = for_each_entry(directory, [&](int, const char* entry) {
    if (strncmp(entry, prefix, strlen(prefix)) != 0 || n-- != 0) return true;
    found = static_cast<int>(format_to(name, size, "%s", entry));
    return false;
  });
  return status < 0 ? status : found;
}

namespace {

// Growing a file past the process' limit (RLIMIT_FSIZE) becomes an ordinary error and does not end
// the program: SIGXFSZ is blocked, and consumed if it was raised.
class ScopedFileSizeSignal {
 public:
  ScopedFileSizeSignal() {
    sigemptyset(&signal_);
    sigaddset(&signal_, SIGXFSZ);
    sigset_t pending;
    (void)syscall(SYS_rt_sigprocmask, SIG_BLOCK, &signal_, &before_, kSetBytes);
    was_pending_ =
        syscall(SYS_rt_sigpending, &pending, kSetBytes) == 0 && sigismember(&pending, SIGXFSZ) == 1;
  }
  ~ScopedFileSizeSignal() {
    const int error = errno;
    const timespec at_once{0, 0};
    if (!was_pending_) (void)syscall(SYS_rt_sigtimedwait, &signal_, nullptr, &at_once, kSetBytes);
    (void)syscall(SYS_rt_sigprocmask, SIG_SETMASK, &before_, nullptr, kSetBytes);
    errno = error;
  }
  ScopedFileSizeSignal(const ScopedFileSizeSignal&) = delete;
  ScopedFileSizeSignal& operator=(const ScopedFileSizeSignal&) = delete;

 private:
  static constexpr size_t kSetBytes = 8;  // the kernel's
  sigset_t signal_{}, before_{};
  bool was_pending_ = false;
};

}  // namespace

int allocate_space(int fd, uint64_t offset, uint64_t length) {
  ScopedFileSizeSignal held;
  // A timer signal may interrupt each attempt; the progress is kept.
  for (int attempt = 0; attempt < 1000; ++attempt) {
    if (syscall(SYS_fallocate, fd, 0, offset, length) == 0) return 0;
    if (errno != EINTR) return -errno;
  }
  return -EINTR;
}

uint64_t file_bytes_most() {
  rlimit limit{};
  return getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY ? limit.rlim_cur
                                                                                 : UINT64_MAX;
}

int punch_hole(int fd, uint64_t offset, uint64_t length) {
  return static_cast<int>(result(
      syscall(SYS_fallocate, fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, offset, length)));
}

int zero_range(int fd, uint64_t offset, uint64_t length) {
  return static_cast<int>(result(
      syscall(SYS_fallocate, fd, FALLOC_FL_ZERO_RANGE | FALLOC_FL_KEEP_SIZE, offset, length)));
}

int64_t next_hole(int fd, uint64_t offset) {
  return result(syscall(SYS_lseek, fd, offset, SEEK_HOLE));
}
int64_t next_data(int fd, uint64_t offset) {
  return result(syscall(SYS_lseek, fd, offset, SEEK_DATA));
}

int sync_data(int fd) { return static_cast<int>(result(syscall(SYS_fdatasync, fd))); }

int set_file_size(int fd, uint64_t bytes) {
  ScopedFileSizeSignal held;
  return static_cast<int>(result(syscall(SYS_ftruncate, fd, bytes)));
}

int lock_range(int fd, RangeLock kind, uint64_t offset, uint64_t length) {
  struct flock lock = {};
  lock.l_type = kind == RangeLock::kNone ? F_UNLCK : kind == RangeLock::kShared ? F_RDLCK : F_WRLCK;
  lock.l_whence = SEEK_SET;
  lock.l_start = static_cast<off_t>(offset);
  lock.l_len = static_cast<off_t>(length);
  const int status = static_cast<int>(result(syscall(SYS_fcntl, fd, F_OFD_SETLK, &lock)));
  return status == -EACCES ? -EAGAIN : status;
}

int range_locked(int fd, uint64_t offset, uint64_t length) {
  struct flock lock = {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  lock.l_start = static_cast<off_t>(offset);
  lock.l_len = static_cast<off_t>(length);
  const int status = static_cast<int>(result(syscall(SYS_fcntl, fd, F_OFD_GETLK, &lock)));
  return status < 0 ? status : lock.l_type != F_UNLCK;
}

int descriptor_path(int fd, char* path, size_t size) {
  char link[48];
  format_to(link, sizeof link, "/proc/thread-self/fd/%d", fd);
  const int length =
      static_cast<int>(result(syscall(SYS_readlinkat, AT_FDCWD, link, path, size - 1)));
  path[length < 0 ? 0 : length] = 0;
  return length;
}

void set_mode(int fd, mode_t mode) { (void)syscall(SYS_fchmod, fd, mode); }
int set_owner(int fd, uid_t user, gid_t group) {
  return static_cast<int>(result(syscall(SYS_fchown, fd, user, group)));
}

constexpr char kAcl[] = "system.posix_acl_access";
int get_acl(int fd, void* out, size_t size) {
  return static_cast<int>(result(syscall(SYS_fgetxattr, fd, kAcl, out, size)));
}
int set_acl(int fd, const void* acl, size_t bytes) {
  return static_cast<int>(result(syscall(SYS_fsetxattr, fd, kAcl, acl, bytes, 0)));
}
int rename_file(const char* from, const char* to) {
  return static_cast<int>(result(syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0)));
}
// Calls the kernel by number: the program may define functions of these names that take a lock
// (fakeroot), and a fork may be under way. On 64-bit processors the kernel and libc use the same
// layout.
namespace {
int status_at(int directory, const char* path, struct stat* out, int flags) {
  return static_cast<int>(result(syscall(SYS_newfstatat, directory, path, out, flags)));
}
}  // namespace

int link_status(const char* path, struct stat* out) {
  return status_at(AT_FDCWD, path, out, AT_SYMLINK_NOFOLLOW);
}

int open_again(int fd, int more) {
  const long flags = result(syscall(SYS_fcntl, fd, F_GETFL));
  if (flags < 0) return static_cast<int>(flags);
  char path[48];
  // a service thread has a table of its own
  format_to(path, sizeof path, "/proc/thread-self/fd/%d", fd);
  return open_file(path, static_cast<int>(flags & (O_ACCMODE | O_DIRECT)) | more);
}

int random_bytes(void* out, size_t bytes) {
  const long n = result(syscall(SYS_getrandom, out, bytes, 0));
  return n == static_cast<long>(bytes) ? 0 : n < 0 ? static_cast<int>(n) : -EIO;
}

int file_status(int fd, struct stat* out) { return status_at(fd, "", out, AT_EMPTY_PATH); }

bool is_zero_device(int fd) {
  struct stat status;
  return file_status(fd, &status) == 0 && S_ISCHR(status.st_mode) &&
         status.st_rdev == makedev(1, 5);
}

int path_status(const char* path, struct stat* out, int flags) {
  const int error = status_at(AT_FDCWD, path, out, flags),
            proc = error == 0 ? -1 : proc_directory();
  if ((error != -ENOENT && error != -EACCES) || proc < 0 ||
      strncmp(path, kProc, sizeof kProc - 1) != 0)
    return error;
  return status_at(proc, path + sizeof kProc - 1, out, flags);  // as open_file
}

int file_system_type(int fd, uint64_t* magic, uint64_t* free_bytes) {
  struct statfs status;
  if (fstatfs(fd, &status) != 0) return -errno;
  if (magic) *magic = static_cast<uint64_t>(status.f_type);
  if (free_bytes)
    *free_bytes = static_cast<uint64_t>(status.f_bavail) * static_cast<uint64_t>(status.f_bsize);
  return 0;
}

int extent_map_supported(int fd) {
  struct fiemap request = {};  // no room for extents: only asks how many there are
  request.fm_length = ~0ULL;
  return ioctl(fd, FS_IOC_FIEMAP, &request) != 0 ? -errno : 0;
}

int direct_io_align(int fd, uint32_t* bytes) {
#ifdef STATX_DIOALIGN
  struct statx status = {};
  if (syscall(SYS_statx, fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &status) == 0 &&
      (status.stx_mask & STATX_DIOALIGN)) {
    if (status.stx_dio_offset_align == 0)
      return -EINVAL;  // the kernel says: no direct I/O on this file
    *bytes = std::max(status.stx_dio_mem_align, status.stx_dio_offset_align);
    return 0;
  }
#endif
  int sector = 0;
  *bytes = ioctl(fd, BLKSSZGET, &sector) == 0 && sector > 0 ? static_cast<uint32_t>(sector) : 4096;
  return 0;
}

int block_device_size(int fd, uint64_t* bytes) {
  return ioctl(fd, BLKGETSIZE64, bytes) != 0 ? -errno : 0;
}

int block_discard(int fd, uint64_t offset, uint64_t length) {
  uint64_t range[2] = {offset, length};
  return ioctl(fd, BLKDISCARD, range) != 0 ? -errno : 0;
}

int make_pipe(int fds[2], size_t bytes) {
  if (syscall(SYS_pipe2, fds, O_NONBLOCK | O_CLOEXEC) != 0) return -errno;
  // An unprivileged user's pipes share a budget (pipe-user-pages-soft): takes what is left of it.
  for (size_t want = bytes; want >= 4096; want /= 2) {
    const long size = syscall(SYS_fcntl, fds[1], F_SETPIPE_SZ, want);
    if (size >= 0) return static_cast<int>(size);
  }
  const auto size = static_cast<int>(syscall(SYS_fcntl, fds[1], F_GETPIPE_SZ));
  return size > 0 ? size : -errno;
}

int make_eventfd() {
  return static_cast<int>(result(syscall(SYS_eventfd2, 0, O_NONBLOCK | O_CLOEXEC)));
}

void eventfd_signal(int fd) {
  const uint64_t one = 1;
  // EAGAIN: the counter is full, so the reader will wake anyway
  (void)write_some(fd, &one, sizeof one);
}

void eventfd_clear(int fd) {
  uint64_t count;
  (void)read_some(fd, &count, sizeof count);
}

int epoll_set(int epoll, int fd, uint32_t events, bool add) {
  epoll_event event{};
  event.events = events;
  event.data.fd = fd;
  return static_cast<int>(
      result(syscall(SYS_epoll_ctl, epoll, add ? EPOLL_CTL_ADD : EPOLL_CTL_MOD, fd, &event)));
}

int epoll_remove(int epoll, int fd) {
  return static_cast<int>(result(syscall(SYS_epoll_ctl, epoll, EPOLL_CTL_DEL, fd, nullptr)));
}

int poll_readable(const int* fds, unsigned count, int64_t timeout_ns, uint64_t* ready_mask) {
  if (count > 64) return -EINVAL;
  pollfd entries[64];
  for (unsigned i = 0; i < count; ++i) entries[i] = {fds[i], POLLIN, 0};
  timespec time = {};
  if (timeout_ns > 0) time = {timeout_ns / 1000000000, timeout_ns % 1000000000};
  const long n = syscall(SYS_ppoll, entries, count, timeout_ns < 0 ? nullptr : &time, nullptr, 8);
  if (ready_mask) *ready_mask = 0;
  if (n < 0) return -errno;
  if (ready_mask) {
    for (unsigned i = 0; i < count; ++i) *ready_mask |= entries[i].revents ? uint64_t{1} << i : 0;
  }
  return static_cast<int>(n);
}

}  // namespace lunar::sys
