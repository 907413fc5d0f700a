// SPDX-License-Identifier: Apache-2.0
// Copies into persistent memory and makes the copies durable: a store is on stable storage after
// its cache line was written back and the CPU has fenced.
//
//   x86       non-temporal stores for whole lines (they bypass the cache, so nothing is left to
//             flush: measured 1.6x as fast as memcpy + CLWB at 4 KiB and 32 KiB), CLWB, CLFLUSHOPT
//             or CLFLUSH (by CPUID) for the rest, SFENCE
//   aarch64   DC CVAP, or DC CVAC where the CPU lacks it; DSB
//   powerpc   DCBF, SYNC
//   others    can_flush() is false: the caller uses msync
//
// Threading: any thread. Allocates nothing.
#pragma once
#include <cstddef>
#include <cstdint>

namespace lunar::pmem {

enum class Flush : uint8_t { kNone, kClflush, kClflushopt, kClwb, kOther };

Flush flush_method();  // what this CPU offers, determined once; kNone: use msync
inline bool can_flush() { return flush_method() != Flush::kNone; }
const char* flush_name(Flush method);  // "clwb", for messages

// Writes back the lines of [address, address + bytes) with `method`; unordered until fence().
void flush_lines(Flush method, const void* address, size_t bytes);
void fence();
// As memcpy. The bytes are on stable storage after the next fence().
void copy_through(Flush method, void* to, const void* from, size_t bytes);

// As memcpy, but keeps the destination out of this CPU's cache, if the architecture can. Complete,
// also for other CPUs, after fence().
void copy_past_cache(void* to, const void* from, size_t bytes);

}  // namespace lunar::pmem
