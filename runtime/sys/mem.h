// SPDX-License-Identifier: Apache-2.0
// Memory system calls. Thin: each returns 0 (or a count / pointer) or -errno, allocates nothing,
// may be used on the fault path unless it says otherwise. These go to the kernel directly, never
// through an interposed libc symbol.
#pragma once
#include <sys/types.h>
#include <sys/uio.h>

#include <cstddef>
#include <cstdint>

namespace lunar::sys {

size_t page_bytes();  // sysconf(_SC_PAGESIZE), cached

// mmap; *out set on success.
[[nodiscard]] int map(void* hint, size_t bytes, int prot, int flags, int fd, int64_t offset,
                      void** out);
[[nodiscard]] int unmap(void* address, size_t bytes);
// For error lines: the limit because of which memory may have been refused, such as "ulimit -d" if
// that one is set and -v is not.
const char* memory_limit();
bool memory_is_limited();       // RLIMIT_AS or RLIMIT_DATA is set
bool data_is_limited();         // RLIMIT_DATA is set: writable private memory counts against it
uint64_t address_space_most();  // RLIMIT_AS; UINT64_MAX: no limit
// Whether vm.overcommit_memory is 2: writable private memory counts against a limit of the whole
// machine, whatever its flags.
bool commits_are_counted();
[[nodiscard]] int protect(void* address, size_t bytes, int prot);
[[nodiscard]] int advise(void* address, size_t bytes, int advice);
[[nodiscard]] int remap(void* old_address, size_t old_bytes, size_t new_bytes, int flags,
                        void* new_address, void** out);

bool is_mapped(void* address, size_t bytes);  // all of it
// Reserves [address, address + bytes) (PROT_NONE, MAP_NORESERVE) if nothing is mapped there.
// -EEXIST: all of it is mapped, -EBUSY: a part is.
[[nodiscard]] int claim(void* address, size_t bytes);
// msync: [address, address + bytes) of a file mapping is on stable storage when it returns. Pages
// are rounded outward.
[[nodiscard]] int sync_range(void* address, size_t bytes);

// process_madvise on this process: the whole vector in one call where the kernel can (6.14), else
// one madvise per run of adjacent entries. Returns the bytes advised (a prefix of the vector), or
// -errno when none were. Entries after the prefix may have been advised as well, and a part of the
// entry that failed.
[[nodiscard]] int64_t advise_vector(const iovec* ranges, unsigned count, int advice);
bool advise_vector_is_native(int advice);  // probed once per process

// Drops pages (MADV_DONTNEED), one per entry. dropped[i]: it is no longer mapped; otherwise it is
// mapped as before (locked, sealed). Makes one call, and one more for each refused page. Returns
// how many were dropped.
unsigned drop_pages(const iovec* pages, unsigned count, bool* dropped);

// Gathers pages by reference into a pipe (vmsplice without copying); returns bytes, or -errno.
[[nodiscard]] int64_t splice_pages(int pipe_write_fd, const iovec* ranges, unsigned count);

// Files of /proc/self about this process' memory. keep_own_file opens one for later, when rights or
// the root directory may have changed (a forked child opens its own): the descriptor, or -1.
// open_own_file: a descriptor that the caller closes, or -errno.
enum class OwnFile : uint8_t { kPagemap, kMemory };
int keep_own_file(OwnFile which);
[[nodiscard]] int open_own_file(OwnFile which);
bool is_own_file(int fd);  // kept, and still that file

// Which of `pages` pages from `address` on the kernel holds (in DRAM or its own swap), from
// /proc/self/pagemap; one byte of `out` per page. Blocks.
[[nodiscard]] int present_pages(const void* address, size_t pages, uint8_t* out);
// The kernel's report on single pages. pagemap: from open_own_file, of the calling process. 0 or
// -errno.
struct PageFacts {
  bool present;
  bool exclusive;        // mapped by this process alone
  bool write_protected;  // by userfaultfd
};
[[nodiscard]] int page_facts(int pagemap, const void* const* pages, unsigned count, PageFacts* out);

// OwnFile::kMemory, if it can read memory that is mapped without PROT_READ (kernels can be
// configured to refuse that); or -errno.
[[nodiscard]] int open_unreadable_memory();
// Reads memory whatever its protection, if the kernel allows it (memory: from
// open_unreadable_memory). 0, or -errno (-EIO: nothing is mapped there, or a guard page).
[[nodiscard]] int read_memory(int memory, const void* from, void* to, size_t bytes);
// Reads this process' own memory by a system call: -EFAULT where a plain read would raise SIGSEGV
// or SIGBUS.
[[nodiscard]] int peek(const void* from, void* to, size_t bytes);
// writes; -EFAULT also for read-only memory
[[nodiscard]] int poke(void* to, const void* from, size_t bytes);

// mlock2 (flags 0: mlock), munlock, mlockall, munlockall.
[[nodiscard]] int lock_memory(const void* address, size_t bytes, unsigned flags);
[[nodiscard]] int unlock_memory(const void* address, size_t bytes);
[[nodiscard]] int lock_all(int flags);
[[nodiscard]] int unlock_all();
// Whether the kernel lets this thread lock as much memory as it likes: CAP_IPC_LOCK, or no
// RLIMIT_MEMLOCK.
bool may_lock_memory();

// process_madvise as the program calls it: the count, or -1 and errno.
ssize_t advise_process(int pidfd, const iovec* ranges, size_t count, int advice, unsigned flags);
// a pidfd of this process, or one of the kernel's names for it (PIDFD_SELF)
bool pidfd_is_self(int pidfd);

}  // namespace lunar::sys
