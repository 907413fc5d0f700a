// SPDX-License-Identifier: Apache-2.0
// The calls about maps that a program brings along, each by libc's syscall (as gperftools' tcmalloc
// does, which counts maps).
#include <stdarg.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

extern "C" {
void* mmap(void* hint, size_t bytes, int prot, int flags, int fd, off_t offset) noexcept {
  return reinterpret_cast<void*>(syscall(SYS_mmap, hint, bytes, prot, flags, fd, offset));
}
int munmap(void* at, size_t bytes) noexcept {
  return static_cast<int>(syscall(SYS_munmap, at, bytes));
}
void* mremap(void* at, size_t before, size_t after, int flags, ...) noexcept {
  va_list rest;
  va_start(rest, flags);
  void* wanted = va_arg(rest, void*);
  va_end(rest);
  return reinterpret_cast<void*>(syscall(SYS_mremap, at, before, after, flags, wanted));
}
int mprotect(void* at, size_t bytes, int prot) noexcept {
  return static_cast<int>(syscall(SYS_mprotect, at, bytes, prot));
}
int madvise(void* at, size_t bytes, int advice) noexcept {
  return static_cast<int>(syscall(SYS_madvise, at, bytes, advice));
}
int mlock(const void* at, size_t bytes) noexcept {
  return static_cast<int>(syscall(SYS_mlock, at, bytes));
}
int munlock(const void* at, size_t bytes) noexcept {
  return static_cast<int>(syscall(SYS_munlock, at, bytes));
}
}
