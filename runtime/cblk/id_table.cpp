// SPDX-License-Identifier: Apache-2.0
// The table of ids: see id_table.h.
// Threading: additions and the registry under one lock; look-ups without.
#include "cblk/id_table.h"

#include <errno.h>

#include "sys/arena.h"

namespace lunar::cblk {
namespace {

constexpr uint32_t kLeafSlots = 1024;
constexpr uint32_t kTopLeaves = 1u << 21;  // ids of 31 bits

struct Leaf {
  Slot slots[kLeafSlots];
};

using Top = std::atomic<Leaf*>;
std::atomic<Top*> top{nullptr};
sys::Mutex lock;
Handle* first = nullptr;
uint32_t last_id = 0;

Slot* slot_of(uint32_t id) {
  Top* leaves = top.load(std::memory_order_acquire);
  if (!leaves || id / kLeafSlots >= kTopLeaves) return nullptr;
  Leaf* leaf = leaves[id / kLeafSlots].load(std::memory_order_acquire);
  return leaf ? &leaf->slots[id % kLeafSlots] : nullptr;
}

// pre: the lock is held.
Slot* make_slot(uint32_t id) {
  Top* leaves = top.load(std::memory_order_relaxed);
  if (!leaves) {
    // Only the parts that are used are touched.
    leaves = static_cast<Top*>(map_private(kTopLeaves * sizeof(Top), ForkPolicy::kInherit));
    if (!leaves) return nullptr;
    top.store(leaves, std::memory_order_release);
  }
  Top& place = leaves[id / kLeafSlots];
  if (!place.load(std::memory_order_relaxed)) {
    Leaf* leaf = arena_new<Leaf>();
    if (!leaf) return nullptr;
    place.store(leaf, std::memory_order_release);
  }
  return slot_of(id);
}

}  // namespace

int table_add(Handle* handle) {
  sys::Locked guard(lock);
  if (last_id == INT32_MAX) return -ENOMEM;
  Slot* slot = make_slot(last_id + 1);
  if (!slot) return -ENOMEM;
  handle->id = static_cast<int>(++last_id);
  handle->slot = slot;
  handle->next = first;
  handle->previous = nullptr;
  if (first) first->previous = handle;
  first = handle;
  slot->handle.store(handle, std::memory_order_relaxed);
  slot->word.store(Slot::kOpen, std::memory_order_release);
  return 0;
}

Handle* table_acquire(int id, unsigned kinds) {
  if (id <= 0) return nullptr;
  Slot* slot = slot_of(static_cast<uint32_t>(id));
  if (!slot) return nullptr;
  // Acquire: if the id is closed, the commands no longer use the caller's buffers.
  if (!(slot->word.load(std::memory_order_acquire) & Slot::kOpen)) return nullptr;
  const uint32_t word = slot->word.fetch_add(1, std::memory_order_acquire);
  Handle* handle = nullptr;
  if (word & Slot::kOpen) {
    handle = slot->handle.load(std::memory_order_relaxed);
    if (handle->kind & kinds) return handle;
    table_release(handle);
    return nullptr;
  }
  // It was closed at this moment.
  const uint32_t before = slot->word.fetch_sub(1, std::memory_order_release);
  if (before & Slot::kDraining) sys::futex_wake(&slot->word, 1, false);
  return nullptr;
}

void table_release(Handle* handle) {
  Slot* slot = handle->slot;  // the object may be freed once it is released
  const uint32_t before = slot->word.fetch_sub(1, std::memory_order_release);
  if (before & Slot::kDraining) sys::futex_wake(&slot->word, 1, false);
}

int table_shut(Handle* handle, uint32_t mine, uint64_t deadline_ns) {
  Slot* slot = handle->slot;
  slot->word.fetch_or(Slot::kDraining, std::memory_order_relaxed);
  slot->word.fetch_and(~Slot::kOpen, std::memory_order_acq_rel);
  for (;;) {
    const uint32_t word = slot->word.load(std::memory_order_acquire);
    if ((word & Slot::kUsers) <= mine) break;
    const uint64_t now = sys::now_ns();
    if (now >= deadline_ns) {
      table_reopen(handle);
      slot->word.fetch_and(~Slot::kDraining, std::memory_order_relaxed);
      return -EBUSY;
    }
    (void)sys::futex_wait(&slot->word, word, static_cast<int64_t>(deadline_ns - now), false);
  }
  slot->word.fetch_and(~Slot::kDraining, std::memory_order_relaxed);
  return 0;
}

void table_reopen(Handle* handle) {
  handle->slot->word.fetch_or(Slot::kOpen, std::memory_order_release);
}

sys::Mutex& registry_lock() { return lock; }

void registry_remove(Handle* handle) {
  sys::Locked guard(lock);
  if (handle->previous)
    handle->previous->next = handle->next;
  else
    first = handle->next;
  if (handle->next) handle->next->previous = handle->previous;
}

Handle* registry_first() { return first; }

void table_forget_users() {
  for (Handle* handle = first; handle; handle = handle->next) {
    const uint32_t word = handle->slot->word.load(std::memory_order_relaxed);
    handle->slot->word.store(word & Slot::kOpen, std::memory_order_relaxed);
  }
}

}  // namespace lunar::cblk
