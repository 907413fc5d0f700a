// SPDX-License-Identifier: Apache-2.0
// Memory system calls, straight to the kernel: the libc names of most of them are interposed by
// adapters/preload. Threading: any thread; the probe results and the kept files are atomics.
// Allocates nothing.
#include "sys/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/sysinfo.h>
#include <sys/uio.h>
#include <unistd.h>

#include <atomic>

#include "base/format.h"
#include "sys/fatal.h"
#include "sys/file.h"
#include "sys/memory_constants.h"
#include "sys/memory_copy.h"

#ifndef SYS_process_madvise
#define SYS_process_madvise 440
#endif

namespace lunar::sys {
namespace {

int result_of(long rc) { return rc < 0 ? -errno : 0; }

// "This process" for process_madvise: the calling thread (PIDFD_SELF_THREAD, 6.14). It is not a
// descriptor, so the program can neither close it nor reuse its number. And the calling thread
// lives; the main thread may have ended.
constexpr int kPidfdSelf = -10000;

long advise_self(const iovec* ranges, unsigned count, int advice) {
  return syscall(SYS_process_madvise, kPidfdSelf, ranges, static_cast<unsigned long>(count), advice,
                 0U);
}

// 0 unknown, 1 native, 2 not, per advice; indexed by advice value (all are < 32).
std::atomic<uint8_t> g_vector_support[32];

// Files of /proc/self, opened while that was allowed. The program may have closed one and reused
// its number.
struct KeptFile {
  const char* path;
  std::atomic<int> fd{-1};
  std::atomic<uint32_t> copy{0};  // of the memory that it tells of (memory_copy.h)
  std::atomic<uint64_t> device{0}, inode{0};
};
constinit KeptFile g_kept_files[] = {{"/proc/self/pagemap"}, {"/proc/self/mem"}};

KeptFile& kept_file(OwnFile which) { return g_kept_files[static_cast<unsigned>(which)]; }

bool is_kept(const KeptFile& file, int fd) {
  struct stat status;
  return file_status(fd, &status) == 0 && status.st_dev == file.device.load() &&
         status.st_ino == file.inode.load();
}

int kept_number(OwnFile which) {
  const KeptFile& file = kept_file(which);
  const int fd = file.fd.load();
  return fd >= 0 && file.copy.load() == memory_copy() && is_kept(file, fd) ? fd : -1;
}

// For a process that may not open pagemap (it has dropped root). mincore does not report pages in
// swap space, so this works only without swap space.
int present_by_mincore(const void* address, size_t pages, uint8_t* out, int refusal) {
  struct sysinfo host;
  if (sysinfo(&host) != 0 || host.totalswap != 0) return refusal;
  if (syscall(SYS_mincore, address, pages * page_bytes(), out) != 0) return -errno;
  for (size_t i = 0; i < pages; ++i) out[i] &= 1;
  return 0;
}

int64_t advise_runs(const iovec* ranges, unsigned count, int advice) {
  int64_t done = 0;
  for (unsigned i = 0; i < count;) {
    char* base = static_cast<char*>(ranges[i].iov_base);
    size_t bytes = ranges[i].iov_len;
    unsigned next = i + 1;
    while (next < count && static_cast<char*>(ranges[next].iov_base) == base + bytes)
      bytes += ranges[next++].iov_len;
    int rc = advise(base, bytes, advice);
    if (rc < 0) return done ? done : rc;
    done += static_cast<int64_t>(bytes);
    i = next;
  }
  return done;
}

}  // namespace

size_t page_bytes() {
  static const size_t bytes = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  return bytes;
}

int map(void* hint, size_t bytes, int prot, int flags, int fd, int64_t offset, void** out) {
#if defined(__SANITIZE_THREAD__)
  // ThreadSanitizer intercepts only libc's functions. Without them it would report races with
  // accesses to a former mapping of the address.
  long rc = reinterpret_cast<long>(mmap(hint, bytes, prot, flags, fd, offset));
#elif defined(SYS_mmap)
  long rc = syscall(SYS_mmap, hint, bytes, prot, flags, fd, offset);
#else
  long rc = syscall(SYS_mmap2, hint, bytes, prot, flags, fd, offset / 4096);
#endif
  if (rc == -1) return -errno;
  *out = reinterpret_cast<void*>(rc);
  return 0;
}

#if defined(__SANITIZE_THREAD__)
int unmap(void* address, size_t bytes) { return result_of(munmap(address, bytes)); }
#else
int unmap(void* address, size_t bytes) { return result_of(syscall(SYS_munmap, address, bytes)); }
#endif
int protect(void* address, size_t bytes, int prot) {
  return result_of(syscall(SYS_mprotect, address, bytes, prot));
}
int advise(void* address, size_t bytes, int advice) {
  return result_of(syscall(SYS_madvise, address, bytes, advice));
}

// Asks with calls that change nothing; they return ENOMEM if there is a hole.
bool is_mapped(void* address, size_t bytes) {
  if (syscall(SYS_msync, address, bytes, MS_ASYNC) == 0) return true;
  if (!is_refusal(-errno)) return false;
  unsigned char resident[256];
  const size_t most = sizeof resident * page_bytes();
  for (size_t done = 0; done < bytes; done += most)
    if (syscall(SYS_mincore, static_cast<char*>(address) + done,
                bytes - done < most ? bytes - done : most, resident) != 0)
      return false;
  return true;
}

int claim(void* address, size_t bytes) {
  if (is_mapped(address, bytes)) return -EEXIST;
  void* at = nullptr;
  const int rc = map(address, bytes, PROT_NONE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0, &at);
  if (rc == 0 && at != address) {  // before 4.17 the flag is not known
    (void)unmap(at, bytes);
    return -EBUSY;
  }
  return rc == -EEXIST ? -EBUSY : rc;
}

int sync_range(void* address, size_t bytes) {
  const size_t ahead = reinterpret_cast<uintptr_t>(address) % page_bytes();
  return result_of(syscall(SYS_msync, static_cast<char*>(address) - ahead, bytes + ahead, MS_SYNC));
}

int remap(void* old_address, size_t old_bytes, size_t new_bytes, int flags, void* new_address,
          void** out) {
  long rc = syscall(SYS_mremap, old_address, old_bytes, new_bytes, flags, new_address);
  if (rc == -1) return -errno;
  *out = reinterpret_cast<void*>(rc);
  return 0;
}

bool advise_vector_is_native(int advice) {
  auto& support = g_vector_support[advice & 31];
  uint8_t known = support.load(std::memory_order_relaxed);
  if (known == 0) {
    // Advises a page of its own, to find out whether this kernel knows the constant and accepts the
    // advice.
    void* page = nullptr;
    known = 2;
    if (map(nullptr, page_bytes(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0,
            &page) == 0) {
      const iovec probe{page, page_bytes()};
      if (advise_self(&probe, 1, advice) == static_cast<long>(page_bytes())) known = 1;
      (void)unmap(page, page_bytes());
    }
    support.store(known, std::memory_order_relaxed);
  }
  return known == 1;
}

int64_t advise_vector(const iovec* ranges, unsigned count, int advice) {
  if (!advise_vector_is_native(advice)) return advise_runs(ranges, count, advice);
  long rc = advise_self(ranges, count, advice);
  if (rc >= 0) return rc;
  rc = -errno;
  if (!is_refusal(rc)) return rc;
  // Either a filter was installed after the probe, or the memory may not be advised (mseal). The
  // other call shows which.
  const int64_t done = advise_runs(ranges, count, advice);
  if (done > 0) g_vector_support[advice & 31].store(2, std::memory_order_relaxed);
  return done;
}

namespace {

// Drops one page: a failed call has dropped nothing. A page that is not mapped counts as dropped.
bool drop_page(void* page) {
  for (unsigned attempt = 0;; ++attempt) {
    int rc = advise(page, page_bytes(), MADV_DONTNEED);
    if (rc != -EAGAIN || attempt == 100) return rc == 0 || rc == -ENOMEM;
  }
}

}  // namespace

unsigned drop_pages(const iovec* pages, unsigned count, bool* dropped) {
  unsigned total = 0;
  for (unsigned at = 0; at < count;) {
    int64_t rc = advise_vector(pages + at, count - at, MADV_DONTNEED);
    for (unsigned n = rc > 0 ? static_cast<unsigned>(static_cast<uint64_t>(rc) / page_bytes()) : 0;
         n > 0; --n, ++total)
      dropped[at++] = true;
    if (at == count) break;
    dropped[at] = drop_page(pages[at].iov_base);
    if (dropped[at++]) ++total;
  }
  return total;
}

int64_t splice_pages(int pipe_write_fd, const iovec* ranges, unsigned count) {
  long rc = syscall(SYS_vmsplice, pipe_write_fd, ranges, static_cast<unsigned long>(count),
                    2U /* SPLICE_F_NONBLOCK */);
  return rc < 0 ? -errno : rc;
}

bool is_own_file(int fd) {
  return fd >= 0 && (fd == kept_number(OwnFile::kPagemap) || fd == kept_number(OwnFile::kMemory));
}

int keep_own_file(OwnFile which) {
  KeptFile& file = kept_file(which);
  const int before = file.fd.load();
  const bool inherited = before >= 0 && file.copy.load() != memory_copy();
  if (before >= 0 && !inherited && kept_number(which) == before) return before;
  if (inherited && is_kept(file, before))
    close_file(before);  // the parent's: it would tell of the parent's memory
  file.fd.store(-1);
  int fd = open_file(file.path, O_RDONLY);
  if (fd < 0) return -1;
  fd = move_high(fd);
  struct stat status;
  if (file_status(fd, &status) < 0) return -1;
  file.device.store(status.st_dev);
  file.inode.store(status.st_ino);
  file.copy.store(memory_copy());
  file.fd.store(fd);
  return fd;
}

int present_pages(const void* address, size_t pages, uint8_t* out) {
  const int kept = kept_number(OwnFile::kPagemap);
  const int fd = kept >= 0 ? kept : open_file("/proc/self/pagemap", O_RDONLY);
  if (fd < 0) return present_by_mincore(address, pages, out, fd);
  constexpr size_t kEntries = 64;  // the stack may be a signal handler's
  uint64_t entries[kEntries];
  uint64_t first = reinterpret_cast<uintptr_t>(address) / page_bytes();
  int rc = 0;
  for (size_t done = 0; done < pages && rc == 0;) {
    size_t want = pages - done < kEntries ? pages - done : kEntries;
    long got = syscall(SYS_pread64, fd, entries, want * 8, static_cast<long>((first + done) * 8));
    if (got <= 0) {
      rc = got < 0 ? -errno : -EIO;
      break;
    }
    size_t n = static_cast<size_t>(got) / 8;
    for (size_t i = 0; i < n; ++i)
      out[done + i] = (entries[i] >> 62) != 0;  // in DRAM, or in the kernel's own swap
    done += n;
  }
  if (kept < 0) close_file(fd);
  return rc;
}

int open_own_file(OwnFile which) {
  const int kept = kept_number(which);
  if (kept < 0) return open_file(kept_file(which).path, O_RDONLY);
  const long fd = syscall(SYS_fcntl, kept, F_DUPFD_CLOEXEC, 0L);
  return fd < 0 ? -errno : static_cast<int>(fd);
}

int read_memory(int memory, const void* from, void* to, size_t bytes) {
  const long n = syscall(SYS_pread64, memory, to, bytes, reinterpret_cast<long>(from));
  return n < 0 ? -errno : static_cast<size_t>(n) == bytes ? 0 : -EIO;
}

int open_unreadable_memory() {
  const int memory = open_own_file(OwnFile::kMemory);
  if (memory < 0) return memory;
  void* page = nullptr;
  char byte;
  int rc = map(nullptr, page_bytes(), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0,
               &page);
  if (rc == 0) {
    rc = read_memory(memory, page, &byte, 1);
    (void)unmap(page, page_bytes());
  }
  if (rc == 0) return memory;
  close_file(memory);
  return rc;
}

int page_facts(int pagemap, const void* const* pages, unsigned count, PageFacts* out) {
  for (unsigned i = 0; i < count;) {
    uint64_t entries[64];
    const uint64_t first = reinterpret_cast<uintptr_t>(pages[i]) / page_bytes();
    unsigned together = 1;  // of those that follow, in one read
    auto number = [&](unsigned k) { return reinterpret_cast<uintptr_t>(pages[k]) / page_bytes(); };
    while (i + together < count && number(i + together) > first &&
           number(i + together) < first + 64)
      ++together;
    const size_t want = (number(i + together - 1) - first + 1) * 8;
    const long got = syscall(SYS_pread64, pagemap, entries, want, static_cast<long>(first * 8));
    if (got != static_cast<long>(want)) return got < 0 ? -errno : -EIO;
    for (unsigned k = i; k < i + together; ++k) {
      const uint64_t entry = entries[number(k) - first];
      out[k] = {(entry >> 62) != 0, (entry >> 56 & 1) != 0, (entry >> 57 & 1) != 0};
    }
    i += together;
  }
  return 0;
}

int peek(const void* from, void* to, size_t bytes) {
  const iovec here{to, bytes}, there{const_cast<void*>(from), bytes};
  const ssize_t n = process_vm_readv(getpid(), &here, 1, &there, 1, 0);
  return n < 0 ? -errno : static_cast<size_t>(n) == bytes ? 0 : -EFAULT;
}

int poke(void* to, const void* from, size_t bytes) {
  const iovec here{const_cast<void*>(from), bytes}, there{to, bytes};
  const long n = syscall(SYS_process_vm_writev, getpid(), &here, 1L, &there, 1L, 0L);
  return n < 0 ? -errno : static_cast<size_t>(n) == bytes ? 0 : -EFAULT;
}

namespace {
bool has_limit(decltype(RLIMIT_AS) which) {
  rlimit limit{};
  return getrlimit(which, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
}
}  // namespace

uint64_t address_space_most() {
  rlimit limit{};
  return getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY ? limit.rlim_cur
                                                                              : UINT64_MAX;
}

bool commits_are_counted() {
  char mode[8];
  return read_text("/proc/sys/vm/overcommit_memory", mode, sizeof mode) > 0 && mode[0] == '2';
}

bool data_is_limited() { return has_limit(RLIMIT_DATA); }

bool memory_is_limited() { return has_limit(RLIMIT_AS) || has_limit(RLIMIT_DATA); }

const char* memory_limit() {
  const bool by_space = has_limit(RLIMIT_AS), by_data = has_limit(RLIMIT_DATA);
  return by_space == by_data ? "ulimit -v, ulimit -d" : by_data ? "ulimit -d" : "ulimit -v";
}

int lock_memory(const void* address, size_t bytes, unsigned flags) {
  return result_of(flags == 0 ? syscall(SYS_mlock, address, bytes)
                              : syscall(SYS_mlock2, address, bytes, flags));
}
int unlock_memory(const void* address, size_t bytes) {
  return result_of(syscall(SYS_munlock, address, bytes));
}
int lock_all(int flags) { return result_of(syscall(SYS_mlockall, flags)); }
int unlock_all() { return result_of(syscall(SYS_munlockall)); }

bool may_lock_memory() {
  rlimit limit{};
  if (getrlimit(RLIMIT_MEMLOCK, &limit) == 0 && limit.rlim_cur == RLIM_INFINITY) return true;
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct has[_LINUX_CAPABILITY_U32S_3]{};
  return syscall(SYS_capget, &header, has) == 0 && (has[0].effective & 1u << CAP_IPC_LOCK) != 0;
}

ssize_t advise_process(int pidfd, const iovec* ranges, size_t count, int advice, unsigned flags) {
  return syscall(SYS_process_madvise, pidfd, ranges, count, advice, flags);
}

bool pidfd_is_self(int pidfd) {
  // linux/pidfd.h, 6.14 and 6.15
  constexpr int kSelfThread = -10000, kSelfGroup = -10001, kSelfOld = -20000;
  if (pidfd == kSelfThread || pidfd == kSelfGroup || pidfd == kSelfOld) return true;
  char path[48], text[512];
  format_to(path, sizeof path, "/proc/self/fdinfo/%d", pidfd);
  if (pidfd < 0 || read_text(path, text, sizeof text) < 0) return false;
  const char* line = strstr(text, "\nPid:");
  return line != nullptr && strtol(line + 5, nullptr, 10) == getpid();
}

}  // namespace lunar::sys
