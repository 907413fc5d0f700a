// SPDX-License-Identifier: Apache-2.0
// Copies between the memory of a command and a device that is memory itself.
//
// A concurrent read and write of one place of a device are no data race: on a real device the
// kernel copies, and checksums check the bytes. So ThreadSanitizer sees only the command's side of
// a copy, which nothing else may change meanwhile, not the device's.
// Threading: any.
#pragma once
#include <cstring>

#if defined(__SANITIZE_THREAD__) && defined(__x86_64__)
extern "C" void __tsan_read_range(void* memory, unsigned long bytes);
extern "C" void __tsan_write_range(void* memory, unsigned long bytes);
#endif

namespace lunar {

#if defined(__SANITIZE_THREAD__) && defined(__x86_64__)

inline void copy_unseen(void* to, const void* from, size_t bytes) {
  asm volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(bytes) : : "memory");
}

inline void copy_to_device(void* device, const void* from, size_t bytes) {
  __tsan_read_range(const_cast<void*>(from), bytes);
  copy_unseen(device, from, bytes);
}

inline void copy_from_device(void* to, const void* device, size_t bytes) {
  __tsan_write_range(to, bytes);
  copy_unseen(to, device, bytes);
}

#else

inline void copy_to_device(void* device, const void* from, size_t bytes) {
  memcpy(device, from, bytes);
}
inline void copy_from_device(void* to, const void* device, size_t bytes) {
  memcpy(to, device, bytes);
}

#endif

}  // namespace lunar
