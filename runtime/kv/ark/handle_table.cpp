// SPDX-License-Identifier: Apache-2.0
// Handles: see handle_table.h.
//
// Why a close is safe: a user counts itself (1) and then reads the handle (2); a closer clears the
// handle (3) and then reads the counts (4), all sequentially consistent. If (4) did not see (1),
// then (2) sees (3) and the user leaves. A pause for fork goes the same way, with the store's word
// in place of the handle.
#include "kv/ark/handle_table.h"

#include <new>

#include "kv/ark/ark_store.h"
#include "sys/arena.h"

namespace lunar::ark {
namespace {

constexpr unsigned kSlots = 1 << 16, kLeafSlots = 64, kLeaves = kSlots / kLeafSlots;
constexpr unsigned kNumberShift = 3, kGenerationShift = 19;

struct Leaf {
  Slot slots[kLeafSlots];
};

sys::Mutex table_lock;
std::atomic<Leaf*> leaves[kLeaves];
uint32_t slots_made = 0;  // under the lock
Slot* free_slots = nullptr;
unsigned engine_changes = 0;  // in progress; under the lock
bool fork_waits = false;      // for engine_changes; under the lock

constexpr uint64_t kPauseNs = 100'000;

std::atomic<unsigned> hints{0};
thread_local unsigned count_hint = 0;
// The thread's part of engine_changes: a signal handler that forks does not wait for its own
// thread.
thread_local unsigned own_changes = 0;

unsigned my_count() {
  if (count_hint == 0)
    count_hint = hints.fetch_add(1, std::memory_order_relaxed) % Slot::kCounts + 1;
  return count_hint - 1;
}

Slot* slot_of(uint64_t handle) {
  if (handle == 0 || handle >> 63 || handle & ((1u << kNumberShift) - 1)) return nullptr;
  const auto number = static_cast<unsigned>(handle >> kNumberShift) & (kSlots - 1);
  Leaf* leaf = leaves[number / kLeafSlots].load(std::memory_order_acquire);
  return leaf ? &leaf->slots[number % kLeafSlots] : nullptr;
}

Slot* take_slot() {
  if (Slot* slot = free_slots) {
    free_slots = slot->next_free;
    return slot;
  }
  if (slots_made == kSlots) return nullptr;
  std::atomic<Leaf*>& place = leaves[slots_made / kLeafSlots];
  if (!place.load(std::memory_order_relaxed)) {
    Leaf* leaf = arena_new<Leaf>();
    if (!leaf) return nullptr;
    place.store(leaf, std::memory_order_release);
  }
  Slot* slot = &place.load(std::memory_order_relaxed)->slots[slots_made % kLeafSlots];
  slot->number = slots_made++;
  return slot;
}

}  // namespace

uint64_t table_add(Object* object) {
  sys::Locked<sys::Mutex> guard(table_lock);
  Slot* slot = take_slot();
  if (!slot) return 0;
  object->slot = slot;
  const uint64_t handle = ++slot->generation << kGenerationShift | uint64_t{slot->number}
                                                                       << kNumberShift;
  slot->object.store(object, std::memory_order_release);
  slot->handle.store(handle, std::memory_order_seq_cst);
  return handle;
}

Object* table_acquire(const void* handle, unsigned kinds) {
  const auto wanted = reinterpret_cast<uint64_t>(handle);
  Slot* slot = slot_of(wanted);
  if (!slot) return nullptr;
  std::atomic<uint32_t>& count = slot->users[my_count()].count;
  for (;;) {
    count.fetch_add(1, std::memory_order_seq_cst);
    if (slot->handle.load(std::memory_order_seq_cst) == wanted) {
      Object* object = slot->object.load(std::memory_order_acquire);
      if (!(object->kind & kinds)) break;
      const std::atomic<uint32_t>& paused = object->store->paused;
      if (paused.load(std::memory_order_seq_cst) == 0) return object;
      // The store may be freed once this thread is not counted, and `paused` lies in the store. So
      // the thread waits in small steps, and looks again from the handle.
      count.fetch_sub(1, std::memory_order_release);
      sys::sleep_ns(kPauseNs);
      continue;
    }
    break;
  }
  count.fetch_sub(1, std::memory_order_release);
  return nullptr;
}

void table_release(Object* object) {
  object->slot->users[my_count()].count.fetch_sub(1, std::memory_order_release);
}

void table_use(Object* object) {
  std::atomic<uint32_t>& count = object->slot->users[my_count()].count;
  for (;;) {
    count.fetch_add(1, std::memory_order_seq_cst);
    if (object->store->paused.load(std::memory_order_seq_cst) == 0) return;
    count.fetch_sub(1, std::memory_order_release);
    sys::sleep_ns(kPauseNs);
  }
}

bool table_shut(Object* object) {
  return object->slot->handle.exchange(0, std::memory_order_seq_cst) != 0;
}

bool table_idle(const Object* object) {
  for (const Slot::Users& users : object->slot->users) {
    if (users.count.load(std::memory_order_seq_cst) != 0) return false;
  }
  return true;
}

void table_drain(const Object* object) {
  for (unsigned round = 0; !table_idle(object); ++round)
    round < 50 ? sys::yield_cpu() : sys::sleep_ns(kPauseNs);
}

void table_free(Slot* slot) {
  sys::Locked<sys::Mutex> guard(table_lock);
  slot->object.store(nullptr, std::memory_order_relaxed);
  slot->next_free = free_slots;
  free_slots = slot;
}

EngineChange::EngineChange() {
  for (;;) {
    {
      sys::Locked<sys::Mutex> guard(table_lock);
      if (!fork_waits) {
        ++engine_changes;
        ++own_changes;
        return;
      }
    }
    sys::sleep_ns(kPauseNs);
  }
}

EngineChange::~EngineChange() {
  sys::Locked<sys::Mutex> guard(table_lock);
  --engine_changes;
  --own_changes;
}

void table_before_fork() {
  sys::block_signals();  // a handler of the program's may want the table
  table_lock.lock();
  while (engine_changes != own_changes) {
    fork_waits = true;
    table_lock.unlock();
    sys::sleep_ns(kPauseNs);
    table_lock.lock();
  }
  fork_waits = false;
}

void table_after_fork_in_parent() {
  table_lock.unlock();
  sys::unblock_signals();
}

void table_after_fork_in_child(const ArkStore* forked) {
  table_lock.reset_in_child();
  engine_changes = own_changes;
  fork_waits = false;
  count_hint = 0;
  for (uint32_t i = 0; i < slots_made; ++i) {
    Slot& slot = leaves[i / kLeafSlots].load(std::memory_order_relaxed)->slots[i % kLeafSlots];
    for (Slot::Users& users : slot.users) users.count.store(0, std::memory_order_relaxed);
    const Object* object = slot.object.load(std::memory_order_relaxed);
    if (!object || (forked && object->store == forked)) continue;
    slot.handle.store(0, std::memory_order_relaxed);
    // A child of the child must not close these again: it may have other descriptors there.
    slot.object.store(nullptr, std::memory_order_relaxed);
    if (object->kind != kMain) continue;
    object->store->pool.abandon_in_child(object->store->engine->device());
    object->store->engine->abandon_in_child();
  }
  sys::unblock_signals();
}

}  // namespace lunar::ark
