// SPDX-License-Identifier: Apache-2.0
// The calls that map, unmap and advise memory, for the exported functions and for syscall().
// Threading: any thread, also under the loader's lock and in signal handlers.
#pragma once
#include <sys/types.h>
#include <sys/uio.h>

#include <cstddef>

namespace lunar::preload {

constexpr long kMseal = 462;  // SYS_mseal, which older headers lack

// The arguments of a call. caller: an address in the code that makes it.
struct MapCall {
  void* hint;
  size_t bytes;
  int prot, flags, fd;
  off_t offset;
  const void* caller;
};
struct RemapCall {
  void* old_address;
  size_t old_bytes, new_bytes;
  int flags;
  void* wanted;  // with MREMAP_FIXED
  const void* caller;
};

// These return what libc's functions return, with errno.
void* map_or_fail(const MapCall& call);
void* remap_or_fail(const RemapCall& call);
int seal_memory(void* address, size_t bytes, unsigned long flags);
void* attach_segment(int id, const void* wanted, int flags);  // shmat
int detach_segment(const void* address);                      // shmdt
ssize_t advise_in_process(int pidfd, const iovec* ranges, size_t count, int advice, unsigned flags);

// munmap, mprotect, pkey_mprotect, pkey_alloc and madvise: 0 or -errno. There are no protection
// keys, as on a machine without them.
int unmap_range(void* address, size_t bytes);
int protect_range(void* address, size_t bytes, int prot);
int protect_with_key(void* address, size_t bytes, int prot, int key);
int refuse_key();
int advise_range(void* address, size_t bytes, int advice);

}  // namespace lunar::preload
