// SPDX-License-Identifier: Apache-2.0
// Arena: the pager's own memory. Private anonymous mmap, never the host's heap and never tiered memory.
// A bump allocator over 256 KiB chunks: nothing is freed one by one; objects that come and go keep free lists of their
// own, or have a mapping each (superpipe/device_memory.h). Thread-safe and lock-free (usable in a child forked at any
// moment). Chunks are populated when mapped, so that an object never costs a fault later. Returns zeroed memory, or
// nullptr when mmap fails.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>
#include <utility>

namespace lunar {

// kDontFork: the child must not see it (MADV_DONTFORK). kWipe: zeros in a forked child (MADV_WIPEONFORK).
enum class ForkPolicy : uint8_t { kInherit, kDontFork, kWipe };

// `align`: a power of two (nullptr otherwise). Memory stays with the process; a forked child has a copy.
void* arena_alloc(size_t bytes, size_t align = 64);
size_t arena_bytes();  // mapped now, by arena_alloc and map_private, in bytes

// Page-granular private mapping of its own (frames, page tables): zeroed, lazily populated, no huge pages. nullptr on
// failure. map_readable: of kInherit, and to be made writable where it is used. unmap_private: `address` and `bytes` as
// mapped, or whole pages of it.
void* map_private(size_t bytes, ForkPolicy fork_policy);
void* map_readable(size_t bytes);
void unmap_private(void* address, size_t bytes);
// The same on a boundary of 2 MiB, rounded up to multiples of it, of huge pages where the kernel gives any: each is one
// piece of memory to a device, and is used whole once a byte of it is touched. Where the address space or the number of
// mappings has an end that is too near for that, a plain mapping of as many bytes.
constexpr size_t kHugeBytes = size_t{2} << 20;
void* map_private_huge(size_t bytes, ForkPolicy fork_policy);

// A copy of a text in a mapping of its own, for as long as it lives. text(): nullptr without memory.
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
  void* memory = arena_alloc(sizeof(T), alignof(T) < 64 ? 64 : alignof(T));
  return memory ? new (memory) T(std::forward<Args>(args)...) : nullptr;
}

}  // namespace lunar
