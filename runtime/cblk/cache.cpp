// SPDX-License-Identifier: Apache-2.0
// The read cache: see cache.h.
// Threading: any. A call takes one set's spin lock at a time, for at most a copy of one block; a
// read takes those of all its blocks. May not: call the kernel after open.
#include "cblk/cache.h"

#include <errno.h>
#include <string.h>

#include <new>

#include "base/units.h"
#include "sys/arena.h"

namespace lunar::cblk {
namespace {

constexpr size_t kBlockBytes = 4096;
constexpr uint64_t kBlocksMax = uint64_t{1} << 28;  // 1 TiB: a larger number is a mistaken unit

}  // namespace

int Cache::open(uint64_t blocks) {
  if (blocks == 0) return 0;
  if (blocks > kBlocksMax) return -ENOMEM;
  count_ = (blocks + kWays - 1) / kWays;
  const size_t head = round_up(count_ * sizeof(Set), kBlockBytes);
  mapping_bytes_ = head + count_ * kWays * kBlockBytes;
  // Zeros are empty sets.
  auto* memory = static_cast<char*>(map_private(mapping_bytes_, ForkPolicy::kInherit));
  if (!memory) return -ENOMEM;
  sets_ = reinterpret_cast<Set*>(memory);
  for (uint64_t i = 0; i < count_; ++i) new (&sets_[i]) Set;
  data_ = memory + head;
  return 0;
}

void Cache::close() {
  if (sets_) unmap_private(sets_, mapping_bytes_);
  sets_ = nullptr;
}

Cache::Set& Cache::set_of(uint64_t block, char** ways) {
  const uint64_t index = (block * 0x9e3779b97f4a7c15u >> 32) * count_ >> 32;
  *ways = data_ + index * kWays * kBlockBytes;
  return sets_[index];
}

bool Cache::read(uint64_t block, size_t count, char* to) {
  if (count > kFillBlocksMax) return false;
  Set* sets[kFillBlocksMax];  // each is locked once, in the order of addresses
  const char* from[kFillBlocksMax];
  size_t locked = 0;
  for (size_t i = 0; i < count; ++i) {
    char* ways;
    Set* set = &set_of(block + i, &ways);
    size_t at = locked;
    while (at > 0 && sets[at - 1] > set) --at;
    if (at > 0 && sets[at - 1] == set) continue;
    for (size_t j = locked++; j > at; --j) sets[j] = sets[j - 1];
    sets[at] = set;
  }
  for (size_t i = 0; i < locked; ++i) sets[i]->lock.lock();
  size_t found = 0;
  for (; found < count; ++found) {
    char* ways;
    const Set& set = set_of(block + found, &ways);
    unsigned way = 0;
    while (way < kWays && set.blocks[way] != block + found + 1) ++way;
    if (way == kWays) break;
    from[found] = ways + way * kBlockBytes;
  }
  for (size_t i = 0; i < count && found == count; ++i)
    memcpy(to + i * kBlockBytes, from[i], kBlockBytes);
  for (size_t i = 0; i < locked; ++i) sets[i]->lock.unlock();
  return found == count;
}

void Cache::begin_read(uint64_t block, size_t count, uint64_t* stamps) {
  for (size_t i = 0; i < count && i < kFillBlocksMax; ++i) {
    char* ways;
    Set& set = set_of(block + i, &ways);
    sys::Locked guard(set.lock);
    stamps[i] = set.begun == set.ended ? set.begun : kNever;
  }
}

void Cache::fill(uint64_t block, size_t count, const char* from, const uint64_t* stamps) {
  if (count > kFillBlocksMax) return;
  for (size_t i = 0; i < count; ++i) {
    char* ways;
    Set& set = set_of(block + i, &ways);
    sys::Locked guard(set.lock);
    if (stamps[i] == kNever || set.begun != stamps[i]) continue;
    unsigned way = 0;
    while (way < kWays && set.blocks[way] != block + i + 1) ++way;
    if (way == kWays) {
      way = set.next;
      set.next = static_cast<uint8_t>((way + 1) % kWays);
    }
    set.blocks[way] = block + i + 1;
    memcpy(ways + way * kBlockBytes, from + i * kBlockBytes, kBlockBytes);
  }
}

void Cache::begin_write(uint64_t block, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    char* ways;
    Set& set = set_of(block + i, &ways);
    sys::Locked guard(set.lock);
    ++set.begun;
    for (uint64_t& cached : set.blocks) {
      if (cached == block + i + 1) cached = 0;
    }
  }
}

void Cache::end_write(uint64_t block, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    char* ways;
    Set& set = set_of(block + i, &ways);
    sys::Locked guard(set.lock);
    ++set.ended;
  }
}

void Cache::drop(uint64_t block, uint64_t count) {
  for (uint64_t i = 0; i < count_; ++i) {
    sys::Locked guard(sets_[i].lock);
    ++sets_[i].begun;  // a read that missed earlier must not fill the set
    ++sets_[i].ended;
    for (uint64_t& cached : sets_[i].blocks) {
      if (cached > block && cached <= block + count) cached = 0;
    }
  }
}

void Cache::forget_in_child() {
  for (uint64_t i = 0; i < count_; ++i) {
    sets_[i].lock.unlock();
    sets_[i].ended = sets_[i].begun;
    // A thread of the parent may have been writing to the set.
    for (uint64_t& cached : sets_[i].blocks) cached = 0;
  }
}

}  // namespace lunar::cblk
