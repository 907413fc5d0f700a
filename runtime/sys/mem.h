// SPDX-License-Identifier: Apache-2.0
// Memory system calls. Thin: each returns 0 (or a count / pointer) or -errno, allocates nothing, may be used on the
// fault path unless it says otherwise. These go to the kernel directly, never through an interposed libc symbol.
#pragma once
#include <sys/types.h>
#include <sys/uio.h>

#include <cstddef>
#include <cstdint>

namespace lunar::sys {

size_t page_bytes();  // sysconf(_SC_PAGESIZE), cached

// mmap; *out set on success.
[[nodiscard]] int map(void* hint, size_t bytes, int prot, int flags, int fd, int64_t offset, void** out);
[[nodiscard]] int unmap(void* address, size_t bytes);
// The limit that stands in the way when memory is refused: "ulimit -d" where that is set and -v is not, ...
const char* memory_limit();
bool memory_is_limited();       // by one of these
uint64_t address_space_most();  // RLIMIT_AS; UINT64_MAX: no limit
// vm.overcommit_memory=2: writable private memory counts against a limit of the whole machine, whatever its flags.
bool commits_are_counted();
// By that, or against RLIMIT_DATA: only what is writable.
bool writable_is_counted();
[[nodiscard]] int protect(void* address, size_t bytes, int prot);
[[nodiscard]] int advise(void* address, size_t bytes, int advice);
[[nodiscard]] int remap(void* old_address, size_t old_bytes, size_t new_bytes, int flags, void* new_address,
                        void** out);

// Reserves address space (PROT_NONE, MAP_NORESERVE) at a place where nothing is mapped. -EEXIST: all of it is mapped,
// -EBUSY: a part is.
[[nodiscard]] int claim(void* address, size_t bytes);
// msync: [address, address + bytes) of a file mapping is on stable storage when it returns. Pages are rounded outward.
[[nodiscard]] int sync_range(void* address, size_t bytes);

// process_madvise on this process: whole vector in one call where the kernel can (6.14), else one madvise
// a run of adjacent entries. Returns bytes advised (a prefix of the vector), or -errno when none were. Entries behind
// the prefix may be advised as well, and the one that failed in part.
[[nodiscard]] int64_t advise_vector(const iovec* ranges, unsigned count, int advice);
bool advise_vector_is_native(int advice);  // probed once a process

// Drops pages (MADV_DONTNEED), one an entry. dropped[i]: nothing maps it any more; else it is mapped as before (locked,
// sealed). One call where nothing is in the way; what is, is got around page by page. Returns how many were dropped.
unsigned drop_pages(const iovec* pages, unsigned count, bool* dropped);
// Drops what is there, also of locked memory; `unlock`: where the kernel cannot (before 5.18) the lock goes first.
// -errno: some may be left.
[[nodiscard]] int drop_locked(void* address, size_t bytes, bool unlock);
// mprotect that also takes a protection key (pkeys(7)) away.
[[nodiscard]] int protect_without_key(void* address, size_t bytes, int prot);
[[nodiscard]] int protect_with_key(void* address, size_t bytes, int prot, int key);  // pkey_mprotect
// Either, as what has this key (0: none) is protected.
[[nodiscard]] int protect_alike(void* address, size_t bytes, int prot, int key);
// Puts memory in the place of [address, address + bytes) that raises SIGBUS whenever it is touched: shared memory past
// its end.
[[nodiscard]] int map_past_end(void* address, size_t bytes, int prot);

// Gathers pages by reference into a pipe (vmsplice without copying); returns bytes, or -errno.
[[nodiscard]] int64_t splice_pages(int pipe_write_fd, const iovec* ranges, unsigned count);

// Files of /proc/self that tell of this process' memory. keep_own_file opens one for later, when rights or the root
// directory may have changed (a forked child again, for itself): its number, or -1. open_own_file: one of the caller's
// own, or -errno.
enum class OwnFile : uint8_t { kPagemap, kMemory };
int keep_own_file(OwnFile which);
[[nodiscard]] int open_own_file(OwnFile which);
bool is_own_file(int fd);  // one that is kept, and still that

// Which of [address, address+pages) the kernel holds (DRAM or its own swap), from /proc/self/pagemap; a byte a page.
// Blocking.
[[nodiscard]] int present_pages(const void* address, size_t pages, uint8_t* out);
// What the kernel knows of single pages. pagemap: from open_own_file, of the process that asks. 0 or -errno.
struct PageFacts {
  bool present;
  bool exclusive;        // mapped by this process alone
  bool write_protected;  // by userfaultfd
};
[[nodiscard]] int page_facts(int pagemap, const void* const* pages, unsigned count, PageFacts* out);

// OwnFile::kMemory, where it reads what may not be read (a kernel may be told that it does not); or -errno.
[[nodiscard]] int open_unreadable_memory();
// Reads memory whatever its protection, where the kernel lets a process do that (memory: from open_own_file). 0, or
// -errno (-EIO: there is none, or a guard page).
[[nodiscard]] int read_memory(int memory, const void* from, void* to, size_t bytes);
// Reads this process' own memory by a system call: -EFAULT where a plain read would be a fault without remedy.
[[nodiscard]] int peek(const void* from, void* to, size_t bytes);
[[nodiscard]] int poke(void* to, const void* from, size_t bytes);  // likewise; -EFAULT also: it may not be written

// mlock2 (flags 0: mlock), munlock, mlockall, munlockall.
[[nodiscard]] int lock_memory(const void* address, size_t bytes, unsigned flags);
[[nodiscard]] int unlock_memory(const void* address, size_t bytes);
[[nodiscard]] int lock_all(int flags);
[[nodiscard]] int unlock_all();
// Whether the kernel lets this thread lock as much memory as it likes: CAP_IPC_LOCK, or no RLIMIT_MEMLOCK.
bool may_lock_memory();

// process_madvise as the program calls it: the count, or -1 and errno. Whether a descriptor (or one of the kernel's
// names) stands for this process.
ssize_t advise_process(int pidfd, const iovec* ranges, size_t count, int advice, unsigned flags);
bool pidfd_is_self(int pidfd);

}  // namespace lunar::sys
