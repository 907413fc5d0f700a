// SPDX-License-Identifier: Apache-2.0
// Copies into persistent memory: see pmem_copy.h.
// Threading: any. May not: allocate.
#include "superpipe/pmem/pmem_copy.h"

#include <string.h>

#include <atomic>

#if defined(__x86_64__)
#include <cpuid.h>
#include <emmintrin.h>
#elif defined(__aarch64__)
#include <sys/auxv.h>
#endif

namespace lunar::pmem {
namespace {

// The smallest line of these CPUs. Larger lines are flushed more than once.
constexpr size_t kLine = 64;

Flush ask() {
#if defined(__x86_64__)
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d)) {
    if (b & 1u << 24) return Flush::kClwb;
    if (b & 1u << 23) return Flush::kClflushopt;
  }
  return __get_cpuid(1, &a, &b, &c, &d) && (d & 1u << 19) ? Flush::kClflush : Flush::kNone;
#elif defined(__aarch64__)
  return getauxval(AT_HWCAP) & 1ul << 16 ? Flush::kClwb : Flush::kOther;  // HWCAP_DCPOP: DC CVAP
#elif defined(__powerpc64__)
  return Flush::kOther;
#endif
}

// The assembler knows all of them; the CPU was asked.
inline void flush_line([[maybe_unused]] Flush method, [[maybe_unused]] const char* line) {
#if defined(__x86_64__)
  auto* at = const_cast<char*>(line);
  if (method == Flush::kClwb)
    __asm__ volatile("clwb %0" : "+m"(*at));
  else if (method == Flush::kClflushopt)
    __asm__ volatile("clflushopt %0" : "+m"(*at));
  else
    _mm_clflush(at);
#elif defined(__aarch64__)
  if (method == Flush::kClwb)
    __asm__ volatile("sys #3, c7, c12, #1, %0" ::"r"(line) : "memory");
  else
    __asm__ volatile("dc cvac, %0" ::"r"(line) : "memory");
#elif defined(__powerpc64__)
  __asm__ volatile("dcbf 0, %0" ::"r"(line) : "memory");
#endif
}

}  // namespace

Flush flush_method() {
  static std::atomic<int> known{-1};
  int method = known.load(std::memory_order_relaxed);
  if (method < 0) {
    method = static_cast<int>(ask());
    known.store(method, std::memory_order_relaxed);
  }
  return static_cast<Flush>(method);
}

const char* flush_name(Flush method) {
  switch (method) {
    case Flush::kNone:
      return "none";
    case Flush::kClflush:
      return "clflush";
    case Flush::kClflushopt:
      return "clflushopt";
    case Flush::kClwb:
      return "clwb";
    case Flush::kOther:
      return "cache clean";
  }
  return "none";
}

void flush_lines(Flush method, const void* address, size_t bytes) {
  const char* end = static_cast<const char*>(address) + bytes;
  const char* line =
      static_cast<const char*>(address) - reinterpret_cast<uintptr_t>(address) % kLine;
  for (; line < end; line += kLine) flush_line(method, line);
}

void fence() {
#if defined(__x86_64__)
  _mm_sfence();
#elif defined(__aarch64__)
  __asm__ volatile("dsb sy" ::: "memory");
#elif defined(__powerpc64__)
  __asm__ volatile("sync" ::: "memory");
#endif
}

#if defined(__x86_64__)
namespace {

// Copies the whole lines of [to, to + bytes) by non-temporal stores. Calls `edge` for the partial
// lines at both ends.
template <class Edge>
void stream_lines(char* to, const char* from, size_t bytes, Edge edge) {
  const size_t ahead = (kLine - reinterpret_cast<uintptr_t>(to) % kLine) % kLine;
  if (bytes < ahead + kLine) return edge(to, from, bytes);
  if (ahead) edge(to, from, ahead);
  size_t at = ahead;
  for (; at + kLine <= bytes; at += kLine) {
    __m128i part[4];
    for (int i = 0; i < 4; ++i)
      part[i] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + at) + i);
    for (int i = 0; i < 4; ++i) _mm_stream_si128(reinterpret_cast<__m128i*>(to + at) + i, part[i]);
  }
  if (at < bytes) edge(to + at, from + at, bytes - at);
}

}  // namespace

void copy_through(Flush method, void* to, const void* from, size_t bytes) {
  stream_lines(static_cast<char*>(to), static_cast<const char*>(from), bytes,
               [method](char* out, const char* in, size_t n) {
                 memcpy(out, in, n);
                 flush_lines(method, out, n);
               });
}

void copy_past_cache(void* to, const void* from, size_t bytes) {
  stream_lines(static_cast<char*>(to), static_cast<const char*>(from), bytes,
               [](char* out, const char* in, size_t n) { memcpy(out, in, n); });
}
#else
void copy_through(Flush method, void* to, const void* from, size_t bytes) {
  memcpy(to, from, bytes);
  flush_lines(method, to, bytes);
}

void copy_past_cache(void* to, const void* from, size_t bytes) { memcpy(to, from, bytes); }
#endif

}  // namespace lunar::pmem
