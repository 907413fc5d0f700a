// SPDX-License-Identifier: Apache-2.0
// /proc look-ups. See proc.h. Lunar's own descriptors (below 65536) are recorded with their files,
// because the program may close one and open its own file under that number.
#include "sys/proc.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <atomic>
#include <bit>
#include <initializer_list>

#include "base/format.h"
#include "base/units.h"
#include "sys/arena.h"
#include "sys/fatal.h"
#include "sys/file.h"
#include "sys/kernel_call.h"
#include "sys/mem.h"
#include "sys/memory_copy.h"
#include "sys/thread.h"

namespace lunar::sys {
namespace {

constexpr char kServiceThreads[] = "lunar-";

std::atomic<uint64_t> g_own[65536 / 64];
std::atomic<uint32_t> g_own_files[65536];  // file_id; as few pages of it as there are such numbers
// With the copy of the memory, because a forked child has nothing pinned.
struct OwnPinned {
  uint32_t copy;
  int32_t kib;
};
std::atomic<OwnPinned> g_pinned{};
std::atomic<uint32_t> g_making{0}, g_made{0};  // descriptors begun, and done with

struct DirectoryEntry {  // struct linux_dirent64
  uint64_t inode;
  int64_t offset;
  unsigned short length;
  unsigned char type;
  char name[1];  // as long as it needs
};

// Reads a link below /proc, also from another root directory, like path_status.
ssize_t read_link(const char* path, char* target, size_t size) {
  const ssize_t n = readlink(path, target, size);
  const int proc = proc_directory();
  return n >= 0 || proc < 0 ? n : readlinkat(proc, path + sizeof "/proc/" - 1, target, size);
}

// A hash of device and inode. Each ring has its own inode (5.16).
uint32_t file_id(const struct stat& status) {
  const uint64_t mixed =
      (status.st_ino + status.st_dev * 0x9E3779B97F4A7C15u) * 0xBF58476D1CE4E5B9u;
  return static_cast<uint32_t>(mixed >> 32);
}

// Whether the descriptor's file is the one that was recorded under that number.
bool is_own_file_there(const char* directory, const char* name, int fd) {
  char path[96];
  struct stat status;
  format_to(path, sizeof path, "%s/%s", directory, name);
  return path_status(path, &status) == 0 &&
         g_own_files[fd].load(std::memory_order_relaxed) == file_id(status);
}

// The file systems that may pass a program's buffer to the server (or to another program, which
// writes into it) without O_DIRECT: FUSE with direct_io, and 9p and CIFS without a cache. Nothing
// visible shows which of their files do this.
bool may_be_unbuffered(const char* type) {
  for (const char* one : {"fuse", "fuseblk", "virtiofs", "9p", "cifs", "smb3"})
    if (strcmp(type, one) == 0) return true;
  return strncmp(type, "fuse.", 5) == 0;
}

enum class MountKind : uint8_t { kBuffered, kUnbuffered, kHidden };

// Parses a line of mountinfo: ID PARENT MAJOR:MINOR ROOT PLACE OPTIONS... - TYPE SOURCE OPTIONS
MountKind kind_of_line(char* line, unsigned long long mount) {
  char* end = nullptr;
  if (strtoull(line, &end, 10) != mount || end == line) return MountKind::kHidden;
  char* type = strstr(end, " - ");
  if (type == nullptr) return MountKind::kUnbuffered;  // a place with a long name
  type += 3;
  type[strcspn(type, " ")] = 0;
  return may_be_unbuffered(type) ? MountKind::kUnbuffered : MountKind::kBuffered;
}

// Makes no call that the server of the file system would have to answer. kHidden: a mount of
// another namespace or outside of the process' root directory, or one that only the kernel uses.
MountKind kind_of_mount(unsigned long long mount) {
  char line[1024];
  MountKind kind = MountKind::kHidden;
  // Not /proc/self: the first thread may have ended.
  (void)each_line("/proc/thread-self/mountinfo", line, sizeof line, [&](char* text) {
    kind = kind_of_line(text, mount);
    return kind == MountKind::kHidden;
  });
  return kind;
}

// For a file of a hidden mount: the best answer without a call to a server. path: of its
// descriptor.
bool hidden_may_be_unbuffered(const char* path, const char* name) {
  for (const char* memory : {"/memfd:", "/secretmem"})
    if (strncmp(name, memory, strlen(memory)) == 0) return false;
  struct stat status;
  const int rc = path_status(path, &status, AT_STATX_DONT_SYNC);
  if (rc < 0)
    return rc != -ENOENT;  // -EACCES: FUSE tells its user only. -ENOENT: it has been closed
  return S_ISREG(status.st_mode) && major(status.st_dev) == 0;
}

// The number behind a name in fdinfo; 0: it is not there.
unsigned long long fdinfo_number(const char* text, const char* name, int base) {
  const char* at = strstr(text, name);
  return at == nullptr ? 0 : strtoull(at + strlen(name), nullptr, base);
}

// The mounts of the files seen in one walk of a table: few, and mostly the same.
struct SeenMounts {
  static constexpr unsigned kSeen = 8;
  struct {
    unsigned long long id = 0;
    MountKind kind = MountKind::kBuffered;
  } mounts[kSeen];
  unsigned next = 0;
  MountKind kind_of(unsigned long long id) {
    for (const auto& mount : mounts)
      if (mount.id == id) return mount.kind;
    return (mounts[next++ % kSeen] = {id, kind_of_mount(id)}).kind;
  }
};

bool one_may_pin(const char* directory, const char* name, SeenMounts& mounts) {
  char path[96], target[128];
  format_to(path, sizeof path, "%s/%s", directory, name);
  ssize_t n = read_link(path, target, sizeof target - 1);
  if (n <= 0) return false;
  target[n] = 0;
  if (strncmp(target, "anon_inode:[io_uring]", 21) == 0) return true;
  if (strncmp(target, "/dev/infiniband/", 16) == 0 || strncmp(target, "/dev/vfio/", 10) == 0)
    return true;
  if (strncmp(target, "/dev/nvidia", 11) == 0 || strcmp(target, "/dev/kfd") == 0) return true;
  // SCSI generic, NVMe (ioctls), video capture: their drivers pin the buffers of a call, or map
  // them for long, by an ioctl.
  for (const char* node : {"/dev/sg", "/dev/bsg/", "/dev/nvme", "/dev/ng", "/dev/video"})
    if (strncmp(target, node, strlen(node)) == 0) return true;
  if (target[0] != '/') return false;
  char text[256];
  char* slash = strstr(path, "/fd/");
  if (slash == nullptr) return false;
  char info[96];
  *slash = 0;
  format_to(info, sizeof info, "%s/fdinfo/%s", path, slash + 4);
  if (read_text(info, text, sizeof text) < 0) return false;
  const unsigned long long flags = fdinfo_number(text, "flags:", 8),
                           mount = fdinfo_number(text, "mnt_id:", 10);
  if ((flags & O_DIRECT) != 0) return true;
  if (mount == 0 || (flags & O_ACCMODE) == O_WRONLY) return false;
  const MountKind kind = mounts.kind_of(mount);
  *slash = '/';
  return kind == MountKind::kUnbuffered ||
         (kind == MountKind::kHidden && hidden_may_be_unbuffered(path, target));
}

// Whether `is(name, number)` holds for an entry of `path` that is a number.
template <class Is>
bool any_numbered(const char* path, Is is) {
  int directory = open_file(path, O_RDONLY | O_DIRECTORY);
  if (directory < 0) return false;
  alignas(8) char buffer[4096];
  bool found = false;
  while (!found) {
    const long got = syscall(SYS_getdents64, directory, buffer, sizeof buffer);
    if (got <= 0) break;
    for (long at = 0; at < got && !found;) {
      auto* entry = reinterpret_cast<DirectoryEntry*>(buffer + at);
      at += entry->length;
      if (entry->name[0] < '0' || entry->name[0] > '9') continue;
      int number = 0;
      for (const char* p = entry->name; *p != 0; ++p) number = number * 10 + (*p - '0');
      found = is(entry->name, number);
    }
  }
  close_file(directory);
  return found;
}

uint64_t hexadecimal(const char** at) {
  uint64_t value = 0;
  for (;; ++*at) {
    const char c = **at;
    const int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
    if (digit < 0) return value;
    value = value * 16 + static_cast<unsigned>(digit);
  }
}

}  // namespace

int mapping_of(const void* address, MappedRange* out) {
  // Holds the needed part of a line: "start-end rwxp offset device inode path"; a path begins in
  // column 73.
  char line[80];
  bool found = false;
  const int rc = each_line("/proc/self/maps", line, sizeof line, [&](const char* at) {
    const uint64_t start = hexadecimal(&at), end = *at == '-' ? hexadecimal(&++at) : 0,
                   wanted = reinterpret_cast<uintptr_t>(address);
    if (wanted < start) return false;  // they come in order
    if (wanted >= end || at[0] != ' ') return true;
    const char* path = strpbrk(at, "/[");
    *out = {start, end,
            (at[1] == 'r' ? PROT_READ : 0) | (at[2] == 'w' ? PROT_WRITE : 0) |
                (at[3] == 'x' ? PROT_EXEC : 0),
            at[4] == 'p' && (path == nullptr || strncmp(path, "[anon", 5) == 0)};
    found = true;
    return false;
  });
  return rc < 0 ? rc : found ? 0 : -ENOMEM;
}

namespace {

constexpr uint64_t kThreadLookNs = 10000000;
std::atomic<uint64_t> g_program_thread{0};  // process id << 32 | thread id
std::atomic<uint64_t> g_thread_looked_ns{0};

// False for a zombie, such as the main thread after pthread_exit: its descriptor table is gone.
// False also for a thread that the kernel made for an io_uring (iou-wrk-TID, iou-sqp-TID): it has
// the table of the ring's owner.
bool runs_program_code(int tid) {
  char path[48], text[256];
  format_to(path, sizeof path, "/proc/self/task/%d/stat", tid);
  if (read_text(path, text, sizeof text) < 0) return false;
  const char *name = strchr(text, '('), *p = strrchr(text, ')');
  if (name == nullptr || strncmp(name, "(iou-", 5) == 0) return false;
  return p != nullptr && p[1] == ' ' && p[2] != 'Z' && p[2] != 'X';
}

}  // namespace

int program_thread(bool fresh) {
  const int pid = static_cast<int>(getpid());
  const uint64_t known = g_program_thread.load(std::memory_order_relaxed), now = now_ns();
  int tid = known >> 32 == static_cast<uint64_t>(pid) ? static_cast<int>(known & UINT32_MAX) : pid;
  if (!fresh && known != 0 &&
      now - g_thread_looked_ns.load(std::memory_order_relaxed) < kThreadLookNs)
    return tid;
  if (!runs_program_code(tid))
    (void)any_numbered("/proc/self/task", [&](const char*, int one) {
      if (has_own_files(one) || !runs_program_code(one)) return false;
      tid = one;
      return true;
    });
  g_program_thread.store(static_cast<uint64_t>(pid) << 32 | static_cast<uint32_t>(tid),
                         std::memory_order_relaxed);
  g_thread_looked_ns.store(now, std::memory_order_relaxed);
  return tid;
}

const char* program_fd_directory(char* buffer, size_t size) {
  format_to(buffer, size, "/proc/self/task/%d/fd", program_thread());
  return buffer;
}

uint64_t directory_size(const char* path) {
  static std::atomic<uint64_t> changing{1u << 30};
  struct stat status;
  if (path_status(path, &status) != 0) return changing.fetch_add(1);
  return static_cast<uint64_t>(status.st_size);
}

Pinning descriptors_may_pin(const char* fd_directory, int* which) {
  SeenMounts mounts;
  const uint32_t made = g_made.load(std::memory_order_acquire);
  const bool found = any_numbered(fd_directory, [&](const char* name, int fd) {
    *which = fd;
    const bool is_ours = is_own_descriptor(fd) && is_own_file_there(fd_directory, name, fd);
    return !is_ours && one_may_pin(fd_directory, name, mounts);
  });
  if (!found) return Pinning::kNo;
  return g_making.load(std::memory_order_acquire) == made ? Pinning::kYes : Pinning::kUnsure;
}

bool file_may_be_unbuffered(int fd) {
  struct stat status;
  struct statfs system;
  // File systems on a block device have its number as st_dev, except FUSE file systems such as
  // ntfs; a walk of the table finds those.
  if (file_status(fd, &status) < 0 || !S_ISREG(status.st_mode) || major(status.st_dev) != 0)
    return false;
  if (fstatfs(fd, &system) != 0) return true;  // a server that does not answer this
  for (const unsigned long magic : {0x65735546ul /* FUSE */, 0x01021997ul /* 9p */,
                                    0xFF534D42ul /* CIFS */, 0xFE534D42ul /* SMB2 */})
    if ((static_cast<unsigned long>(system.f_type) & 0xFFFFFFFFul) == magic) return true;
  return false;
}

MakingDescriptor::MakingDescriptor() { g_making.fetch_add(1, std::memory_order_acq_rel); }
MakingDescriptor::~MakingDescriptor() { g_made.fetch_add(1, std::memory_order_acq_rel); }

bool has_thread_named(const char* prefix) {
  return any_numbered("/proc/self/task", [&](const char* name, int) {
    char path[64], text[64];
    format_to(path, sizeof path, "/proc/self/task/%s/comm", name);
    return read_text(path, text, sizeof text) > 0 && strncmp(text, prefix, strlen(prefix)) == 0;
  });
}

bool this_thread_is_named(const char* prefix) {
  char name[16] = "";
  return prctl(PR_GET_NAME, name) == 0 && strncmp(name, prefix, strlen(prefix)) == 0;
}

int other_live_threads() {
  const int self = static_cast<int>(syscall(SYS_gettid));
  int seen = 0, live = 0;
  (void)any_numbered("/proc/self/task", [&](const char*, int thread) {
    ++seen;
    if (thread != self && runs_program_code(thread)) ++live;
    return false;
  });
  return seen == 0 ? -ENOENT : live;
}

void end_as_first_thread() {
  char path[48], text[1024];
  const int pid = static_cast<int>(getpid());
  format_to(path, sizeof path, "/proc/self/task/%d/stat", pid);
  uint64_t status = 0;  // as wait() gives it: the last field
  const char* last = read_text(path, text, sizeof text) > 0 ? strrchr(text, ' ') : nullptr;
  if (last != nullptr) (void)parse_digits(last + 1, &status);
  if (const int number = status & 0x7f; number != 0) {
    sigset_t only;
    sigemptyset(&only);
    sigaddset(&only, number);
    default_signal(number);
    syscall(SYS_tgkill, pid, thread_id(), number);
    pthread_sigmask(SIG_UNBLOCK, &only, nullptr);
  }
  syscall(SYS_exit_group, static_cast<int>(status >> 8 & 0xff));
  for (;;) fatal_if_refused(-errno, "exit_group");
}

// A line "key:   N kB" of a file, in bytes.
static int64_t bytes_of_line(const char* path, const char* key) {
  char text[4096];
  if (const int rc = read_text(path, text, sizeof text); rc < 0) return rc;
  const size_t length = strlen(key);
  const char* line = text;
  while (line != nullptr && (strncmp(line, key, length) != 0 || line[length] != ':')) {
    line = strchr(line, '\n');
    if (line != nullptr) ++line;
  }
  if (line == nullptr) return -ENOENT;
  for (line += length + 1; *line == ' ' || *line == '\t'; ++line) {}
  uint64_t kib = 0;
  (void)parse_digits(line, &kib);
  return static_cast<int64_t>(kib * kKiB);
}

int64_t own_status_bytes(const char* key) { return bytes_of_line("/proc/self/status", key); }
uint64_t machine_memory_bytes(const char* key) {
  const int64_t bytes = bytes_of_line("/proc/meminfo", key);
  return bytes < 0 ? 0 : static_cast<uint64_t>(bytes);
}

uint64_t pid_namespace() {
  struct stat status;
  return path_status("/proc/self/ns/pid", &status) == 0 ? status.st_ino : 0;
}

bool thread_lives(int thread_id) {
  return syscall(SYS_tgkill, getpid(), thread_id, 0) == 0 || errno != ESRCH;
}

bool process_lives(int process_id) { return kill(process_id, 0) == 0 || errno != ESRCH; }

void note_own_descriptor(int fd, bool add) {
  if (fd < 0 || fd >= 65536) return;
  uint64_t bit = uint64_t{1} << (fd % 64);
  if (struct stat status; add && file_status(fd, &status) == 0)
    g_own_files[fd].store(file_id(status), std::memory_order_relaxed);
  if (add)
    g_own[fd / 64].fetch_or(bit, std::memory_order_relaxed);
  else
    g_own[fd / 64].fetch_and(~bit, std::memory_order_relaxed);
}

bool is_own_descriptor(int fd) {
  return fd >= 0 && fd < 65536 && (g_own[fd / 64].load(std::memory_order_relaxed) >> (fd % 64) & 1);
}

int next_own_descriptor(int from) {
  if (from < 0) from = 0;
  for (unsigned word = static_cast<unsigned>(from) / 64; word < 65536 / 64; ++word) {
    uint64_t bits = g_own[word].load(std::memory_order_relaxed);
    if (word == static_cast<unsigned>(from) / 64) bits &= ~uint64_t{0} << (from % 64);
    if (bits != 0) return static_cast<int>(word * 64) + std::countr_zero(bits);
  }
  return -1;
}

void note_own_pinned(int64_t bytes) {
  const uint32_t copy = memory_copy();
  const auto kib = static_cast<int32_t>(bytes / static_cast<int64_t>(kKiB));
  OwnPinned seen = g_pinned.load(std::memory_order_relaxed);
  while (!g_pinned.compare_exchange_weak(seen, {copy, (seen.copy == copy ? seen.kib : 0) + kib},
                                         std::memory_order_relaxed)) {}
}

uint64_t own_pinned_bytes() {
  const OwnPinned now = g_pinned.load(std::memory_order_relaxed);
  return now.copy == memory_copy() ? static_cast<uint64_t>(now.kib) * kKiB : 0;
}

int process_number(const char* name) {
  uint64_t pid = 0;
  return parse_numbers(name, &pid, 1) && pid <= INT32_MAX ? static_cast<int>(pid) : 0;
}

void visit_descriptor_tables(int pid, const char* kind, bool (*visit)(void*, const char*),
                             void* context) {
  char path[64];
  format_to(path, sizeof path, "/proc/%d/%s", pid, kind);
  if (!visit(context, path)) return;
  format_to(path, sizeof path, "/proc/%d/task", pid);
  (void)each_entry(path, [&](const char* thread) {
    char name[64], text[32];
    format_to(name, sizeof name, "/proc/%d/task/%s/comm", pid, thread);
    if (read_text(name, text, sizeof text) <= 0 ||
        strncmp(text, kServiceThreads, strlen(kServiceThreads)) != 0)
      return true;
    format_to(name, sizeof name, "/proc/%d/task/%s/%s", pid, thread, kind);
    return visit(context, name);
  });
}

}  // namespace lunar::sys
