// SPDX-License-Identifier: Apache-2.0
// See early_heap.h. The first call reserves address space, which is made writable step by step. One
// atomic offset says how much of it is handed out. Each block has a header. Freed blocks are in
// lists, one for each power of two: a block is in the list of the largest power that fits into its
// room, and its first word is the offset of the next block. A list's head counts its changes, so
// that a thread which was delayed while it took a block notices them.
//
// The space is a map like the runtime's own (sys/arena.h), so that programs which overwrite all of
// their anonymous memory (Redis in its crash report) leave it alone.
#include "early_heap.h"

#include <errno.h>
#include <sys/mman.h>

#include <atomic>
#include <bit>
#include <cstdint>
#include <cstring>
#include <new>

#include "base/units.h"
#include "sys/arena.h"
#include "sys/mem.h"

namespace lunar::preload {
namespace {

// The space is enough for thousands of threads with tens of KiB of thread-local variables each.
// Where the address space is limited, it is a 512th of that, as each thread takes 8 MiB for its
// stack.
constexpr size_t kBytesMax = kGiB, kBytesLeast = 4 * kMiB, kStep = 256 * kKiB;
constexpr uint64_t kPartOfLimit = 512;
struct Header {
  uint32_t room, bytes;  // of the block: usable, requested
};
constexpr size_t kHeader = 16;  // keeps the default alignment of malloc
constexpr size_t kSmallest = 16;
static_assert(sizeof(Header) <= kHeader);
// a list's head: changes, offset of a block (0: none)
constexpr uint64_t kOffset = UINT32_MAX, kChange = kOffset + 1;
static_assert(kBytesMax <= kOffset);

// Lies at the beginning of the space itself.
struct Space {
  size_t bytes;
  // bytes from its beginning that are writable, and that are handed out
  std::atomic<size_t> writable, top;
  char* at(uint64_t offset) { return reinterpret_cast<char*>(this) + offset; }
};
constinit std::atomic<Space*> g_space{nullptr};
constinit std::atomic<uint64_t> g_lists[std::bit_width(kBytesMax)];

bool make_writable(Space* space, size_t from, size_t to) {
  const int saved = errno;
  const bool done = sys::protect(space->at(from), to - from, PROT_READ | PROT_WRITE) == 0;
  errno = saved;
  return done;
}

size_t bytes_wanted() {
  const int saved = errno;
  const uint64_t part = sys::address_space_most() / kPartOfLimit;
  errno = saved;
  return part >= kBytesMax     ? kBytesMax
         : part <= kBytesLeast ? kBytesLeast
                               : std::bit_floor(static_cast<size_t>(part));
}

// If two threads make it at the same moment, both get the same one.
Space* make_space() {
  Space* made = nullptr;
  size_t bytes = bytes_wanted();
  while ((made = static_cast<Space*>(map_readable(bytes))) == nullptr && bytes > kBytesLeast)
    bytes /= 2;
  if (made == nullptr) return nullptr;
  const bool usable = make_writable(made, 0, kStep);
  if (usable) new (made) Space{bytes, kStep, sizeof(Space)};
  Space* other = nullptr;
  if (usable && g_space.compare_exchange_strong(other, made, std::memory_order_acq_rel))
    return made;
  unmap_private(made, bytes);
  return other;
}

Header& header_of(const void* pointer) {
  return *reinterpret_cast<Header*>(const_cast<char*>(static_cast<const char*>(pointer)) - kHeader);
}

std::atomic<uint64_t>& next_of(Space* space, uint64_t offset) {
  return *reinterpret_cast<std::atomic<uint64_t>*>(space->at(offset));
}

char* take_again(Space* space, size_t room) {
  auto& list = g_lists[std::bit_width(room) - 1];
  uint64_t head = list.load(std::memory_order_acquire);
  while ((head & kOffset) != 0) {
    const uint64_t next = next_of(space, head & kOffset).load(std::memory_order_relaxed) & kOffset;
    if (list.compare_exchange_weak(head, (head & ~kOffset) + kChange + next,
                                   std::memory_order_acquire))
      return space->at(head & kOffset);
  }
  return nullptr;
}

bool reach(Space* space, size_t end) {
  size_t writable = space->writable.load(std::memory_order_acquire);
  if (end <= writable) return true;
  const size_t to = round_up(end, kStep);
  if (!make_writable(space, writable, to)) return false;
  while (writable < to &&
         !space->writable.compare_exchange_weak(writable, to, std::memory_order_acq_rel)) {}
  return true;
}

char* take_new(Space* space, size_t alignment, size_t room) {
  const auto base = reinterpret_cast<uintptr_t>(space);
  size_t before = space->top.load(std::memory_order_relaxed), start;
  do {
    start = round_up(base + before + kHeader, alignment) - base;
    if (start > space->bytes || room > space->bytes - start || !reach(space, start + room))
      return nullptr;
  } while (!space->top.compare_exchange_weak(before, start + room, std::memory_order_relaxed));
  return space->at(start);
}

}  // namespace

void* early_alloc(size_t alignment, size_t bytes) {
  if (bytes > kBytesMax || alignment > kBytesMax) return nullptr;
  Space* space = g_space.load(std::memory_order_acquire);
  if (space == nullptr && (space = make_space()) == nullptr) return nullptr;
  const size_t room = std::bit_ceil(bytes < kSmallest ? kSmallest : bytes);
  char* pointer = alignment <= kHeader ? take_again(space, room) : nullptr;
  if (pointer != nullptr)
    memset(pointer, 0, bytes);
  else
    pointer = take_new(space, alignment < kHeader ? kHeader : alignment, room);
  if (pointer != nullptr)
    header_of(pointer) = {static_cast<uint32_t>(room), static_cast<uint32_t>(bytes)};
  return pointer;
}

void early_free(void* pointer) {
  Space* space = g_space.load(std::memory_order_acquire);
  const auto offset = static_cast<uint64_t>(static_cast<char*>(pointer) - space->at(0));
  auto& list = g_lists[std::bit_width(header_of(pointer).room) - 1];
  uint64_t head = list.load(std::memory_order_relaxed);
  do {
    next_of(space, offset).store(head & kOffset, std::memory_order_relaxed);
  } while (!list.compare_exchange_weak(head, (head & ~kOffset) + kChange + offset,
                                       std::memory_order_release));
}

bool early_owns(const void* pointer) {
  const Space* space = g_space.load(std::memory_order_acquire);
  return space != nullptr &&
         reinterpret_cast<uintptr_t>(pointer) - reinterpret_cast<uintptr_t>(space) < space->bytes;
}

size_t early_size(const void* pointer) { return header_of(pointer).bytes; }

}  // namespace lunar::preload
