// SPDX-License-Identifier: Apache-2.0
// Arena: the pager's own memory. Private anonymous mmap, never the host's heap and never tiered
// memory. A bump allocator over 256 KiB chunks: single objects are not freed. Objects that come and
// go keep their own free lists, or have a mapping each (superpipe/device_memory.h). Thread-safe and
// lock-free (usable in a child forked at any moment). Chunks are populated when mapped, so that an
// object never costs a fault later. Returns zeroed memory, or nullptr when mmap fails.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>
#include <utility>

namespace lunar {

// Mappings of this memory begin at an offset of /dev/zero that, shifted right by kOwnMapsShift, is
// kOwnMapsMark. In /proc/self/maps this distinguishes them from the program's mappings.
constexpr uint64_t kOwnMapsMark = 0x4C55;
constexpr unsigned kOwnMapsShift = 48;

// kDontFork: the child must not see it (MADV_DONTFORK). kWipe: zeros in a forked child
// (MADV_WIPEONFORK).
enum class ForkPolicy : uint8_t { kInherit, kDontFork, kWipe };

// `align`: a power of two (nullptr otherwise). Memory stays with the process; a forked child has a
// copy.
void* arena_alloc(size_t bytes, size_t align = 64);
size_t arena_bytes();  // mapped now, by arena_alloc and map_private, in bytes

// A separate page-granular private mapping (frames, page tables): zeroed, lazily populated, no huge
// pages. nullptr on failure. map_readable: the same with kInherit, read-only until the caller makes
// parts of it writable (sys::protect). unmap_private: `address` and `bytes` as mapped, or whole
// pages of it.
void* map_private(size_t bytes, ForkPolicy fork_policy);
void* map_readable(size_t bytes);
void unmap_private(void* address, size_t bytes);
// A table with its own mapping. A small one is a part of the arena instead, which keeps it after
// unmap_table: thousands of small tables would take a page and a mapping each. Inherited by
// children.
void* map_table(size_t bytes);
void unmap_table(void* address, size_t bytes);
// As map_private, but aligned and rounded up to 2 MiB, and of huge pages where the kernel provides
// them. A huge page is contiguous for a device, and takes 2 MiB of DRAM once a byte of it is
// touched. Where a limit on address space or on the number of mappings forbids the alignment: a
// plain mapping of the same size.
constexpr size_t kHugeBytes = size_t{2} << 20;
void* map_private_huge(size_t bytes, ForkPolicy fork_policy);

// A copy of a text in its own mapping, for the life of the object. text(): nullptr when there was
// no memory.
class TextCopy {
 public:
  explicit TextCopy(const char* text) : bytes_(strlen(text) + 1) {
    text_ = static_cast<char*>(map_private(bytes_, ForkPolicy::kInherit));
    if (text_) memcpy(text_, text, bytes_);
  }
  ~TextCopy() {
    if (text_) unmap_private(text_, bytes_);
  }
  TextCopy(const TextCopy&) = delete;
  TextCopy& operator=(const TextCopy&) = delete;
  char* text() const { return text_; }

 private:
  const size_t bytes_;
  char* text_;
};

template <class T, class... Args>
T* arena_new(Args&&... args) {
  void* memory = arena_alloc(sizeof(T), std::max<size_t>(alignof(T), 64));
  return memory ? new (memory) T(std::forward<Args>(args)...) : nullptr;
}

}  // namespace lunar
